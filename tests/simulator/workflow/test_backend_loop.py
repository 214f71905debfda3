"""The driver on a scripted backend: latencies, failures and outages that can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.workflow.backend import Call, Completion, Reply, Telemetry
from inframind_gym.simulator.workflow.backend_loop import HOLD_S
from inframind_gym.simulator.workflow.state import FINAL, FIRST, SECOND
from tests.simulator.workflow.backend_play import NUM_MODELS, Failing, Outage, Scripted, by_node

LATENCY_S = (8.0, 4.0, 2.0, 1.0, 0.5)  # by model


def by_model(call: Call) -> Reply:
    """A right answer of 100 tokens."""
    return Reply(LATENCY_S[call.model])


def test_what_a_backend_is_told() -> None:
    scripted = Scripted(by_model, topology="Debate", num_agents=2)
    sweep = scripted.play(by_node([0, 1, 2, 2], strategy=2), budget_s=50.0)
    calls = scripted.opened[0].calls
    assert [call.id for call in calls] == [0, 1, 2, 3, 4]
    assert [(call.node, call.phase) for call in calls] == [
        *((node, FIRST) for node in range(4)),
        (0, FINAL),
    ]
    assert [call.strategy for call in calls] == [2, 2, 2, 2, 0]
    assert [call.role for call in calls] == [*sweep.completed[0]["role"][:4], -1]
    deadline_s = sweep.completed[0]["arrival_s"] + 50.0
    assert {call.deadline_s for call in calls} == {deadline_s}
    assert {call.priority for call in calls} == {deadline_s}  # EDF
    assert {call.max_tokens for call in calls} == {2048}
    assert sweep.completed[0]["prompt_tokens"] == sum(call.prompt_tokens for call in calls)


def fails(*which: int) -> Callable[[Call], Reply]:
    """The calls with these ids fail."""
    return lambda call: Reply(LATENCY_S[call.model], failed=call.id in which)


def test_a_failed_call_is_a_wrong_answer() -> None:
    sweep = Scripted(fails(1), topology="Chain", num_agents=3).play(by_node([1]), budget_s=50.0)
    (query,) = sweep.completed
    assert query["latency_s"] == pytest.approx(4 * 4)
    assert sweep.costs.sum() == pytest.approx(query["cost"]) == pytest.approx(16 / 50)
    assert (query["right"], query["solved"], query["failed_calls"]) == (0b101, 1, 1)
    assert query["calls"] == len(sweep.calls) == 4
    np.testing.assert_array_equal(sweep.calls["failed"], [0, 1, 0, 0])
    np.testing.assert_array_equal(sweep.calls["right"], [1, 0, 1, 1])
    np.testing.assert_array_equal(sweep.calls["output_tokens"], [100, 0, 100, 100])
    assert query["output_tokens"] == 300


def test_nobody_reads_a_node_whose_call_failed() -> None:
    scripted = Scripted(fails(1), topology="FullConnected", num_agents=3)
    scripted.play(by_node([1]))
    assert [call.reads for call in scripted.opened[0].calls] == [(), (0,), (0,), (0, 2)]


@pytest.mark.parametrize("phase", [FIRST, SECOND, FINAL])
def test_retries(phase: int) -> None:
    at = {FIRST: 0, SECOND: 1, FINAL: 2}[phase]
    scripted = Scripted(fails(at), topology="Reflection", retries=1)
    sweep = scripted.play(by_node([1]))
    (query,) = sweep.completed
    calls = scripted.opened[0].calls
    assert [call.phase for call in calls] == sorted([FIRST, SECOND, FINAL, phase])
    assert (query["right"], query["solved"], query["failed_calls"]) == (1, 1, 1)
    assert query["latency_s"] == pytest.approx(4 * 4)
    assert query["calls"] == len(sweep.calls) == 4
    assert query["prompt_tokens"] == sum(call.prompt_tokens for call in calls)
    exhausted = Scripted(fails(at, at + 1), topology="Reflection", retries=1).play(by_node([1]))
    assert exhausted.completed[0]["failed_calls"] == 2
    assert exhausted.completed[0]["solved"] == (phase != FINAL)
    assert exhausted.completed[0]["right"] == (phase != SECOND)


def test_what_cannot_succeed_is_not_sent_again() -> None:
    def rejected(call: Call) -> Reply:
        return Reply(LATENCY_S[call.model], failed=call.id == 0, retryable=False)

    scripted = Scripted(rejected, topology="Chain", num_agents=2, retries=2)
    (query,) = scripted.play(by_node([1])).completed
    assert len(scripted.opened[0].calls) == query["calls"] == 3
    assert (query["right"], query["solved"], query["failed_calls"]) == (0b10, 1, 1)


def arrival_s(seed: int) -> float:
    """When the query of a sweep of one arrives."""
    return float(Scripted(by_model).play(by_node([0]), seed=seed).completed[0]["arrival_s"])


def test_a_server_that_is_killed_costs_only_its_own_calls() -> None:
    down_s = arrival_s(4) + 3.0
    scripted = Scripted(
        by_model, outages=(Outage(0, down_s),), retries=1, topology="Chain", num_agents=2
    )
    sweep = scripted.play(by_node([0]), seed=4)
    (query,) = sweep.completed
    assert [call.model for call in scripted.opened[0].calls] == [0, 1, 1, 1]
    np.testing.assert_array_equal(sweep.contexts["models_up"][:2], [0b11111, 0b11110])
    assert query["latency_s"] == pytest.approx(3 + 4 + 4 + 4)
    assert (query["solved"], query["failed_calls"], query["final_model"]) == (1, 1, 1)
    assert list(query["model"][:2]) == [1, 1]  # who answered, not who was asked
    assert list(sweep.calls["model"]) == [0, 1, 1, 1]


def test_a_server_that_returns_is_used_again() -> None:
    began_s = arrival_s(4)
    outage = Outage(0, began_s + 3.0, began_s + 5.0)
    scripted = Scripted(by_model, outages=(outage,), retries=1, topology="Chain", num_agents=2)
    sweep = scripted.play(by_node([0]), seed=4)
    assert [call.model for call in scripted.opened[0].calls] == [0, 1, 0, 1]
    np.testing.assert_array_equal(sweep.contexts["models_up"][:2], [0b11111, 0b11111])


def test_decisions_wait_while_every_model_is_down() -> None:
    outages = tuple(Outage(model, 0.0, 20.0) for model in range(5))
    scripted = Scripted(by_model, outages=outages, num_queries=40)
    sweep = scripted.play(by_node([4]), rate_per_min=200.0)
    assert (sweep.contexts["time_s"] >= 20.0).all()
    assert sweep.contexts["time_s"][0] < 20.0 + HOLD_S
    assert sweep.completed["failed_calls"].sum() == 0
    assert len(sweep.completed) == 40
    np.testing.assert_allclose(
        sweep.completed["latency_s"], sweep.completed["finish_s"] - sweep.completed["arrival_s"]
    )


def test_patience_with_models_that_are_down_ends() -> None:
    outages = tuple(Outage(model, 0.0) for model in range(5))
    scripted = Scripted(by_model, outages=outages, patience_s=30.0)
    with pytest.raises(InfraMindError, match="no model of the pool has been up for 30 s"):
        scripted.play(by_node([4]))
    began_s = arrival_s(0)
    assert began_s + 30.0 <= scripted.opened[0].now_s() <= began_s + 30.0 + HOLD_S


def test_a_workflow_that_loses_all_its_models_still_ends() -> None:
    outages = tuple(Outage(model, arrival_s(4) + 1.0) for model in range(5))
    scripted = Scripted(by_model, outages=outages, topology="IO", num_agents=3, retries=2)
    (query,) = scripted.play(by_node([0, 1, 2]), seed=4).completed
    assert (query["solved"], query["right"]) == (0, 0)
    assert query["failed_calls"] == query["calls"] == (3 + 1) * (1 + 2)
    assert query["latency_s"] == pytest.approx(1.0)


class GoingOn(Failing):
    """Servers that go on while the agent thinks, like live ones: ends are noticed late."""

    def think(self) -> None:
        self._now_s += 0.03

    def wait(self, until_s: float | None) -> list[Completion]:
        now_s = self._now_s
        completions = super().wait(until_s)
        self._now_s = max(self._now_s, now_s)
        return completions

    def telemetry(self) -> Telemetry:
        empty = [0.0] * NUM_MODELS
        return Telemetry(1, [self._now_s - m for m in range(NUM_MODELS)], empty, empty, empty)

    def models_up(self) -> int:
        return 0b00111


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_a_slow_agent(execution: str) -> None:
    """Latencies are those of the calls and of all waiting, however late they were noticed."""

    def decide(context: np.void, observation: NDArray[np.float32]) -> NDArray[np.int64]:
        backend = scripted.opened[-1]
        assert isinstance(backend, GoingOn)
        backend.think()
        return np.array([int(context["query"]) % 3 * 3])

    scripted = Scripted(
        lambda call: Reply(0.02),
        kind=GoingOn,
        execution=execution,
        topology="Chain",
        num_agents=2,
        num_queries=12,
    )
    sweep = scripted.play(decide, rate_per_min=1200.0, budget_s=10.0)
    assert (sweep.contexts["models_up"] == 0b111).all()
    age_s = sweep.contexts["telemetry_age_s"]
    np.testing.assert_allclose(age_s, 2.0, atol=0.1)  # the oldest of those that are up
    assert (np.diff(sweep.contexts["time_s"]) >= 0).all()
    assert len(sweep.completed) == 12 and (sweep.completed["solved"] == 1).all()
    for query in sweep.completed:
        own = sweep.calls[sweep.calls["query"] == query["query"]]
        np.testing.assert_allclose(own["finish_s"] - own["submit_s"], [0.02] * 3)
        assert own["submit_s"][0] >= query["arrival_s"]
        assert (own["submit_s"][1:] >= own["finish_s"][:-1]).all()
        if execution == "parallel":
            assert query["latency_s"] == own["finish_s"][2] - query["arrival_s"]
            assert query["latency_s"] >= 3 * 0.02 + 2 * 0.03 - 1e-9
        else:
            assert 2 * 0.02 <= query["latency_s"] <= own["finish_s"][1] - query["arrival_s"]
