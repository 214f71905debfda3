"""What holds whatever is decided: memory, who serves, calls, time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.simulator.placement.state import ACTIVE, DRAINING, QUEUED, SLEPT
from tests.placement.toys import ROW, some_action, started, tight_cluster, write_demand

EPS_MB = 1e-6


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("tight")
    yield {
        "cluster": tight_cluster(folder, alpha=0.1),
        "demand": write_demand(folder, shuffle=True),
        "num_decisions": 25,
        "foreign_memory": {"max_MB": 15_000, "every_s": 2},
    }


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    wild=st.booleans(),
    initial=st.sampled_from(["spread", "empty"]),
    load=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_invariants(
    tight: dict[str, Any], seed: int, wild: bool, initial: str, load: float
) -> None:
    simulation, observations = started({**tight, "initial": initial, "load": load}, seed)
    rng = np.random.default_rng(seed)
    finished: list[float] = []
    now_s = -1.0
    for _ in range(simulation.config.num_decisions):
        simulation.step(ROW, some_action(rng, simulation, wild)[None], observations)
        check_memory(simulation)
        check_calls(simulation)
        assert simulation.now_s()[0] > now_s
        now_s = simulation.now_s()[0]
        new = simulation.completed(0)
        assert (new["finish_s"] <= now_s).all()
        assert (new["finish_s"] >= now_s - simulation.config.decision_interval_s).all()
        assert (new["latency_s"] >= new["ideal_s"] * (1 - 1e-9)).all()
        finished += new["job"].tolist()
    assert len(set(finished)) == len(finished)
    assert sorted(finished) == sorted(simulation.finished(0)["job"].tolist())


def check_memory(simulation: PlacementSimulation) -> None:
    """Models and foreign processes fit on every GPU, sleepers within their share."""
    context = simulation.contexts(ROW)
    world = simulation.world
    assert (context.free_mb >= -EPS_MB).all()
    from_slept = simulation.state.instance["from_slept"][0]
    slept = np.zeros(simulation.num_gpus)
    awake = np.zeros(simulation.num_gpus, np.int64)
    for g in range(simulation.num_gpus):
        for m in range(simulation.num_models):
            state = context.state[0, g, m]
            leader = g // world.model["tp"][m] * world.model["tp"][m]
            if state == SLEPT or (state == QUEUED and from_slept[leader, m]):
                slept[g] += world.model["slept_mb"][m]
            awake[g] += state in (ACTIVE, DRAINING)
    assert (slept <= world.gpu["slept_limit_mb"] + EPS_MB).all()
    assert (awake <= 1).all()


def check_calls(simulation: PlacementSimulation) -> None:
    """A call that became ready waits, runs or is answered; only what is awake has calls."""
    context, spec = simulation.contexts(ROW), simulation.policy_spec()
    episode = simulation.state.episode[0]
    there = episode["waiting"] + episode["serving"]
    assert episode["requests_made"] == episode["requests_done"] + there
    in_flight, awake = context.in_flight[0], np.isin(context.state[0], (ACTIVE, DRAINING))
    room = np.where(awake, spec.slots + spec.queue, 0).max(axis=1)
    assert (in_flight <= room).all()
