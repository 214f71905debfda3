"""The driver over the surrogate as a backend does what the compiled loop does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.simulator.workflow.topology import FINAL, TOPOLOGIES
from tests.simulator.workflow.backend_play import both, same_sweep

QUERIES = 30


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
    same_sweep(ours, theirs)


@pytest.mark.parametrize("background", ["static_mix", "round_robin", "least_loaded"])
@pytest.mark.parametrize("level", ["executor", "joint"])
def test_one_query_among_background_traffic(background: str, level: str) -> None:
    ours, theirs = both(True, 5, 15.0, level=level, background=background)
    assert len(ours.completed) > 1
    assert len(ours.calls) > len(ours.statuses)
    same_sweep(ours, theirs)


@pytest.mark.parametrize("background", ["static_mix", "least_loaded"])
def test_plans_alone(background: str) -> None:
    same_sweep(*both(False, 8, 150.0, level="planner", background=background))


def test_all_telemetry_full_observations_and_models_that_are_down() -> None:
    all_of_it = {"observation": "full", "system_features": ["queue", "e2e", "kv"]}
    same_sweep(*both(False, 13, 120.0, down_models=["llama-8b", "deepseek-32b"], **all_of_it))


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
@pytest.mark.parametrize(("call_timeout_s", "attempts"), [(3.07, 1), (12.3, 3)])
def test_clients_that_abort_calls_and_send_them_again(
    execution: str, call_timeout_s: float, attempts: int
) -> None:
    client = {"call_timeout_s": call_timeout_s, "call_attempts": attempts}
    ours, theirs = both(False, 3, 600.0, level="joint", execution=execution, **client)
    same_sweep(ours, theirs)
    calls, completed = ours.calls, ours.completed
    failed = calls[calls["failed"] == 1]
    assert completed["failed_calls"].sum() == len(failed) > 5
    np.testing.assert_allclose(failed["finish_s"] - failed["submit_s"], call_timeout_s)
    assert not failed["output_tokens"].any() and not failed["right"].any()
    assert (calls["finish_s"] - calls["submit_s"]).max() <= call_timeout_s + 1e-9
    _, sent = np.unique(calls[["query", "node", "phase"]], return_counts=True)
    assert sent.max() == attempts
    # A failed deciding call solves nothing.
    final = calls[calls["phase"] == FINAL]
    lost = set(completed["query"]) - set(final["query"][final["failed"] == 0])
    assert lost
    assert not completed["solved"][np.isin(completed["query"], list(lost))].any()
