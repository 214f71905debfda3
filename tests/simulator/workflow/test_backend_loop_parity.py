"""The driver over the surrogate as a backend does what the compiled loop does, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.envs.routing.backend_simulation import BackendSimulation, open_surrogate
from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.simulator.workflow.backend import Backend
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.simulator.workflow.backend_play import Sweep, at_random, play

QUERIES = 30


def both(one_query: bool, seed: int, rate_per_min: float, **arguments: Any) -> tuple[Sweep, Sweep]:
    """The same sweep, compiled and driven."""
    defaults = {"num_queries": QUERIES, "observation": "index", "record_calls": True}
    config = env_config({**defaults, **arguments})
    compiled = Simulation(config, 1, one_query=one_query)
    driven = BackendSimulation(config, open_surrogate, one_query=one_query)
    ours, theirs = (
        play(s, at_random(s, seed), seed=seed, rate_per_min=rate_per_min)
        for s in (compiled, driven)
    )
    return ours, theirs


def assert_same(ours: Sweep, theirs: Sweep) -> None:
    """Everything that was seen is equal."""
    assert ours.statuses == theirs.statuses
    for field in ("observations", "contexts", "rewards", "costs", "completed", "calls"):
        left, right = getattr(ours, field), getattr(theirs, field)
        assert left.dtype == right.dtype
        for name in left.dtype.names or (...,):
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{field} {name}")


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
@pytest.mark.parametrize("scheduler", ["edf", "edf_late_last", "fcfs"])
@pytest.mark.parametrize("rate_per_min", [20.0, 600.0])
def test_every_topology(execution: str, scheduler: str, rate_per_min: float) -> None:
    ours, theirs = both(
        False, 3, rate_per_min, level="joint", execution=execution, scheduler=scheduler
    )
    assert len(ours.completed) == QUERIES
    assert set(ours.completed["topology"]) == set(range(len(TOPOLOGIES)))
    assert 0 < ours.completed["solved"].sum() < QUERIES
    assert_same(ours, theirs)


@pytest.mark.parametrize("background", ["static_mix", "round_robin", "least_loaded"])
@pytest.mark.parametrize("level", ["executor", "joint"])
def test_one_query_among_background_traffic(background: str, level: str) -> None:
    ours, theirs = both(True, 5, 15.0, level=level, background=background)
    assert len(ours.completed) > 1
    assert len(ours.calls) > len(ours.statuses)
    assert_same(ours, theirs)


@pytest.mark.parametrize("background", ["static_mix", "least_loaded"])
def test_plans_alone(background: str) -> None:
    assert_same(*both(False, 8, 150.0, level="planner", background=background))


def test_all_telemetry_full_observations_and_models_that_are_down() -> None:
    assert_same(
        *both(
            False,
            13,
            120.0,
            observation="full",
            system_features=["queue", "e2e", "kv"],
            down_models=["llama-8b", "deepseek-32b"],
        )
    )


def test_the_same_sweep_again_and_another_one() -> None:
    config = env_config({"num_queries": 8, "observation": "index", "record_calls": True})
    driven = BackendSimulation(config, open_surrogate, one_query=False)
    first, again, other = (play(driven, at_random(driven, 1), seed=seed) for seed in (1, 1, 2))
    assert_same(first, again)
    assert not np.array_equal(first.completed["task"], other.completed["task"])
    assert isinstance(open_surrogate(driven, 0), Backend)
