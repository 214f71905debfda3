"""Start the servers of a pool as vLLM processes, and stop exactly what was started.

    launcher = Launcher(load_pool("cpu-tiny"))
    launcher.up()  # returns when all answer
    ...
    launcher.down()

The servers outlive the process that started them; another process can stop them, or find them up.
Models with a `url` are adopted: checked, never started or stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import psutil

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.failures import advice, cause, last_lines, without_speaker
from inframind_gym.live.probe import is_dead, unusable
from inframind_gym.live.processes import identity, port_holder, port_is_free
from inframind_gym.live.server_command import (
    ServerCommand,
    make_weights,
    missing_weights,
    server_command,
    vllm_python,
)
from inframind_gym.live.settings import server_url
from inframind_gym.live.started import (
    GRACE_S,
    StartedServer,
    StartedServers,
    Stopped,
    require_linux,
)
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

if TYPE_CHECKING:
    from inframind_gym.live.simulated.process import Simulation

TIMEOUT_S: Final = 1800.0  # to come up: large models are fetched first
_ADOPT_S: Final = 10.0  # to wait for a server with a `url`
_DEAD_S: Final = 5.0  # without an engine, of a server that had answered: it stays so
_POLL_S: Final = 0.5

Phase = Literal["queued", "preparing", "starting", "up", "failed", "stopped"]


@dataclass(slots=True)
class Launch:
    """One server on its way up."""

    model: ModelConfig
    url: str
    phase: Phase = "queued"
    adopted: bool = False  # it has a `url`
    already: bool = False  # it ran before this call
    pid: int | None = None
    log: Path | None = None
    began_s: float = 0.0  # on the monotonic clock
    took_s: float = 0.0  # until it was up, or failed
    note: str = ""  # its last line of output, or why it failed
    advice: str = ""  # remedy of the failure


class Launcher:
    """The servers of one pool on this machine.

    Args:
        pool: the pool; each model has a port (it is started) or a url (it is adopted).
        state: folder of what was started (`started.py`).
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
        self._python = python
        self._host = host
        self._simulation = simulation
        self._commands: dict[str, ServerCommand] = {}

    def up(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        keep_going: bool = False,
        watch: Callable[[Sequence[Launch]], None] = lambda launches: None,
    ) -> list[Launch]:
        """Start what does not run, and wait until everything answers.

        Servers that share a GPU come up one after the other: vLLM counts memory that another one is
        filling meanwhile as its own. If one fails, everything that this call started is stopped; so
        it is on KeyboardInterrupt and every other exception.

        Args:
            timeout_s: for each server, from its start.
            keep_going: leave the others alone when one fails.
            watch: called twice a second with all launches.

        Returns:
            A launch for each model, in the pool's order; with phase "failed" where it failed.

        Raises:
            InfraMindError: a failure that can be foreseen: nothing was started.
        """
        require_linux()
        launches = [
            Launch(
                model,
                server_url(model),
                adopted=model.url is not None,
                log=None if model.url is not None else self._started.log(model.alias),
            )
            for model in self.pool.models
        ]
        with self._started.locked():
            self._adopt([launch for launch in launches if launch.adopted], keep_going)
            own = [launch for launch in launches if not launch.adopted]
            python = self._foresee(own)
            if python is not None:
                _make_weights(launches, python, watch)
            try:
                self._bring_up(launches, timeout_s, keep_going, watch)
            except BaseException:
                self._undo(launches)
                raise
            if not keep_going and any(launch.phase == "failed" for launch in launches):
                self._undo(launches)
        watch(launches)
        return launches

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop what was started (`StartedServers.down`)."""
        return self._started.down(grace_s)

    def is_running(self, alias: str) -> bool:
        """Return whether the process of a server that was started or found here has not ended."""
        server = self._started.servers.get(alias)
        return server is not None and server.runs

    def _adopt(self, adopted: Sequence[Launch], keep_going: bool) -> None:
        """Check the servers with a `url`."""
        over_s = time.monotonic() + _ADOPT_S
        missing = adopted
        while missing:
            for launch in missing:
                launch.note = unusable(launch.url, launch.model.name)
                launch.phase = "failed" if launch.note else "up"
            missing = [launch for launch in missing if launch.phase == "failed"]
            if not missing or time.monotonic() > over_s:
                break
            time.sleep(_POLL_S)
        if missing and not keep_going:
            lines = [f"{launch.model.alias}: {launch.note}" for launch in missing]
            raise InfraMindError(
                "\n".join(lines) + "\nNothing was started. A model with a `url` is one that runs "
                "already; give it a `port` instead to have it started."
            )

    def _foresee(self, wanted: Sequence[Launch]) -> Path | None:
        """Find out what runs, and everything that can be wrong before anything is started.

        Returns:
            The interpreter that has vLLM; None where none is needed.
        """
        if not wanted:
            return None
        python = None if self._simulation else vllm_python(self._python)
        problems = []
        for launch in wanted:
            alias = launch.model.alias
            command = self._commands[alias] = self._command(launch.model, python)
            server = self._started.servers.get(alias)
            if server is not None and self._serves(server, launch):
                if server.settings != command.digest:
                    problems.append(
                        f"{alias}: runs already (process {server.pid}), with other settings: "
                        f"`inframind pool down --pool {self.pool.name}` first"
                    )
                launch.phase, launch.already = "starting", True
                launch.pid, launch.began_s = server.pid, time.monotonic()
                continue
            if server is not None:  # what is left of it may hold memory and the port
                self._started.end([server])
            assert launch.model.port is not None
            if not port_is_free(launch.model.port, self._host):
                problems.append(_port_taken(launch, launch.model.port))
        if problems:
            raise InfraMindError("\n".join([*problems, "Nothing was started."]))
        return python

    def _command(self, model: ModelConfig, python: Path | None) -> ServerCommand:
        if self._simulation is None:
            assert python is not None
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            return server_command(self.pool, model, python, self._host, visible)
        from inframind_gym.live.simulated.process import simulation_command

        return simulation_command(self.pool, self._simulation, self._started.folder, self._host)

    def _serves(self, server: StartedServer, launch: Launch) -> bool:
        """Return whether a server that was started is up or on its way.

        The API server of an engine that died says 503, closes its port, and can hang then instead
        of ending. One that is only busy answers late, or not at all.
        """
        over_s = time.monotonic() + (_DEAD_S if server.ready else 0.0)
        while server.runs:
            if not server.ready or not is_dead(launch.url):
                return True
            if time.monotonic() > over_s:
                return False
            time.sleep(_POLL_S)
        return False

    def _bring_up(
        self,
        launches: Sequence[Launch],
        timeout_s: float,
        keep_going: bool,
        watch: Callable[[Sequence[Launch]], None],
    ) -> None:
        while True:
            queued = [launch for launch in launches if launch.phase == "queued"]
            if self._simulation and queued:
                self._start(queued)  # one process for all
            for launch in queued:
                if launch.phase == "queued" and not self._gpu_is_busy(launch, launches):
                    self._start([launch])
            for launch in launches:
                if launch.phase == "starting":
                    self._check(launch, timeout_s)
            watch(launches)
            phases = {launch.phase for launch in launches}
            if not phases & {"queued", "starting"} or ("failed" in phases and not keep_going):
                return
            time.sleep(_POLL_S)

    def _gpu_is_busy(self, launch: Launch, launches: Sequence[Launch]) -> bool:
        """Return whether a server is coming up on one of its GPUs."""
        if self.pool.gpu_of(launch.model).is_cpu:
            return False
        return any(
            other.phase == "starting" and set(other.model.all_gpus) & set(launch.model.all_gpus)
            for other in launches
        )

    def _start(self, launches: Sequence[Launch]) -> None:
        """Start the process of servers; the log of the first takes its output."""
        for launch in launches:
            assert launch.log is not None
            with contextlib.suppress(FileNotFoundError):
                launch.log.replace(launch.log.with_name(launch.log.name + ".old"))
        command = self._commands[launches[0].model.alias]
        assert launches[0].log is not None
        with launches[0].log.open("ab") as file:
            child = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._started.folder,
                env={**os.environ, **command.env},
                start_new_session=True,  # Ctrl-C is for this process, not for servers
            )
        process = identity(psutil.Process(child.pid))  # at least a zombie: its parent is here
        for launch in launches:
            alias = launch.model.alias
            self._started.children[alias] = child
            server = StartedServer(
                alias=alias,
                process=process,
                started_at=time.time(),
                url=launch.url,
                log=str(launch.log),
                settings=command.digest,
                simulated=self._simulation is not None,
            )
            self._started.write(server)
            launch.phase, launch.pid, launch.began_s = "starting", child.pid, time.monotonic()

    def _check(self, launch: Launch, timeout_s: float) -> None:
        """Find out what has become of a server that is coming up."""
        assert launch.log is not None
        server = self._started.note_members(self._started.servers[launch.model.alias])
        launch.took_s = time.monotonic() - launch.began_s
        if not server.runs:
            self._fail(launch)
        elif not (trouble := unusable(launch.url, launch.model.name)):
            self._started.write(server.model_copy(update={"ready": True}))
            launch.phase, launch.note = "up", ""
        elif launch.took_s > timeout_s:
            self._fail(launch, f"not up in {timeout_s:g} s: {trouble}")
        else:
            launch.note = without_speaker((last_lines(launch.log, 1) or [""])[0])

    def _fail(self, launch: Launch, why: str = "") -> None:
        """End what there is of it; its exit status is read last, when its id can be reused."""
        assert launch.log is not None
        self._started.end([self._started.servers[launch.model.alias]])
        why, found = why or self._ending(launch), cause(launch.log)
        launch.phase, launch.note = "failed", f"{why}: {found}" if found else why
        launch.advice = advice(launch.log)

    def _ending(self, launch: Launch) -> str:
        """Return how a process ended that should run."""
        child = self._started.children.get(launch.model.alias)
        code = None if child is None else child.poll()
        if code is None:
            return "it ended"
        if code >= 0:
            return f"it ended with status {code}"
        name = signal.Signals(-code).name
        killer = " (when memory runs out, the kernel does that)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{killer}"

    def _undo(self, launches: Sequence[Launch]) -> None:
        """Stop what this call started."""
        ours = [
            launch
            for launch in launches
            if launch.phase in ("starting", "up") and not (launch.adopted or launch.already)
        ]
        self._started.end([self._started.servers[launch.model.alias] for launch in ours])
        for launch in launches:
            if launch in ours or launch.phase == "queued":
                launch.phase = "stopped"


def _make_weights(
    launches: Sequence[Launch], python: Path, watch: Callable[[Sequence[Launch]], None]
) -> None:
    """Make the weights that are missing, one model after the other."""
    for launch in launches:
        if launch.adopted or launch.already or not missing_weights(launch.model):
            continue
        launch.phase, launch.note = "preparing", f"makes {launch.model.path}, once"
        watch(launches)
        make_weights(launch.model, python)
        launch.phase, launch.note = "queued", ""


def _port_taken(launch: Launch, port: int) -> str:
    """Return the message for a port that another process holds."""
    alias = launch.model.alias
    if not unusable(launch.url, launch.model.name):
        return (
            f"{alias}: port {port} is taken by a server of {launch.model.name} that this command "
            f"did not start. To use it, write `url: {launch.url}` in place of its port; or stop it"
        )
    holder = port_holder(port) or "another program"
    return f"{alias}: port {port} is taken by {holder}. Stop it, or choose another port"
