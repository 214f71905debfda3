"""Load matters: choices make queues, queues make latency, and schedulers share it out.

All comparisons are paired: the same seeds, so the same arrivals, tasks, budgets and plans.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

import baselines
from inframind_gym.policies import Policy
from tests.envs.sweeps import Cycle, make_batch, on_time, sweep

SEEDS = (0, 1, 2, 3, 4)
ROOT = Path(__file__).parents[2]
# Policies that the load does not move.
FIXED = (
    *("static:deepseek-32b:Concise", "static:mistral-24b:Flash", "static:qwen-14b:DeepThink"),
    *("static:llama-8b:Concise", "static:llama-3b:Concise"),
    *("round_robin", "static_mix", "random"),
)
SMALL_MODELS = Cycle([7, 10, 13])  # qwen-14b, llama-8b, llama-3b in turn, Concise


@pytest.fixture(scope="module")
def env() -> Any:
    return make_batch(len(SEEDS), num_queries=200)


def mean_latency_s(env: Any, policy: Policy, rate: float) -> NDArray[np.float64]:
    """Mean latency of each seed's sweep."""
    rows = sweep(env, policy, SEEDS, arrival_rate_per_min=rate)
    return np.array([records["latency_s"].mean() for records in rows])


@pytest.mark.parametrize("name", FIXED)
def test_latency_rises_with_the_arrival_rate(env: Any, name: str) -> None:
    policy = baselines.resolve_policy(name)
    at_10, at_50, at_200 = (mean_latency_s(env, policy, rate) for rate in (10.0, 50.0, 200.0))
    # In every seed; how much depends on how far the servers are loaded already at 10 per minute.
    assert np.all(at_50 > 1.02 * at_10)
    assert np.all(at_200 > 1.02 * at_50)
    assert at_200.mean() > 1.25 * at_10.mean()


def test_queues_of_a_fixed_policy_explode_and_an_adaptive_one_s_do_not(env: Any) -> None:
    static = mean_latency_s(env, baselines.make("static_mix"), 100.0)
    adaptive = mean_latency_s(env, baselines.make("least_loaded"), 100.0)
    assert np.all(static > 4.0 * adaptive)


def pool_with_slots(slots: int, folder: Path) -> str:
    """The shipped pool with another number of slots on every server."""
    pool = yaml.safe_load((ROOT / "envs_configs/pools/b200-2gpu.yaml").read_text())
    for model in pool["models"]:
        model["server"]["max_num_seqs"] = slots
    path = folder / f"slots-{slots}.yaml"
    path.write_text(yaml.safe_dump({**pool, "name": f"slots-{slots}"}))
    return str(path)


def test_latency_falls_with_more_slots(tmp_path: Path) -> None:
    pools = [
        make_batch(len(SEEDS), num_queries=200, pool=pool_with_slots(slots, tmp_path))
        for slots in (4, 8, 16, 48)
    ]
    for name in ("static:qwen-14b:Concise", "round_robin", "static_mix"):
        four, eight, sixteen, many = (
            mean_latency_s(env, baselines.resolve_policy(name), 100.0) for env in pools
        )
        assert np.all(four > 1.4 * eight), name
        assert np.all(eight > 1.4 * sixteen), name
        assert np.all(sixteen > 1.05 * many), name  # qwen's cache holds little more than 16 calls


@pytest.fixture(scope="module")
def schedulers() -> dict[str, Any]:
    return {
        name: make_batch(len(SEEDS), num_queries=500, scheduler=name)
        for name in ("fcfs", "edf", "edf_late_last")
    }


def attainment(env: Any, policy: Policy, rate: float) -> NDArray[np.float64]:
    """Share of the queries of each seed that met their own budget."""
    rows = sweep(env, policy, SEEDS, arrival_rate_per_min=rate)
    return np.array([on_time(records) for records in rows])


def test_edf_beats_fcfs_while_the_load_is_feasible(schedulers: dict[str, Any]) -> None:
    # 150 per minute on the three small models: queues, but nearly every deadline can be met.
    edf = attainment(schedulers["edf"], SMALL_MODELS, 150.0)
    fcfs = attainment(schedulers["fcfs"], SMALL_MODELS, 150.0)
    assert edf.mean() > 0.85
    assert np.all(edf > fcfs + 0.05)
    assert edf.mean() > fcfs.mean() + 0.15


def test_the_order_of_the_queue_does_not_matter_without_one(schedulers: dict[str, Any]) -> None:
    at_rest = {name: attainment(env, SMALL_MODELS, 10.0) for name, env in schedulers.items()}
    np.testing.assert_allclose(at_rest["edf"], at_rest["fcfs"], atol=0.01)
    np.testing.assert_allclose(at_rest["edf"], at_rest["edf_late_last"], atol=0.01)


def test_late_work_at_the_back_saves_edf_from_its_collapse(schedulers: dict[str, Any]) -> None:
    # Plain EDF is worse than first come, first served once the servers cannot keep up: late work
    # goes on being the most urgent.
    for policy, rate in ((SMALL_MODELS, 400.0), (SMALL_MODELS, 600.0)):
        edf = attainment(schedulers["edf"], policy, rate)
        late_last = attainment(schedulers["edf_late_last"], policy, rate)
        assert np.all(late_last >= edf)
        assert late_last.mean() > edf.mean() + 0.1
    policy = baselines.make("round_robin")
    edf, late_last, fcfs = (
        attainment(schedulers[name], policy, 30.0) for name in ("edf", "edf_late_last", "fcfs")
    )
    assert np.all(edf < fcfs)
    assert np.all(late_last > edf)
    assert late_last.mean() > fcfs.mean()


def test_late_last_is_no_worse_than_edf_at_any_load(schedulers: dict[str, Any]) -> None:
    for rate in (50.0, 200.0):
        edf = attainment(schedulers["edf"], SMALL_MODELS, rate)
        late_last = attainment(schedulers["edf_late_last"], SMALL_MODELS, rate)
        assert late_last.mean() >= edf.mean() - 0.01
