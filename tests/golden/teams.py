"""Frozen results of the assignment and token-budget teams: transcripts of their applications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.teams.assignment.app import Options, make_run
from inframind_gym.teams.runs import RunLog, RunStore, compare
from inframind_gym.teams.token_budget.optimum import solve
from inframind_gym.teams.token_budget.settings import load_settings
from tests.golden.net import digest_of
from tests.teams.token_budget.runs import Log, Model, make

TYPES = ("analysis", "coding", "research", "validation")
KEPT = ("iteration", "request", "state", "allocation", "preflight", "reallocation", "trace")
TIMED = ("latency_s", "elapsed_s")  # of answers that are not drawn


def _plain(value: Any, *without: str) -> Any:
    """Return JSON values without some keys."""
    if isinstance(value, dict):
        return {k: _plain(each, *without) for k, each in value.items() if k not in without}
    if isinstance(value, list | tuple):
        return [_plain(each, *without) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _assignment(requests: int = 8, **options: Any) -> str:
    """Train on drawn answers, then serve; digest the log, the last state and the health."""
    log = Log()
    run = make_run(Options(iterations=50, **options), log=log)
    final = run.train()
    system = run.production()
    served = [system.process(f"Do {i}.", TYPES[i % 4]) for i in range(requests)]
    events = [
        (kind, data["state"] if kind == "state" else data)
        for kind, data in log.events
        if kind in KEPT
    ]
    told = [final, run.summary(), served, system.health(), events]
    return digest_of(json.loads(json.dumps(_plain(told))))


def _token_budget(provider: Any = None, **order: Any) -> str:
    """Play a run; digest its log and its summary."""
    log = Log()
    asyncio.run(make(log, provider, **order).run())
    kept = (*KEPT, "agent_step", "malformed", "rating_missing")
    events = [(kind, data) for kind, data in log.events if kind in kept]
    return digest_of(json.loads(json.dumps(_plain([events, log.status, log.summary], *TIMED))))


def _optimum() -> str:
    """Solve the token budget; digest its values to nine digits, off their halves."""
    settings, found = load_settings(), []
    for complexity, price in ((0, 0.001), (1, 0.002), (2, 0.0005)):
        best = solve(settings, complexity, 12_000, price, settings.overhead.self_eval)
        found.append([np.round(best.value + 3.1e-11, 9), best.unit])
    return digest_of(found)


def _terminal() -> str:
    """Run the commands of both teams and compare their runs; digest the JSON of all."""
    told: list[Any] = []

    def command(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["team", *words, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return found

    with TemporaryDirectory() as folder:
        runs = ("--runs", str(Path(folder) / "runs.sqlite"))
        for words in (
            ("assignment", "--seed", "0", "--iterations", "20"),
            ("assignment", "--seed", "0", "--iterations", "20", "--router", "round_robin"),
            ("token-budget", "Write.", "--budget", "9000"),
            ("token-budget", "Write.", "--strategy", "frontload", "--seed", "3"),
        ):
            told.append(_plain(command("run", *words, *runs), "plots"))
        names = [each.pop("run", None) or each.pop("run_id") for each in told]
        with RunStore(runs[1]) as store:
            compared = [compare(store, *pair) for pair in (names[:2], names[2:])]
        told += _plain(json.loads(json.dumps(compared)), "run_id", "settings")
        with RunStore(runs[1]) as store, RunLog(store, "assignment", {"a": 1}) as log:
            log.append("x", {"n": 1})
            log.finish("complete", {"calls": 1})
            found = store.get_run(log.run_id)
            told.append([found.team, found.status, found.settings, found.summary])
    return digest_of(told)


CASES: dict[str, Callable[[], str]] = {
    "assignment": _assignment,
    "assignment, drifting": lambda: _assignment(arrivals="drifting", seed=3),
    "assignment, round robin": lambda: _assignment(router="round_robin", seed=2),
    "token budget": lambda: _token_budget(budget=9_000),
    "token budget, frontload": lambda: _token_budget(strategy="frontload", seed=5),
    "token budget, critique": lambda: _token_budget(strategy="critique_heavy", seed=6),
    "token budget, random": lambda: _token_budget(strategy="random", seed=7),
    "token budget, a model": lambda: _token_budget(Model()),
    "token budget, a model spends all": lambda: _token_budget(
        Model(), strategy="spend_all", budget=6_000
    ),
    "optimum": _optimum,
    "terminal": _terminal,
}
