"""Start the servers of a pool as processes, watch them, and stop exactly what was started.

    launcher = Launcher(load_pool("cpu-tiny"))
    launcher.up()  # returns when all answer
    ...
    launcher.down()

The servers outlive the process that started them; another process can stop them, or find them up.
Models with a `url` are checked, never started or stopped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.config import LiveSettings, addresses
from inframind_gym.live.processes import (
    GRACE_S,
    StartedServer,
    StartedServers,
    Stopped,
    port_is_free,
    start_of,
)
from inframind_gym.live.server_command import (
    ServerCommand,
    make_weights,
    server_command,
    vllm_python,
)
from inframind_gym.live.watcher import MetricsWatcher, WatchedServer
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

if TYPE_CHECKING:
    from inframind_gym.live.simulated.server import Simulation

TIMEOUT_S: Final = 1800.0  # to come up: large models are fetched first
_POLL_S: Final = 0.5
_CHECK: Final = LiveSettings(health_s=_POLL_S, answer_s=10.0)  # a busy server answers late
_TAIL_BYTES: Final = 1 << 18  # at the end of a log, that are read

Phase = Literal["queued", "starting", "up", "failed", "stopped"]


@dataclass(slots=True)
class Launch:
    """One server on its way up."""

    model: ModelConfig
    url: str
    phase: Phase = "queued"
    already: bool = False  # it ran before this call, or has a `url`
    pid: int | None = None
    log: Path | None = None  # output of its process
    began_s: float = 0.0  # on the monotonic clock
    took_s: float = 0.0  # until it was up, or failed
    note: str = ""  # why it failed


Watch = Callable[[Sequence[Launch]], object]


class Launcher:
    """Starts and stops the servers of a pool.

    Args:
        pool: the pool; each model has a port (it is started) or a url (it is only checked).
        state: folder of what was started (`processes.py`).
        python: interpreter that has vLLM (`server_command.vllm_python`).
        host: address that servers listen on: "127.0.0.1", or "0.0.0.0" for the whole network, which
            needs a password: $VLLM_API_KEY.
        simulation: start one process that simulates all servers (`simulated/`); None: vLLM's.

    Raises:
        ConfigError: the host is neither, or nothing protects the servers.
    """

    def __init__(
        self,
        pool: PoolConfig,
        *,
        state: str | Path | None = None,
        python: str | Path | None = None,
        host: str = "127.0.0.1",
        simulation: Simulation | None = None,
    ) -> None:
        if host not in ("127.0.0.1", "0.0.0.0"):
            raise ConfigError(f"host {host!r}: servers listen on 127.0.0.1 or on 0.0.0.0")
        if host == "0.0.0.0" and not os.environ.get("VLLM_API_KEY"):
            raise ConfigError(
                "servers that listen on 0.0.0.0 answer every machine on the network: set "
                "VLLM_API_KEY to a password, here and where they are used"
            )
        self.pool = pool
        self._started = StartedServers(pool.name, state)
        self._python, self._host, self._simulation = python, host, simulation
        self._commands: dict[str, ServerCommand] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def up(
        self, *, timeout_s: float = TIMEOUT_S, watch: Watch = lambda launches: None
    ) -> list[Launch]:
        """Start what does not answer, and wait until everything does.

        Servers that share a GPU come up one after the other: vLLM counts memory that another one is
        filling meanwhile as its own. If one fails or ends before all are up, everything that this
        call started is stopped; so it is on KeyboardInterrupt and every other exception.

        Args:
            timeout_s: for each server, from its start.
            watch: called twice a second with all launches.

        Returns:
            A launch for each model, in the pool's order; with phase "failed" where it failed.

        Raises:
            InfraMindError: a failure that can be foreseen: nothing was started.
        """
        servers = addresses(self.pool)
        launches = [
            Launch(model, server.url)
            for model, server in zip(self.pool.models, servers, strict=True)
        ]
        with self._started.locked(), MetricsWatcher(servers, _CHECK, poll_s=TIMEOUT_S) as watcher:
            watcher.wait_checked()
            self._prepare(launches, watcher.status())
            try:
                while True:
                    self._start_queued(launches)
                    for launch, server in zip(launches, watcher.status(), strict=True):
                        if launch.phase in ("starting", "up") and launch.pid is not None:
                            self._check(launch, server, timeout_s)
                    watch(launches)
                    phases = {launch.phase for launch in launches}
                    if "failed" in phases or not phases & {"queued", "starting"}:
                        break
                    time.sleep(_POLL_S)
            except BaseException:
                self._undo(launches)
                raise
            if "failed" in phases:
                self._undo(launches)
        watch(launches)
        return launches

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop what was started (`StartedServers.down`)."""
        return self._started.down(grace_s)

    def _prepare(self, launches: Sequence[Launch], seen: Sequence[WatchedServer]) -> None:
        """Find out what runs and what can be wrong, and make weights that are missing.

        Raises:
            InfraMindError: something is; nothing was started.
        """
        ours = [launch for launch in launches if launch.model.url is None]
        python = vllm_python(self._python) if ours and not self._simulation else None
        problems, stale = [], []
        for launch, answer in zip(launches, seen, strict=True):
            alias, port = launch.model.alias, launch.model.port
            if port is None or launch.model.url is not None:
                launch.phase, launch.already = "up", True
                if not answer.up:
                    problems.append(
                        f"{alias}: {launch.url}: {answer.reason}. A model with a `url` is one that "
                        "runs already; give it a `port` instead to have it started"
                    )
                continue
            command = self._commands[alias] = self._command(launch.model, python)
            server = self._started.servers.get(alias)
            if server is not None and server.runs and (answer.up or answer.asleep):
                if server.settings != command.digest:
                    problems.append(
                        f"{alias}: runs already (process {server.pid}), with other settings: "
                        f"`inframind pool down --pool {self.pool.name}` first"
                    )
                launch.phase, launch.already = "up", True
                launch.pid, launch.log = server.pid, Path(server.log)
            elif server is not None:  # what is left of it may hold memory and the port
                stale.append(server)
            elif not port_is_free(port, self._host):
                problems.append(
                    f"{alias}: port {port} is taken. Stop what listens there, choose another port, "
                    f"or write `url: {launch.url}` in its place to use what runs there"
                )
        if problems:
            raise InfraMindError("\n".join([*problems, "Nothing was started."]))
        self._started.end(stale)
        for launch in ours:
            if python is not None and not launch.already:
                make_weights(launch.model, python)

    def _command(self, model: ModelConfig, python: Path | None) -> ServerCommand:
        if python is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            return server_command(self.pool, model, python, self._host, visible)
        from inframind_gym.live.simulated.server import simulation_command

        assert self._simulation is not None
        return simulation_command(self.pool, self._simulation, self._host)

    def _start_queued(self, launches: Sequence[Launch]) -> None:
        """Start what is queued and whose GPUs no other server is loading on."""
        if self._simulation:  # one process for all
            if queued := [launch for launch in launches if launch.phase == "queued"]:
                self._start(queued)
            return
        for launch in launches:
            loading = (each.model for each in launches if each.phase == "starting")
            busy = {gpu for model in loading for gpu in model.all_gpus}
            gpus = () if self.pool.gpu_of(launch.model).is_cpu else launch.model.all_gpus
            if launch.phase == "queued" and not busy & set(gpus):
                self._start([launch])

    def _start(self, launches: Sequence[Launch]) -> None:
        """Start the process of one server, or the one that simulates several."""
        command = self._commands[launches[0].model.alias]
        name = "simulated+all" if self._simulation else launches[0].model.alias
        log = self._started.folder / f"{name}.log"
        with log.open("wb") as file:
            child = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._started.folder,
                env={**os.environ, **command.env},
                start_new_session=True,  # Ctrl-C is for this process, not for servers
            )
        self._children[child.pid] = child
        start_s = start_of(psutil.Process(child.pid))  # at least a zombie: its parent is here
        for launch in launches:
            launch.phase, launch.pid, launch.log = "starting", child.pid, log
            launch.began_s = time.monotonic()
            server = StartedServer(
                alias=launch.model.alias,
                pid=child.pid,
                start_s=start_s,
                started_at=time.time(),
                url=launch.url,
                log=str(log),
                settings=command.digest,
                simulated=self._simulation is not None,
            )
            self._started.write(server)

    def _check(self, launch: Launch, answer: WatchedServer, timeout_s: float) -> None:
        """Find out what has become of a server that was started."""
        server = self._started.servers[launch.model.alias]
        if not server.runs:
            child = self._children.get(server.pid)
            code = None if child is None else child.poll()
            launch.note = "it ended" if code is None else f"it ended with status {code}"
        elif launch.phase == "starting":
            launch.took_s = time.monotonic() - launch.began_s
            if answer.up:
                launch.phase = "up"
            elif launch.took_s > timeout_s:
                launch.note = f"not up in {timeout_s:g} s: {answer.reason}"
        if launch.note:
            launch.phase = "failed"
            self._started.end([server])

    def _undo(self, launches: Sequence[Launch]) -> None:
        """Stop what this call started."""
        ours = [each for each in launches if not each.already]
        running = [each for each in ours if each.phase in ("starting", "up")]
        self._started.end([self._started.servers[each.model.alias] for each in running])
        for launch in ours:
            if launch.phase != "failed":
                launch.phase = "stopped"


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not blank; none where it cannot be read."""
    try:
        text = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def pool_status(pool: PoolConfig, state: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the state of the servers of a pool, in the pool's order, for people and scripts.

    `state` is "up", "asleep", "silent" (it runs and does not answer: it starts or hangs), "died",
    "stopped" (nothing was started, nothing answers) or "unreachable" (nothing answers at its url).
    Of servers that were started here: process, time since, memory of all its processes. Of those
    that are up: requests, share of the KV cache, mean times of all requests that have ended.

    Args:
        pool: the pool.
        state: folder of what was started.

    Raises:
        ConfigError: a model has neither port nor url.
        InfraMindError: the extra `live` is not installed.
    """
    started = StartedServers(pool.name, state).read()
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=TIMEOUT_S) as watcher:
        watcher.wait_checked()
    rows = []
    for model, answer in zip(pool.models, watcher.status(), strict=True):
        ours = None if model.url is not None else started.get(model.alias)
        members = [] if ours is None else ours.members()
        runs = ours is not None and bool(members) and members[0].pid == ours.pid
        now, note = "stopped", ""
        if answer.up:
            now, note = "up", "" if ours or model.url else "not started by `pool up`"
        elif answer.asleep:
            now = "asleep"
        elif model.url:
            now, note = "unreachable", answer.reason
        elif runs:
            now, note = "silent", answer.reason
        elif ours is not None:
            now, note = "died", "".join(last_lines(Path(ours.log), 1))
            if members:
                note = f"{len(members)} of its processes run on; `down` or `up` ends them. {note}"
        row = dict.fromkeys(("pid", "up_s", "memory_mb", "running", "waiting", "kv_frac"))
        row |= {"alias": model.alias, "state": now, "url": answer.url, "note": note}
        row |= {"simulated": ours is not None and ours.simulated, "times_s": {}}
        if ours is not None and runs:
            total = 0
            for process in members:
                with contextlib.suppress(psutil.Error, OSError):
                    total += process.memory_full_info().pss  # shared pages count once
            row |= {"pid": ours.pid, "up_s": round(time.time() - ours.started_at, 1)}
            row["memory_mb"] = round(total / 1e6, 1)
        if answer.up and (reading := answer.reading) is not None:
            row |= {"running": int(reading.running_req), "waiting": int(reading.waiting_req)}
            row["kv_frac"] = round(reading.kv_frac, 4)
            means = reading.sums.items()
            row["times_s"] = {name: round(total / n, 4) for name, (total, n) in means if n}
        rows.append(row)
    return rows
