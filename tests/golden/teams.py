"""Frozen results of the assignment and token-budget teams: transcripts of their applications."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from inframind_gym.teams.assignment.app import Options, make_run
from inframind_gym.teams.token_budget.optimum import solve
from inframind_gym.teams.token_budget.settings import load_settings
from tests.golden.net import digest_of
from tests.teams.token_budget.runs import Log, Model, run

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
    training = make_run(Options(**({"iterations": 50, "seed": 0} | options)), log=log)
    final = training.train()
    system = training.production()
    served = [system.process(f"Do {i}.", TYPES[i % 4]) for i in range(requests)]
    events = [
        (kind, data["state"] if kind == "state" else data)
        for kind, data in log.events
        if kind in KEPT
    ]
    told = [final, training.summary(), served, system.health(), events]
    return digest_of(json.loads(json.dumps(_plain(told))))


def _token_budget(provider: Any = None, **order: Any) -> str:
    """Play a run; digest its log and its summary."""
    log, _ = run(provider, **order)
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
}
