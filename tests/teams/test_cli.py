"""`inframind team`, as a person types it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inframind_gym.cli import app
from inframind_gym.configs import find_config
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.runs import FORMS, Event, Run, RunLog, RunStore
from tests.live.vllm_server.fake import Answer, FakeServer
from tests.teams.coordination.runs import HashedWords

pytest.importorskip("langgraph")
QUESTION = "How large is a KV block?"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, no variables of the team, and no encoder, which takes half a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("MODEL_PATH", "MAX_CONTEXT_LENGTH", "ENABLE_MULTI_AGENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(retrieval, "available", HashedWords)


def team(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["team", *words], input=stdin)


def ask(*words: str, stdin: str | None = None) -> Result:
    return team("run", "coordination", *words, stdin=stdin)


def newest(runs: str = "results/teams.sqlite") -> tuple[Run, dict[str, Any], list[Event]]:
    """The last run, its summary and its events."""
    with RunStore(runs, must_exist=True) as store:
        found = store.list_runs()[0]
        assert found.summary is not None
        events = store.events(found.run_id)
    if found.team in FORMS:  # what comparisons draw
        kind, keys = FORMS[found.team]
        steps = [event.data for event in events if event.kind == kind]
        assert len(steps) > 3 and set(keys) <= steps[0].keys()
    return found, found.summary, events


def test_runs_are_listed_and_shown() -> None:
    output = "\x1b[31mred\x9b0m :warning:"  # of a model
    with RunStore() as store, RunLog(store, "assignment", {"provider": "simulated"}) as log:
        log.append("llm_attempt", {"n": 1})
        figures = {"calls": 100, "cost_usd": 0.05, "unpriced_models": ["a"], "output": output}
        log.finish("complete", figures)
    done = team("list")
    assert done.exit_code == 0 and re.search(rf"{log.run_id}.* 0\.0500 \+ unpriced", done.output)
    done = team("show", "--events")
    assert "simulated" in done.output and 'llm_attempt      {"n": 1}' in done.output
    assert "[31mred0m :warning:" in done.output  # it does not steer the terminal
    for words in (("show", "zzz"), ("list", "--runs", "none.sqlite")):
        done = team(*words)
        assert done.exit_code == 2 and "error" in done.output


WEIGHTS = r" weights: \[.*\]", " weights: [0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125]"


@pytest.mark.parametrize(
    ("name", "pattern", "wrong", "said"),
    [
        ("coordination", *WEIGHTS, "as many weights as factors"),
        ("token_budget", *WEIGHTS, "as many weights as factors"),
        ("assignment", "gpt-4o-mini", "gpt-4o-mino", "openai.model: unknown model with a price"),
    ],
)
def test_wrong_constants_are_named_with_their_file(
    name: str, pattern: str, wrong: str, said: str
) -> None:
    shipped = find_config("teams", name).read_text(encoding="utf-8")
    Path("mine.yaml").write_text(re.sub(pattern, wrong, shipped), encoding="utf-8")
    done = CliRunner().invoke(app, ["check", "mine.yaml"])
    assert done.exit_code == 2 and "mine.yaml" in done.output and said in done.output


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("assignment", "iterations", "0"),
        ("assignment", "seed", "-1"),
        ("token-budget", "budget", "10"),
        ("token-budget", "strategy", "os:system"),
    ],
)
def test_wrong_settings_are_named_and_leave_no_run(name: str, option: str, value: str) -> None:
    done = team("run", name, f"--{option}={value}")
    assert (done.exit_code, option in done.output) == (2, True), done.output
    assert not Path("results").exists()


# Assignment


def test_without_arguments_a_run_demonstrates_what_it_learned() -> None:
    done = team("run", "assignment", "--runs", "mine.sqlite")
    assert done.exit_code == 0, done.output
    for figure in ("mean adjusted reward", "400", "Routing policy", "Live demo", "health: ok"):
        assert figure in done.output
    run, summary, events = newest("mine.sqlite")
    assert done.output.splitlines()[-1] == f"inframind team show {run.run_id} --runs mine.sqlite"
    assert (run.status, summary["simulated"], summary["calls"]) == ("complete", True, 400)
    # No agent has twice its fair share of the tasks, nor stays far from it.
    assert max(summary["assignments"].values()) < 2 * 200 / 4
    assert summary["mean_imbalance"] < 0.7
    assert sum(event.kind == "request" for event in events) == 4


# Token budget


def test_without_a_task_a_run_demonstrates() -> None:
    done = team("run", "token-budget")
    assert done.exit_code == 0
    assert " ".join(done.output.split()).endswith("by the proxies, unpriced; ended by stop")
    run, _, events = newest()
    assert (run.team, run.status) == ("token-budget", "complete")
    assert (run.settings["budget"], run.settings["provider"]) == (20_000, "simulated")
    # A critic's claim is in a column of its own: no gain is shown where quality fell.
    traces = [event.data for event in events if event.kind == "trace"]
    reviews = [i for i, trace in enumerate(traces) if trace["agent"] == "critic" and i]
    falls = [i for i in reviews if traces[i]["quality"] < traces[i - 1]["quality"]]
    assert falls and traces[falls[0]]["quality_delta"] > 0.0
    line = next(line for line in done.output.splitlines() if line.startswith("critic"))
    change = traces[falls[0]]["quality"] - traces[falls[0] - 1]["quality"]
    assert f"{change:+.0f}" in line and "+" not in line


# Coordination


@pytest.mark.parametrize(
    ("words", "fact"), [((QUESTION,), "16 tokens"), ((), "continuous batching")]
)
def test_a_question_is_answered_with_its_sources(words: tuple[str, ...], fact: str) -> None:
    done = ask(*words)
    assert done.exit_code == 0, done.output
    for said in ("[simulated]", fact, "\nsources\n  [1] ", "\nroute > ", "context "):
        assert said in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    run, summary, events = newest()
    assert (run.status, summary["ended_by"]) == ("complete", "answer")
    assert {"decision", "answer"} <= {event.kind for event in events}


def test_texts_of_ones_own_do_not_steer_the_terminal() -> None:
    Path("texts").mkdir()
    text = "A block \x1b[31mholds\x07 16 :warning: tokens [b]here[/b].\n"
    Path("texts", "notes [draft] :key:.md").write_text(text)
    done = ask("--corpus", "texts", "How many tokens does a block hold?")
    assert done.exit_code == 0, done.output
    assert "A block [31mholds 16 :warning: tokens [b]here[/b] [1]." in done.output
    assert "[1] notes [draft] :key:.md\n" in done.output


def test_it_says_that_no_model_answered() -> None:
    with FakeServer(lambda request, number: Answer(status=400)) as server:
        done = ask("--provider", f"{server.url}/v1", "--model", "m", QUESTION)
    assert done.exit_code == 0 and "no model answered any call" in done.output, done.output


def test_variables_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALLBACK_TO_BASIC_RAG", "false")
    assert ask("--set", "fault=router:garbage", QUESTION).exit_code == 1
    assert newest()[0].status == "failed"
    monkeypatch.setenv("MAX_CONTEXT_LENGTH", "262144")
    assert "MAX_CONTEXT_LENGTH" in ask(QUESTION).output


@pytest.mark.parametrize(
    ("said", "ended", "status"),
    [
        ("y\n", "answer after", "complete"),
        ("n\n", "stopped after", "complete"),
        ("", "go on?", "interrupted"),  # nobody answers
    ],
)
def test_a_person_is_asked_at_the_terminal(said: str, ended: str, status: str) -> None:
    done = ask("--set", "interrupt_before=human", QUESTION, stdin=said)
    assert "before human: " in done.output and ended in done.output
    assert newest()[0].status == status
    assert done.exit_code == (130 if status == "interrupted" else 0)
