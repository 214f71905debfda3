"""Training: a graph of five nodes, fifty times around, everything in the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from inframind_gym.configs import shipped_file
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.teams.assignment import graph, rules, simulate
from inframind_gym.teams.assignment.graph import WorkflowState, initial_state, should_continue
from inframind_gym.teams.assignment.model import AgentRole, LLMProvider
from inframind_gym.teams.assignment.settings import load_team
from inframind_gym.teams.assignment.states import TRAINING, StateMachine
from inframind_gym.teams.assignment.training import Options, Run, make_run
from inframind_gym.teams.llm.prices import shipped_prices

Data = dict[str, Any]


class Notes:
    """A log in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Data]] = []

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        self.events.append((kind, dict(data)))
        return len(self.events)

    def of(self, kind: str) -> list[Data]:
        return [data for name, data in self.events if name == kind]


def trained(notes: Notes | None = None, **options: Any) -> Run:
    run = make_run(Options(**options), log=notes)
    run.train()
    return run


def test_the_data_of_the_team() -> None:
    assert [role.value for role in AgentRole] == ["researcher", "analyst", "coder", "validator"]
    assert [provider.value for provider in LLMProvider] == ["openai", "anthropic"]
    tasks = load_team().tasks
    assert len(tasks) == 11
    assert {task.task_type for task in tasks} == set(rules.TASK_TYPES)
    assert list(get_type_hints(WorkflowState)) == [
        *("iteration", "max_iterations", "task", "assignment", "action_idx", "load_state"),
        *("agent_output", "llm_response_meta", "scores", "reward", "adjusted_reward"),
        *("load_penalty", "rewards_log", "scores_log", "assignments_log", "load_log"),
    ]
    state = initial_state()
    assert (state["iteration"], state["max_iterations"], state["load_state"]) == (0, 50, "balanced")


def test_simulated_prices_are_list_prices(tmp_path: Path) -> None:
    listed, team = shipped_prices().models["claude-3-5-haiku-latest"], simulate.team()
    assert team.usd_input[1] * 1e6 == pytest.approx(listed.input_usd_per_mtok)
    assert team.usd_output[1] * 1e6 == pytest.approx(listed.output_usd_per_mtok)
    shipped = shipped_file("teams/assignment.yaml").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(shipped.replace("claude-3-5-haiku-latest", "gpt-4o-mino"))
    with pytest.raises(ConfigError, match="Did you mean 'gpt-4o-mini'"):
        simulate.team(tmp_path / "own.yaml")


def test_fifty_tasks_are_a_hundred_calls() -> None:
    notes = Notes()
    run = trained(notes)
    assert run.final is not None
    assert run.final["iteration"] == 50
    assert len(notes.of("llm_attempt")) == len(notes.of("llm_request")) == 100
    assert run.service.call_count == run.costs["calls"] == 100
    by_agent = run.service.get_cost_summary()["by_agent"]
    assert by_agent["judge"]["calls"] == 50
    assert all(event["simulated"] for event in notes.of("llm_attempt"))
    summary = run.summary()
    assert summary["final_epsilon"] == pytest.approx(0.98**50)
    assert summary["mean_adjusted_reward"] == pytest.approx(sum(run.final["rewards_log"]) / 50)
    assert summary["cost_usd"] == pytest.approx(sum(c["cost_usd"] for c in run.service.call_log))
    assert summary["elapsed_s"] == pytest.approx(sum(c["latency_s"] for c in run.service.call_log))
    assert sum(summary["assignments"].values()) == 50


