"""How the servers of a pool are: what was started here, and what their metrics say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from inframind_gym.live.launch.failures import cause
from inframind_gym.live.launch.processes import is_running, members, resident_bytes
from inframind_gym.live.launch.started import require_linux
from inframind_gym.live.launch.state import PoolState, StartedServer
from inframind_gym.live.vllm.server_status import ServerStatus
from inframind_gym.live.vllm.settings import addresses
from inframind_gym.live.vllm.watcher import MetricsWatcher
from inframind_gym.simulator.server.pool import PoolConfig

State = Literal[
    "up",
    "asleep",
    "starting",  # has never answered, and runs
    "hangs",  # has answered, runs, and doesn't answer any more
    "died",  # was started, not stopped, and is gone
    "stopped",  # nothing was started, and nothing answers
    "unreachable",  # it has a url, and nothing answers there
]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server, for people and scripts."""

    alias: str
    state: State
    url: str
    pid: int | None  # None: it was not started here
    up_s: float | None  # since it was started here
    memory_mb: float | None  # of its processes
    running: int | None  # requests; None: not known
    waiting: int | None
    kv_frac: float | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def pool_status(
    pool: PoolConfig, state: str | Path | None = None, timeout_s: float = 10.0
) -> list[ServerRow]:
    """How the servers of a pool are now, in the pool's order.

    Args:
        pool: which.
        state: folder of what was started.
        timeout_s: for all of them to answer.

    Raises:
        ConfigError: a model has neither port nor url.
        InfraMindError: the extra `live` is not installed.
    """
    require_linux()
    started = PoolState(pool.name, state).read()
    with MetricsWatcher(addresses(pool), poll_s=3600.0) as watcher:
        watcher.wait_looked(timeout_s)
        seen = watcher.status()
    return [_row(pool, i, status, started) for i, status in enumerate(seen)]


def _row(
    pool: PoolConfig, index: int, seen: ServerStatus, started: Mapping[str, StartedServer]
) -> ServerRow:
    server = None if pool.models[index].url is not None else started.get(seen.alias)
    family = [] if server is None else members(server.family())
    runs = server is not None and is_running(server.family().leader)
    state: State
    note = "" if seen.up else seen.reason
    if seen.up:
        state = "up"
    elif seen.asleep:
        state, note = "asleep", ""
    elif server is None:
        state = "stopped" if pool.models[index].url is None else "unreachable"
        note = "" if state == "stopped" and not seen.listens else note
    elif not runs:
        state, note = "died", cause(Path(server.log))
        if family:
            note = (
                f"{len(family)} of its processes run on; `down` or `up` ends them. {note}".strip()
            )
    else:
        state = "hangs" if server.ready else "starting"
        note = "" if state == "starting" else f"{note}; `up` starts it anew if it stays away"
    if server is None and seen.up and pool.models[index].url is None:
        note = "not started by `pool up`"
    read = seen.up
    return ServerRow(
        alias=seen.alias,
        state=state,
        url=seen.url,
        pid=server.pid if server is not None and runs else None,
        up_s=round(time.time() - server.started_at, 1) if server is not None and runs else None,
        memory_mb=round(resident_bytes(family) / 1e6, 1) if family else None,
        running=int(seen.running_req) if read else None,
        waiting=int(seen.waiting_req) if read else None,
        kv_frac=round(seen.kv_frac, 4) if read else None,
        note=note,
    )
