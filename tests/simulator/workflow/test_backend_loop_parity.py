"""The driver over the surrogate as a backend does what the compiled loop does, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inframind_gym.simulator.workflow.topology import FINAL, TOPOLOGIES
from tests.simulator.workflow.backend_play import MODELS, both, same_sweep

QUERIES = 30
# Of those that are lost last the second attempt is in vain, too; then nothing can be decided.
ALL_DOWN = [
    {"kind": "down", "model": m, "from_s": 4.0 + i, "to_s": 30.0} for i, m in enumerate(MODELS)
]
SECONDS = st.floats(0.5, 30.0)


@st.composite
def faults(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        fault: dict[str, Any] = {
            "kind": draw(st.sampled_from(["down", "down", "slow", "telemetry"]))
        }
        if draw(st.booleans()):
            fault["model"] = draw(st.sampled_from(MODELS))
            fault["from_s"] = draw(SECONDS)
            fault["to_s"] = fault["from_s"] + draw(SECONDS)
        else:
            fault["every_s"], fault["lasts_s"] = draw(SECONDS), draw(SECONDS)
        if fault["kind"] == "slow":
            fault["factor"] = draw(st.floats(0.5, 4.0))
        if fault["kind"] == "telemetry" and draw(st.booleans()):
            fault["delay_s"] = draw(SECONDS)
        found.append(fault)
    return found


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    drawn = draw(faults())
    down = [] if drawn else draw(st.sampled_from([[], ["llama-8b", "deepseek-32b"]]))
    found: dict[str, Any] = {"faults": drawn, "down_models": down, "call_attempts": 2}
    for name, values in {
        "level": ["executor", "joint", "planner"],
        "execution": ["parallel", "sequential"],
        "scheduler": ["edf", "edf_late_last", "fcfs"],
        "background": ["static_mix", "round_robin", "least_loaded"],
        "observation": ["index", "full"],
        "system_features": [["queue", "e2e"], ["queue", "e2e", "kv"]],
        "call_timeout_s": [None, 7.3],
    }.items():
        found[name] = draw(st.sampled_from(values))
    return found


def plain(level: str, background: str) -> dict[str, Any]:
    """Options under which nothing fails."""
    return {"faults": [], "down_models": [], "level": level, "background": background}


@settings(max_examples=50, deadline=None)
@given(
    options=arguments(),
    seed=st.integers(0, 99),
    rate_per_min=st.sampled_from([20.0, 300.0, 600.0]),
    tagged=st.booleans(),
)
@example(options=plain("executor", "static_mix"), seed=1, rate_per_min=300.0, tagged=True)
@example(options=plain("joint", "round_robin"), seed=2, rate_per_min=300.0, tagged=True)
@example(options=plain("executor", "least_loaded"), seed=3, rate_per_min=300.0, tagged=True)
@example(options=plain("joint", "static_mix"), seed=4, rate_per_min=300.0, tagged=False)
@example(options=plain("planner", "static_mix"), seed=5, rate_per_min=300.0, tagged=False)
@example(
    options={**plain("executor", "static_mix"), "faults": ALL_DOWN, "call_attempts": 2},
    seed=3,
    rate_per_min=300.0,
    tagged=False,
)
def test_every_option(
    options: dict[str, Any], seed: int, rate_per_min: float, tagged: bool
) -> None:
    one_query = tagged and options["level"] != "planner"
    ours, theirs = both(one_query, seed, rate_per_min, **options)
    same_sweep(ours, theirs)
    assert 0 < len(ours.completed) <= QUERIES
    if options["faults"] == ALL_DOWN:
        times, failed = ours.contexts["time_s"][:-1], ours.calls[ours.calls["failed"] == 1]
        assert (times < 8.0).any() and (times >= 30.0).any()
        assert not ((times >= 8.0) & (times < 30.0)).any()
        assert ours.contexts["models_up"][:-1].min() > 0
        assert set(failed["finish_s"].tolist()) <= {4.0, 5.0, 6.0, 7.0, 8.0}
        assert (failed["submit_s"] == 8.0).any()
    if not one_query:
        assert len(ours.completed) == QUERIES
        if not options["faults"] and options.get("call_timeout_s") is None:
            assert 0 < ours.completed["solved"].sum() < QUERIES
    if options["level"] != "executor" and not one_query:
        assert set(ours.completed["topology"]) == set(range(len(TOPOLOGIES)))


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