def test_each_row_of_the_log_follows_from_the_rules() -> None:
    notes = Notes()
    run = trained(notes, seed=4)
    window: list[str] = []
    totals = dict.fromkeys(rules.AGENTS, 0.0)
    for row in notes.of("iteration"):
        counts = rules.window_counts([rules.AGENTS.index(a) for a in window[-8:]] or [-1])
        agent = rules.AGENTS.index(row["agent_id"])
        assert row["load_state"] == rules.LOAD_STATES[int(rules.load_state(counts))]
        assert row["load_penalty"] == rules.load_penalty(counts, agent)  # before it is recorded
        scores = [row["scores"][criterion] for criterion in rules.CRITERIA]
        assert row["raw_reward"] == rules.raw_reward(scores, row["cost_usd"], row["latency_s"])
        assert row["adjusted_reward"] == max(0.0, row["raw_reward"] - row["load_penalty"])
        assert row["action_idx"] == 2 * agent + rules.PROVIDERS.index(row["provider"])
        window.append(row["agent_id"])
        after = rules.window_counts([rules.AGENTS.index(a) for a in window[-8:]])
        assert row["next_load_state"] == rules.LOAD_STATES[int(rules.load_state(after))]
        assert row["imbalance"] == rules.imbalance(after)
        totals[row["agent_id"]] += row["adjusted_reward"]
    for name, agent_state in run.agents.items():
        assert agent_state.total_reward == pytest.approx(totals[name])
        assert agent_state.completed_tasks == window.count(name)
        assert agent_state.avg_quality == pytest.approx(totals[name] / window.count(name))


def test_three_corrections_can_be_seen() -> None:
    rows = []
    for seed in range(3):
        notes = Notes()
        trained(notes, seed=seed, iterations=100)
        rows += notes.of("iteration")
    assert any(row["row_shift"] and row["load_state"] != "balanced" for row in rows)
    assert any(row["load_penalty"] > 0.0 for row in rows)
    assert any(row["cooled_down"] for row in rows)
    balanced = [row for row in rows if row["load_state"] == "balanced"]
    assert not any(row["row_shift"] or row["cooled_down"] for row in balanced)


def test_states_follow_the_arrows() -> None:
    notes = Notes()
    run = trained(notes, iterations=3)
    run.machine.enter("Visualisation")
    states = [event["state"] for event in notes.of("state")]
    around = [
        *("PickingTask", "QueryingLoad", "AssigningAgent", "ExecutingLLM", "JudgingOutput"),
        *("ComputingPenalty", "RecordingLoad", "UpdatingRL", "CheckingDone"),
    ]
    assert states == ["Setup", "Initialized", "GraphCompiled", *around * 3, "Visualisation"]
    with pytest.raises(InfraMindError, match="no arrow leads from Visualisation to Demo"):
        run.machine.enter("Demo")
    assert set(TRAINING) >= {state for after in TRAINING.values() for state in after} - {"End"}
    with pytest.raises(InfraMindError, match="no arrow"):
        StateMachine("production", None).enter("Executing")


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = trained(seed=1), trained(seed=1), trained(seed=2)
    assert first.final == again.final
    assert first.final != other.final


def test_langgraph_and_the_plain_loop_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langgraph")
    assert graph.has_langgraph()
    one, two = Notes(), Notes()
    by_graph = trained(one, seed=5)
    monkeypatch.setattr(graph, "has_langgraph", lambda: False)
    by_loop = trained(two, seed=5)
    assert by_graph.final == by_loop.final
    assert [e for e in one.events if e[0] != "llm_attempt"] == [
        e for e in two.events if e[0] != "llm_attempt"
    ]


def test_lists_of_the_state_are_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[float], int]] = []
    kept = should_continue

    def watch(state: WorkflowState) -> bool:
        seen.append((state["rewards_log"], len(state["rewards_log"])))
        return kept(state)

    monkeypatch.setattr(graph, "should_continue", watch)
    trained(iterations=5)
    assert len({id(log) for log, _ in seen}) >= 5
    assert all(len(log) == length for log, length in seen)


def test_arrivals_change_the_tasks() -> None:
    def share(arrivals: str) -> float:
        run = trained(arrivals=arrivals, iterations=100, router="round_robin")
        assert run.final is not None
        types = [entry["task_type"] for entry in run.final["assignments_log"]]
        return types.count("coding") / len(types)

    assert share("skewed") > 0.6 > 0.4 > share("uniform")
