"""Runs under way: each a thread that plays a team or a pool and writes its events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.studio import pool
from inframind_gym.studio.settings import (
    SETTINGS,
    AssignmentSettings,
    CoordinationSettings,
    PacedLog,
    Stopped,
    Ways,
)
from inframind_gym.teams.llm import SIMULATED
from inframind_gym.teams.runs import RunStore
from inframind_gym.teams.token_budget.app import Order
from inframind_gym.teams.token_budget.settings import load_settings

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever

MOST_RUNS: Final = 8  # at once
MOST_DELAY_S: Final = 5.0
_ENDING_S: Final = 5.0  # that runs get to end when the studio does


class BusyError(InfraMindError):
    """As many runs are under way as may be."""


class Launcher:
    """Runs under way, each in a thread.

    Args:
        store: file of runs.
        ways: what runs may reach.
        most_runs: at once.
    """

    def __init__(self, store: RunStore, ways: Ways, most_runs: int = MOST_RUNS) -> None:
        self.store, self.ways, self._most = store, ways, most_runs
        self._running: dict[str, tuple[PacedLog, threading.Thread]] = {}
        self._lock = threading.Lock()

    def start(self, team: str, settings: Mapping[str, Any], delay_s: float = 0.0) -> str:
        """Start a run and return its name.

        Raises:
            BusyError: too many are under way.
            ConfigError: there is no such team, or a setting is wrong.
        """
        if team not in SETTINGS:
            raise ConfigError(unknown("team", team, SETTINGS))
        if not 0.0 <= delay_s <= MOST_DELAY_S:
            raise ConfigError(f"delay_s must be from 0 to {MOST_DELAY_S:g}, got {delay_s:g}")
        checked: Any = validate(dict(settings), SETTINGS[team], source="settings")
        players: dict[str, Callable[..., None]] = {"pool": pool.play}
        players |= {"token-budget": _token_budget, "assignment": _assignment}
        players |= {"coordination": _coordination}
        record = checked.model_dump(mode="json")
        record["provider"] = record["source"] if team == "pool" else self.ways.provider
        if team == "pool":
            pool.check_source(checked, self.ways)
        elif self.ways.model is not None:
            record["model"] = self.ways.model
        if team == "token-budget":
            checked.policy()  # before a run is created: it may refuse its arguments
            record["roi_threshold"] = load_settings().roi_threshold
        with self._lock:
            if len(self._running) >= self._most:
                raise BusyError(f"{self._most} runs are under way; stop one, or try again later")
            log = PacedLog(self.store, team, record, delay_s)

            def carry_out() -> None:  # whatever happens, the log finishes the run in the file
                try:
                    with suppress(Stopped, InfraMindError), log:
                        players[team](checked, self.ways, log)
                finally:
                    with self._lock:
                        self._running.pop(log.run_id, None)

            thread = threading.Thread(target=carry_out, daemon=True)
            self._running[log.run_id] = (log, thread)
        thread.start()
        return log.run_id

    def stop(self, run_id: str) -> bool:
        """Stop a run at its next event; False if it is not under way here."""
        running = self._running.get(run_id)
        if running is not None:
            running[0].stopping.set()
        return running is not None

    def owned(self) -> list[str]:
        """Return the runs that are under way here, and can be stopped."""
        return list(self._running)

    def close(self) -> None:
        """Stop all runs and wait for their ends."""
        running = list(self._running.values())
        for log, _ in running:
            log.stopping.set()
        for _, thread in running:
            thread.join(_ENDING_S)


def _token_budget(settings: Order, ways: Ways, log: PacedLog) -> None:
    from inframind_gym.teams.token_budget.app import Orchestrator, play

    orchestrator = Orchestrator(settings, log, log.run_id, ways.open())
    try:
        asyncio.run(play(orchestrator, log))
    except Stopped as stop:
        log.finish("interrupted", {**orchestrator.summary(), "error": str(stop)})


def _assignment(settings: AssignmentSettings, ways: Ways, log: PacedLog) -> None:
    from inframind_gym.teams.assignment.app import Options, make_run, open_providers

    models = [] if ways.model is None else [ways.model]
    providers = open_providers([ways.provider], models)
    training = make_run(Options(**settings.model_dump()), providers, log=log)
    with training.llm_service:
        training.train()
        log.finish("complete", training.summary())


@cache
def _texts() -> tuple[Corpus, Retriever]:
    """Return the shipped passages and their index, which takes seconds to build."""
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever

    corpus = Corpus.load()
    return corpus, Retriever(corpus)


def _coordination(settings: CoordinationSettings, ways: Ways, log: PacedLog) -> None:
    from inframind_gym.teams.coordination.app import MultiAgentCoordinator
    from inframind_gym.teams.coordination.settings import MODEL

    (corpus, index), provider = _texts(), ways.open()
    with MultiAgentCoordinator(
        ways.model or MODEL,
        backend=SIMULATED if provider is None else "vllm",
        provider=provider,
        corpus=corpus,
        searcher=index,
        log=log,
    ) as team:
        team.warm_up()
        of_query = settings.model_dump(exclude={"question"}, exclude_none=True)
        response = team.process_query(settings.question, settings=of_query)
    kinds = (str, int, float, bool)
    figures = {key: x for key, x in response.metadata.items() if isinstance(x, kinds)}
    failed = figures["ended_by"] in ("failed", "context")
    log.finish("failed" if failed else "complete", {"content": response.content, **figures})
