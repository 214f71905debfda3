"""Load matters: choices make queues, queues make latency, and schedulers share it out.

All comparisons are paired: the same seeds, so the same arrivals, tasks, budgets and plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.policies import Policy, resolve_policy
from tests.envs.streams import Cycle, make_batch, on_time, sweep

SEEDS = (0, 1, 2, 3, 4)
# Policies that the load does not move.
FIXED = ("static:deepseek-32b:Concise", "static:llama-3b:Concise", "round_robin", "static_mix")


@pytest.fixture(scope="module")
def env() -> Any:
    return make_batch(len(SEEDS), num_queries=200)


def mean_latency_s(env: Any, policy: Policy, rate: float) -> NDArray[np.float64]:
    """Mean latency of each seed's sweep."""
    rows = sweep(env, policy, SEEDS, arrival_rate_per_min=rate)
    return np.array([records["latency_s"].mean() for records in rows])


@pytest.mark.parametrize("name", FIXED)
def test_queues_of_a_fixed_policy_grow_with_the_load_and_an_adaptive_one_s_do_not(
    env: Any, name: str
) -> None:
    fixed, adaptive = resolve_policy(name), resolve_policy("least_loaded")
    at_10, at_50, at_200 = (mean_latency_s(env, fixed, rate) for rate in (10.0, 50.0, 200.0))
    # In every seed, unless 50 per minute fill the servers; how much depends on the load at 10.
    assert np.all(at_50 > 1.02 * at_10)
    assert at_200.mean() > 1.02 * at_50.mean() and at_200.mean() > 1.25 * at_10.mean()
    if name == "static_mix":
        of_fixed, of_adaptive = (mean_latency_s(env, one, 100.0) for one in (fixed, adaptive))
        assert np.all(of_fixed > 4.0 * of_adaptive)


@pytest.mark.parametrize(
    ("rate", "better", "worse"),
    [
        (150.0, "edf", "fcfs"),  # queues, but nearly every deadline can be met
        (400.0, "edf_late_last", "edf"),  # for plain EDF late work goes on being the most urgent
    ],
)
def test_the_right_scheduler_meets_more_budgets(rate: float, better: str, worse: str) -> None:
    small_models = Cycle([7, 10, 13])  # qwen-14b, llama-8b, llama-3b in turn, Concise
    met = []
    for scheduler in (better, worse):
        env = make_batch(len(SEEDS), num_queries=500, scheduler=scheduler)
        rows = sweep(env, small_models, SEEDS, arrival_rate_per_min=rate)
        met.append(np.array([on_time(records) for records in rows]))
    assert np.all(met[0] > met[1]) and met[0].mean() > met[1].mean() + 0.1
