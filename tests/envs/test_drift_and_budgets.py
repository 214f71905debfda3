"""Streams whose mixture drifts, and budgets that are drawn from a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.simulator.workload import drift_of, load_profiles, load_workload
from inframind_gym.tasks import DOMAINS

DRIFT = """name: drifting
mix: {math: 3, mbpp: 1}
mix_to: {math: 1, mbpp: 3}
drift_queries: 400
"""


def drifting(tmp_path: Path, text: str = DRIFT) -> str:
    path = tmp_path / "drifting.yaml"
    path.write_text(text)
    return str(path)


def test_weights_go_to_the_far_end_and_back(tmp_path: Path) -> None:
    workload = load_workload(drifting(tmp_path))
    drift = drift_of(workload)
    assert drift is not None
    found = drift.weights(np.array([0, 100, 200, 300, 400]))
    np.testing.assert_allclose(found[:, 0], [0.75, 0.5, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert [part.weight for part in load_profiles(workload).values()] == [0.5, 0.5]
    assert drift_of(load_workload("mixed")) is None


def test_a_stream_asks_what_the_weights_say(tmp_path: Path) -> None:
    env = StreamVectorEnv(8, workload=drifting(tmp_path), num_queries=4000, observation="index")
    env.reset(seed=0)
    task = env.simulation.state.task
    code = env.simulation.tasks.domain[task] == DOMAINS.index("Code")
    by_phase = code.reshape(8, 10, 4, 100).mean(axis=(0, 1, 3))  # quarters of a drift
    np.testing.assert_allclose(by_phase, [0.375, 0.625, 0.625, 0.375], atol=0.03)


def test_budgets_are_drawn_from_a_list() -> None:
    env = StreamVectorEnv(4, budget_s=[30, 30, 30, 600], num_queries=500, observation="index")
    env.reset(seed=0)
    budgets: list[float] = []
    running = np.ones(4, np.bool_)
    while running.any():
        *_, over, _, _ = env.step(np.zeros(4, np.int64))
        rows, records = env.completed()
        budgets += records["budget_s"][running[rows]].tolist()
        running &= ~over
    assert set(budgets) == {30.0, 600.0}
    assert np.mean(np.array(budgets) == 30.0) == pytest.approx(0.75, abs=0.04)
    assert set(env.policy_spec().budget_tiers_s) == {30.0, 600.0}
