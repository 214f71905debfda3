"""State of the servers of a pool: what was started here, and what their metrics say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inframind_gym.live.failures import cause
from inframind_gym.live.processes import resident_bytes
from inframind_gym.live.settings import LiveSettings, addresses
from inframind_gym.live.started import StartedServer, StartedServers, require_linux
from inframind_gym.live.watcher import MetricsWatcher, ServerStatus
from inframind_gym.simulator.server.pool import PoolConfig

State = Literal[
    "up",
    "asleep",
    "starting",  # has never answered, and runs
    "hangs",  # has answered, runs, and no longer answers
    "died",  # was started, not stopped, and is gone
    "stopped",  # nothing was started, and nothing answers
    "unreachable",  # it has a url, and nothing answers there
]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """State of one server, for people and scripts."""

    alias: str
    state: State
    url: str
    pid: int | None = None  # None: it was not started here
    up_s: float | None = None  # since it was started here
    memory_mb: float | None = None  # of its processes
    running: int | None = None  # requests; None: not known
    waiting: int | None = None
    kv_frac: float | None = None
    note: str = ""
    simulated: bool = False  # by a process that it shares with others


def pool_status(pool: PoolConfig, state: str | Path | None = None) -> list[ServerRow]:
    """Return the state of the servers of a pool, in the pool's order.

    Args:
        pool: the pool.
        state: folder of what was started.

    Raises:
        ConfigError: a model has neither port nor url.
        InfraMindError: the extra `live` is not installed.
    """
    require_linux()
    started = StartedServers(pool.name, state).read()
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=3600.0) as watcher:
        watcher.wait_checked()
        seen = watcher.status()
    return [
        _row(status, model.url is not None, None if model.url else started.get(status.alias))
        for model, status in zip(pool.models, seen, strict=True)
    ]


def _row(seen: ServerStatus, adopted: bool, server: StartedServer | None) -> ServerRow:
    members = [] if server is None else server.family().running()
    runs = server is not None and server.runs
    reading = seen.reading if seen.up else None
    state: State
    note = "" if seen.up else seen.reason
    if seen.up:
        state = "up"
        note = "not started by `pool up`" if server is None and not adopted else ""
    elif seen.asleep:
        state, note = "asleep", ""
    elif server is None:
        state = "unreachable" if adopted else "stopped"
        note = note if adopted or seen.listens else ""
    elif not runs:
        state, note = "died", cause(Path(server.log))
        if members:
            note = f"{len(members)} of its processes run on; `down` or `up` ends them. {note}"
    elif server.ready:
        state, note = "hangs", f"{note}; `up` starts it again if it does not answer"
    else:
        state, note = "starting", ""
    return ServerRow(
        alias=seen.alias,
        state=state,
        url=seen.url,
        pid=server.pid if server is not None and runs else None,
        up_s=round(time.time() - server.started_at, 1) if server is not None and runs else None,
        memory_mb=round(resident_bytes(members) / 1e6, 1) if members else None,
        running=None if reading is None else int(reading.running_req),
        waiting=None if reading is None else int(reading.waiting_req),
        kv_frac=None if reading is None else round(reading.kv_frac, 4),
        note=note.strip(),
        simulated=server is not None and server.simulated,
    )
