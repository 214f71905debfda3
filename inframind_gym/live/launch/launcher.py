"""Starts the servers of a pool as vLLM processes, and stops exactly what it started.

    launcher = Launcher(load_pool("cpu-tiny"))
    launcher.up()  # returns when all answer
    ...
    launcher.down()

The servers outlive the process that started them; another one can stop them, or find them up.
Models that have a `url` are adopted: looked at, never started or stopped.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.launch.failures import advice, cause, last_lines, said
from inframind_gym.live.launch.ports import port_is_free, who_listens
from inframind_gym.live.launch.processes import is_running, process_of
from inframind_gym.live.launch.server_command import (
    ServerCommand,
    make_weights,
    server_command,
    vllm_python,
)
from inframind_gym.live.launch.started import (
    GRACE_S,
    StartedServers,
    Stopped,
    require_linux,
)
from inframind_gym.live.launch.state import PoolState, StartedServer
from inframind_gym.live.vllm.probe import parse_models, wrong_model
from inframind_gym.live.vllm.settings import server_url
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

TIMEOUT_S: Final = 1800.0  # to come up: large models are fetched first
_ADOPT_S: Final = 10.0  # for a server that is said to run already
_DEAD_S: Final = 5.0  # for which one that had answered is without an engine: it stays so
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 2.0

Phase = Literal["queued", "starting", "up", "failed", "stopped"]


@dataclass(slots=True)
class Launch:
    """One server on its way up."""

    model: ModelConfig
    url: str
    phase: Phase = "queued"
    adopted: bool = False  # runs already, by somebody else's doing
    already: bool = False  # ran before this command
    pid: int | None = None
    log: Path | None = None
    began_s: float = 0.0  # on the monotonic clock
    took_s: float = 0.0  # until it was up, or failed
    note: str = ""  # what it says, or why it failed
    advice: str = ""  # what to do about that


class Launcher:
    """The servers of one pool on this machine.

    Args:
        pool: which; each model has a port (it is started) or a url (it is adopted).
        state: folder of what was started (`state.py`).
        python: interpreter that has vLLM (`server_command.vllm_python`).
        host: address that servers listen on: "127.0.0.1", or "0.0.0.0" for the whole network, which
            asks for a password then: $VLLM_API_KEY.

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
    ) -> None:
        if host not in ("127.0.0.1", "0.0.0.0"):
            raise ConfigError(f"host {host!r}: servers listen on 127.0.0.1 or on 0.0.0.0")
        if host == "0.0.0.0" and not os.environ.get("VLLM_API_KEY"):
            raise ConfigError(
                "servers that listen on 0.0.0.0 answer everybody on the network: set VLLM_API_KEY "
                "to a password, here and where they are used"
            )
        self.pool = pool
        self._started = StartedServers(PoolState(pool.name, state))
        self._python = python
        self._host = host
        self._commands: dict[str, ServerCommand] = {}

    def up(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        keep_going: bool = False,
        watch: Callable[[Sequence[Launch]], None] = lambda launches: None,
    ) -> list[Launch]:
        """Start what does not run, and wait until everything answers.

        Servers that share a GPU come up one after the other: vLLM takes memory that another one is
        filling meanwhile for its own. If one fails, everything that this call started is stopped;
        so it is on KeyboardInterrupt and every other exception.

        Args:
            timeout_s: for each server, from its start.
            keep_going: leave the others alone when one fails.
            watch: called twice a second with what is known.

        Returns:
            A launch for each model, in the pool's order; with phase "failed" where it failed.

        Raises:
            InfraMindError: it can be seen beforehand that this fails: nothing was started.
        """
        require_linux()
        launches = [self._launch(model) for model in self.pool.models]
        with self._started.locked():
            self._adopt(launches, keep_going)
            self._prepare(launches)
            try:
                self._bring_up(launches, timeout_s, keep_going, watch)
            except BaseException:
                self._undo(launches)
                raise
            failed = any(launch.phase == "failed" for launch in launches)
            if failed and not keep_going:
                self._undo(launches)
        watch(launches)
        return launches

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop what was started (`StartedServers.down`)."""
        return self._started.down(grace_s)

    def is_running(self, alias: str) -> bool:
        """Whether the process of a server that this launcher started, or found, has not ended."""
        server = self._started.servers.get(alias)
        return server is not None and is_running(server.family().leader)

    def _launch(self, model: ModelConfig) -> Launch:
        adopted = model.url is not None
        log = None if adopted else self._started.state.log(model.alias)
        return Launch(model, server_url(model), adopted=adopted, log=log)

    def _adopt(self, launches: Sequence[Launch], keep_going: bool) -> None:
        """Look for those that are said to run."""
        began_s = time.monotonic()
        missing = [launch for launch in launches if launch.adopted]
        while missing:
            for launch in missing:
                launch.note = probe(launch.url, launch.model.name)
                launch.phase = "failed" if launch.note else "up"
            missing = [launch for launch in missing if launch.phase == "failed"]
            if missing and time.monotonic() - began_s > _ADOPT_S:
                break
            if missing:
                time.sleep(_LOOK_S)
        if missing and not keep_going:
            lines = [f"{launch.model.alias}: {launch.url}: {launch.note}" for launch in missing]
            raise InfraMindError(
                "\n".join(lines) + "\nNothing was started. A model with a `url` is one that runs "
                "already; give it a `port` instead to have it started."
            )

    def _prepare(self, launches: Sequence[Launch]) -> None:
        """Find out what runs, and everything that can be wrong before anything is started."""
        wanted = [launch for launch in launches if not launch.adopted]
        if not wanted:
            return
        python, visible = vllm_python(self._python), os.environ.get("CUDA_VISIBLE_DEVICES")
        problems = []
        for launch in wanted:
            alias = launch.model.alias
            self._commands[alias] = server_command(
                self.pool, launch.model, python, self._host, visible
            )
            server = self._started.servers.get(alias)
            if server is not None and self._serves(server, launch):
                if server.settings != self._commands[alias].digest:
                    problems.append(
                        f"{alias}: runs already (process {server.pid}), with other settings: "
                        f"`inframind pool down --pool {self.pool.name}` first"
                    )
                launch.phase, launch.already = "starting", True
                launch.pid, launch.began_s = server.pid, time.monotonic()
                continue
            if server is not None:  # what is left of it may hold memory and the port
                self._started.end([server], GRACE_S)
            port = launch.model.port
            assert port is not None
            if not port_is_free(port, self._host):
                problems.append(_port_taken(launch, port))
        if problems:
            raise InfraMindError("\n".join([*problems, "Nothing was started."]))
        for launch in wanted:
            if not launch.already:
                make_weights(launch.model, python)

    def _serves(self, server: StartedServer, launch: Launch) -> bool:
        """Whether a server that was started is up or on its way.

        The API server of an engine that died says 503, closes its port, and can hang then instead
        of ending. One that is only busy answers late, or not at all.
        """
        over_s = time.monotonic() + (_DEAD_S if server.ready else 0.0)
        while is_running(server.family().leader):
            if not server.ready or not is_dead(launch.url):
                return True
            if time.monotonic() > over_s:
                return False
            time.sleep(_LOOK_S)
        return False

    def _bring_up(
        self,
        launches: Sequence[Launch],
        timeout_s: float,
        keep_going: bool,
        watch: Callable[[Sequence[Launch]], None],
    ) -> None:
        while True:
            for launch in launches:
                if launch.phase == "queued" and not self._gpu_is_busy(launch, launches):
                    self._start(launch)
            for launch in launches:
                if launch.phase == "starting":
                    self._look(launch, timeout_s)
            watch(launches)
            phases = {launch.phase for launch in launches}
            if not phases & {"queued", "starting"} or ("failed" in phases and not keep_going):
                return
            time.sleep(_LOOK_S)

    def _gpu_is_busy(self, launch: Launch, launches: Sequence[Launch]) -> bool:
        """Whether a server is coming up on one of its GPUs."""
        if self.pool.gpu_of(launch.model).is_cpu:
            return False
        return any(
            other.phase == "starting" and set(other.model.all_gpus) & set(launch.model.all_gpus)
            for other in launches
        )

    def _start(self, launch: Launch) -> None:
        alias, command, log = launch.model.alias, self._commands[launch.model.alias], launch.log
        assert log is not None
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_name(log.name + ".old"))
        with log.open("wb") as file:
            child = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._started.state.folder,
                env={**os.environ, **command.env},
                start_new_session=True,  # Ctrl-C is for us, not for servers
            )
        process = process_of(child.pid)
        assert process is not None  # nobody takes its status but us
        self._started.children[alias] = child
        self._started.keep(
            StartedServer(
                alias=alias,
                pid=process.pid,
                started=process.started,
                started_at=time.time(),
                url=launch.url,
                log=str(log),
                settings=command.digest,
            )
        )
        launch.phase, launch.pid, launch.began_s = "starting", child.pid, time.monotonic()

    def _look(self, launch: Launch, timeout_s: float) -> None:
        """See what has become of one that is coming up."""
        assert launch.log is not None
        server = self._started.see(self._started.servers[launch.model.alias])
        launch.took_s = time.monotonic() - launch.began_s
        if not is_running(server.family().leader):
            self._fail(launch)
        elif not (trouble := probe(launch.url, launch.model.name)):
            self._started.keep(server.model_copy(update={"ready": True}))
            launch.phase, launch.note = "up", ""
        elif launch.took_s > timeout_s:
            self._fail(launch, f"not up in {timeout_s:g} s: {trouble}")
        else:
            launch.note = said((last_lines(launch.log, 1) or [""])[0])

    def _fail(self, launch: Launch, why: str = "") -> None:
        """End what there is of it; its own end is asked for last, when its id can be given away."""
        assert launch.log is not None
        self._started.end([self._started.servers[launch.model.alias]], GRACE_S)
        why, found = why or self._ending(launch), cause(launch.log)
        launch.phase, launch.note = "failed", f"{why}: {found}" if found else why
        launch.advice = advice(launch.log)

    def _ending(self, launch: Launch) -> str:
        """How a process ended that should run."""
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
        self._started.end([self._started.servers[launch.model.alias] for launch in ours], GRACE_S)
        for launch in launches:
            if launch in ours or launch.phase == "queued":
                launch.phase = "stopped"


def probe(url: str, model: str) -> str:
    """Why a server cannot be used; "" if it can: it is healthy and serves the model."""
    try:
        _get(f"{url}/health")
        return wrong_model(model, parse_models(_get(f"{url}/v1/models")))
    except urllib.error.HTTPError as error:
        return f"{error.url} says {error.code}"
    except ValueError:
        return f"{url}/v1/models answers no list of models: is this a vLLM server?"
    except http.client.HTTPException as error:
        return f"{url} does not speak HTTP ({type(error).__name__})"
    except OSError as error:
        reason = getattr(error, "reason", error)
        return str(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()


def is_dead(url: str) -> bool:
    """Whether a server lets nobody connect, or says that it has no engine."""
    try:
        _get(f"{url}/health")
    except urllib.error.HTTPError as error:
        return error.code == 503
    except OSError as error:
        return isinstance(getattr(error, "reason", error), ConnectionRefusedError)
    except http.client.HTTPException:
        return False
    return False


def _get(url: str) -> str:
    request = urllib.request.Request(url)
    key = os.environ.get("VLLM_API_KEY")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    # A proxy knows nothing of this machine's own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER_S) as answer:
        return bytes(answer.read(1 << 20)).decode("utf-8", "replace")


def _port_taken(launch: Launch, port: int) -> str:
    """A message for a port that somebody else has."""
    alias = launch.model.alias
    if not probe(launch.url, launch.model.name):
        return (
            f"{alias}: port {port} is taken by a server of {launch.model.name} that this command "
            f"did not start. To use it, write `url: {launch.url}` in place of its port; or stop it"
        )
    who = who_listens(port) or "another program"
    return f"{alias}: port {port} is taken by {who}. Stop it, or choose another port"
