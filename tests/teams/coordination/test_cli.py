"""`inframind team run coordination`, as a person types it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inframind_gym.cli import app
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.coordination.scenarios import SCENARIOS
from inframind_gym.teams.runs import RunStore
from tests.teams.coordination.runs import HashedWords

QUESTION = "How large is a KV block?"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, no variables of the team, and no encoder, which takes half a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("MODEL_PATH", "MAX_CONTEXT_LENGTH", "ENABLE_MULTI_AGENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(retrieval, "available", HashedWords)


def ask(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["team", "run", "coordination", *arguments], input=stdin)


def summary() -> tuple[str, dict[str, Any]]:
    with RunStore("results/teams.sqlite", must_exist=True) as store:
        found = store.list_runs("coordination")[0]
    assert found.summary is not None
    return found.status, found.summary


def test_a_question_is_answered_with_its_sources() -> None:
    done = ask(QUESTION)
    assert done.exit_code == 0, done.output
    for said in ("[simulated]", "16 tokens", "\nsources\n  [1] ", "\nroute > ", "context "):
        assert said in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    status, figures = summary()
    assert (status, figures["ended_by"]) == ("complete", "answer")
    shown = CliRunner().invoke(app, ["team", "show", "--events"])
    assert " decision " in shown.output and " answer " in shown.output


def test_without_arguments_it_shows_what_it_does() -> None:
    done = ask()
    assert done.exit_code == 0 and "\nsources\n  [1] " in done.output, done.output


def test_texts_of_ones_own_do_not_steer_the_terminal() -> None:
    Path("texts").mkdir()
    text = "A block \x1b[31mholds\x07 16 :warning: tokens [b]here[/b].\n"
    Path("texts", "notes [draft] :key:.md").write_text(text)
    done = ask("--corpus", "texts", "How many tokens does a block hold?")
    assert done.exit_code == 0, done.output
    assert "A block [31mholds 16 :warning: tokens [b]here[/b] [1]." in done.output
    assert "[1] notes [draft] :key:.md\n" in done.output


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_and_their_checks(scenario: str) -> None:
    done = ask("--scenario", scenario)
    missed = [line for line in done.output.splitlines() if line.startswith("MISSED")]
    # What the design claims and the team does not reach: see docs/coordination.md.
    known = {
        "S5": ["MISSED a fifth more passages found"],
        "S6": ["MISSED RTX-4090-LAPTOP: decode >= 100 tok/s"],
        "S7": ["MISSED answered"],  # what lies behind the cut is read again: 73 s
        "S8": ["MISSED supervisor's tokens 50 % fewer"],
    }
    assert missed == known.get(scenario, []), done.output
    assert done.exit_code == (1 if missed else 0)
    assert "ok     " in done.output
    assert summary()[1]["scenario"] == scenario
    if scenario == "S6":  # 4.4 GB of weights, 9.7 GB of keys and values, buffers
        assert "RTX-4090-LAPTOP: 89 tok/s decode, 15,655" in done.output
        assert " 15.2 GB (estimate)" in done.output


def test_variables_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALLBACK_TO_BASIC_RAG", "false")
    assert ask("--set", "fault=router:garbage", QUESTION).exit_code == 1
    assert summary()[0] == "failed"
    monkeypatch.setenv("MAX_CONTEXT_LENGTH", "262144")
    assert "MAX_CONTEXT_LENGTH" in ask(QUESTION).output


@pytest.mark.parametrize(("said", "ended"), [("y\n", "answer after"), ("n\n", "stopped after")])
def test_a_person_is_asked_at_the_terminal(said: str, ended: str) -> None:
    done = ask("--set", "interrupt_before=human", QUESTION, stdin=said)
    assert "before human: " in done.output
    assert ended in done.output
