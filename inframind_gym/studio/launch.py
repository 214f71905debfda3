"""Runs that the studio has under way: each a thread that writes its events as they happen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.studio import pool, teams
from inframind_gym.studio.orders import ORDERS
from inframind_gym.teams.runs.store import RunLog, RunStore

MOST_RUNS: Final = 8  # at once
MOST_DELAY_S: Final = 5.0
_ENDING_S: Final = 5.0  # that runs get to end when the studio does
# Events after which a run may rest, so that a person can follow what takes milliseconds.
_PACED: Final = {"token-budget": "trace", "assignment": "iteration"}


class BusyError(InfraMindError):
    """As many runs are under way as may be."""


class Stopped(KeyboardInterrupt):
    """A person has stopped a run; the log counts it as interrupted."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What runs may reach.

    Attributes:
        provider: name or URL of the models of teams.
        model: of the provider; None: its default.
        gateway: address of a gateway; None: there is none to watch.
        access_log: its access log; None: requests are not shown.
        pool: name or file of a pool of live servers; None: there is none.
    """

    provider: str = "simulated"
    model: str | None = None
    gateway: str | None = None
    access_log: Path | None = None
    pool: str | None = None

    def sources(self) -> list[str]:
        """Return the pools that can be watched."""
        given = {"simulation": True, "pool": self.pool, "gateway": self.gateway}
        return [name for name, value in given.items() if value]


class PacedLog(RunLog):
    """A run's log that can rest after events of one kind, and that can be stopped.

    Args:
        store, team, settings: as of `RunLog`.
        delay_s: rest after each event that a person follows.
    """

    def __init__(
        self, store: RunStore, team: str, settings: Mapping[str, Any], delay_s: float = 0.0
    ) -> None:
        super().__init__(store, team, settings)
        self._delay_s, self._paced = delay_s, _PACED.get(team)
        self._stop = threading.Event()

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event and return its number.

        Raises:
            Stopped: the run has been stopped.
        """
        number = super().append(kind, data)
        self.rest(self._delay_s if kind == self._paced else 0.0)
        return number

    def rest(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopped: the run has been stopped.
        """
        if self._stop.wait(seconds) if seconds > 0.0 else self._stop.is_set():
            raise Stopped("stopped in the studio")

    def stop(self) -> None:
        """End the run at its next event."""
        self._stop.set()


class Launcher:
    """Starts runs and stops them.

    Args:
        store: file of runs.
        ways: what they may reach.
        most_runs: at once.
    """

    def __init__(self, store: RunStore, ways: Ways, most_runs: int = MOST_RUNS) -> None:
        self.ways = ways
        self._store, self._most = store, most_runs
        self._running: dict[str, tuple[PacedLog, threading.Thread]] = {}
        self._lock = threading.Lock()

    def start(self, team: str, settings: Mapping[str, Any], delay_s: float = 0.0) -> str:
        """Start a run and return its name.

        Raises:
            BusyError: too many are under way.
            ConfigError: there is no such team, or a setting is wrong.
        """
        if team not in ORDERS:
            raise ConfigError(unknown("team", team, ORDERS))
        if not 0.0 <= delay_s <= MOST_DELAY_S:
            raise ConfigError(f"delay_s must be from 0 to {MOST_DELAY_S:g}, got {delay_s:g}")
        order = validate(dict(settings), ORDERS[team], source="settings")
        play, told = self._player(team, order)
        with self._lock:
            if len(self._running) >= self._most:
                raise BusyError(f"{self._most} runs are under way; stop one, or try again later")
            log = PacedLog(self._store, team, {**order.model_dump(mode="json"), **told}, delay_s)
            thread = threading.Thread(target=self._carry_out, args=(log, play), daemon=True)
            self._running[log.run_id] = (log, thread)
        thread.start()
        return log.run_id

    def _player(self, team: str, order: Any) -> tuple[Callable[[PacedLog], None], dict[str, Any]]:
        """Return what plays an order, and what its run says of the way to the models."""
        if team == "pool":
            return pool.player(order, self.ways), {"provider": order.source}
        return teams.player(team, order, self.ways)

    def _carry_out(self, log: PacedLog, play: Callable[[PacedLog], None]) -> None:
        """Play a run; whatever happens, its log finishes it in the file."""
        try:
            with suppress(Stopped, InfraMindError), log:
                play(log)
        finally:
            with self._lock:
                self._running.pop(log.run_id, None)

    def stop(self, run_id: str) -> bool:
        """Stop a run; False if it is not under way here."""
        with self._lock:
            found = self._running.get(run_id)
        if found is not None:
            found[0].stop()
        return found is not None

    def owned(self) -> list[str]:
        """Return the runs that are under way here, and can be stopped."""
        with self._lock:
            return list(self._running)

    def close(self) -> None:
        """Stop all runs and wait for their ends."""
        with self._lock:
            running = list(self._running.values())
        for log, _ in running:
            log.stop()
        for _, thread in running:
            thread.join(_ENDING_S)
