"""Start the servers of a pool as processes, watch them, and stop those that were started.

    launcher = Launcher(load_pool("cpu-tiny"))
    launcher.up()  # returns when all answer
    ...
    launcher.down()

The servers outlive the process that started them; another process can stop them, or find them up.
Models with a `url` are checked, never started or stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import psutil

from inframind_gym.errors import ConfigError, InfraMindError, install_command
from inframind_gym.live import weights
from inframind_gym.live.config import (
    SIMULATED_ENV,
    LiveSettings,
    SimulatedPool,
    Simulation,
    addresses,
)
from inframind_gym.live.guard import listening
from inframind_gym.live.processes import (
    GRACE_S,
    StartedServer,
    StartedServers,
    Stopped,
    start_of,
)
from inframind_gym.live.watcher import MetricsWatcher, WatchedServer
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig
from inframind_gym.simulator.workload import load_workload
from inframind_gym.tasks.embedding import cache_folder

TIMEOUT_S: Final = 1800.0  # to come up: large models are fetched first
_POLL_S: Final = 0.5
_CHECK: Final = LiveSettings(health_s=_POLL_S, answer_s=10.0)  # a busy server answers late
_TAIL_BYTES: Final = 1 << 18  # read at the end of a log

_ENTRY: Final = "vllm.entrypoints.openai.api_server"
_GPU_BLOCK: Final = 16  # tokens: vLLM's own choice on a GPU
_HOW_TO_INSTALL: Final = (
    "Install vLLM into an environment of its own (its versions of torch and numba are not ours) "
    "and name its interpreter with --python or $VLLM_PYTHON. For GPUs: "
    f"{install_command('vllm')}, or vllm alone. For CPUs, in a checkout: "
    "make .venv-vllm/.installed-vllm"
)

Phase = Literal["queued", "starting", "up", "failed", "stopped"]


# Commands


class ServerCommand(NamedTuple):
    """A process to run."""

    arguments: tuple[str, ...]  # the interpreter first
    env: Mapping[str, str]  # in addition to this process's own

    @property
    def digest(self) -> str:
        """Hash that identifies the settings without storing secrets."""
        text = json.dumps([self.arguments, sorted(self.env.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def vllm_python(python: str | Path | None = None) -> Path:
    """Return the interpreter that has vLLM.

    It is the first of: the argument, $VLLM_PYTHON, `.venv-vllm` in the working folder or beside
    the package, this interpreter.

    Raises:
        ConfigError: it does not exist, or has no vLLM.
    """
    venv = Path(os.environ.get("VLLM_VENV", ".venv-vllm"), "bin", "python")
    places = (Path.cwd() / venv, Path(__file__).resolve().parents[2] / venv)
    usual = next(filter(Path.is_file, places), Path(sys.executable))
    # Not resolved: through its link the interpreter finds the environment.
    chosen = Path(python or os.environ.get("VLLM_PYTHON") or usual).expanduser().absolute()
    probe = [str(chosen), "-c", "import importlib.util as u; exit(u.find_spec('vllm') is None)"]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(probe, capture_output=True, timeout=120, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{chosen}: no such interpreter ({error}). {_HOW_TO_INSTALL}") from None
    if done.returncode:
        raise ConfigError(f"{chosen} has no vLLM. {_HOW_TO_INSTALL}")
    return chosen


def server_command(
    pool: PoolConfig,
    model: ModelConfig,
    python: Path,
    host: str = "127.0.0.1",
    visible: str | None = None,
) -> ServerCommand:
    """Return the command of the server of one of a pool's models, by an interpreter that has vLLM.

    The model has a port. `visible` are the GPUs that may be used, as in $CUDA_VISIBLE_DEVICES;
    None: all.

    Raises:
        ConfigError: the pool names more GPUs than there are, or the model's folder is missing.
    """
    card = model.server
    arguments = [
        *(str(python), "-m", _ENTRY),
        *("--model", weights_of(model)),
        *("--served-model-name", model.name),
        *("--host", host),
        *("--port", str(model.port)),
        *("--max-num-seqs", str(card.max_num_seqs)),
        *("--max-num-batched-tokens", str(card.max_num_batched_tokens)),
        *("--max-model-len", str(card.max_model_len)),
        *("--scheduling-policy", "priority"),
        "--enable-prefix-caching" if card.prefix_caching else "--no-enable-prefix-caching",
        "--async-scheduling" if card.async_scheduling else "--no-async-scheduling",
        "--disable-uvicorn-access-log",  # the watcher asks every second
    ]
    # No usage statistics without consent; modules of the working folder are not vLLM's.
    env = {"VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if model.load_format is not None:
        arguments += ["--load-format", model.load_format]
    if pool.gpu_of(model).is_cpu:
        # The cache is as large as the card says; on a GPU vLLM takes what memory there is.
        arguments += ["--block-size", str(card.block_size)]
        if not any(a.startswith("--num-gpu-blocks-override") for a in model.extra_args):
            arguments += ["--num-gpu-blocks-override", str(card.num_kv_blocks)]
    else:
        arguments += ["--gpu-memory-utilization", f"{model.gpu_memory_frac:g}"]
        arguments += ["--tensor-parallel-size", str(model.tensor_parallel)]
        if card.data_parallel_size > 1:
            arguments += ["--data-parallel-size", str(card.data_parallel_size)]
        if card.block_size != _GPU_BLOCK:
            arguments += ["--block-size", str(card.block_size)]
        # The model's GPUs as CUDA numbers them: in the pool's order, among the visible ones.
        order = [gpu.name for gpu in pool.gpus if not gpu.is_cpu]
        devices = [str(index) for index in range(len(order))]
        if visible is not None:
            devices = [device.strip() for device in visible.split(",") if device.strip()]
        wanted = [order.index(name) for name in model.all_gpus]
        if max(wanted) >= len(devices):
            raise ConfigError(
                f"model {model.alias!r} is on GPU {max(wanted) + 1} of the pool, but "
                f"CUDA_VISIBLE_DEVICES={visible!r} lets us use {len(devices)}"
            )
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices[index] for index in wanted)
    if model.sleep_mode:
        env["VLLM_SERVER_DEV_MODE"] = "1"
        if not pool.gpu_of(model).is_cpu:  # refused there; the endpoints work without it
            arguments.append("--enable-sleep-mode")
    return ServerCommand((*arguments, *model.extra_args), {**env, **model.env})


def weights_of(model: ModelConfig, python: Path | None = None) -> str:
    """Return the weights for vLLM to load; with vLLM's `python`, make missing tiny ones.

    Raises:
        ConfigError: the folder is missing, or cannot be made.
    """
    path, cache = model.path or model.name, cache_folder().absolute()
    try:
        folder = weights.folder(path, cache)
    except ValueError as error:
        raise ConfigError(f"model {model.alias!r}: path: {error}") from None
    if folder is None:
        if not path.startswith(("/", "~", "./", "../")):
            return path
        folder = Path(path).expanduser().absolute()
        if not folder.exists():
            raise ConfigError(f"model {model.alias!r}: path: {folder}: there is no such folder")
    elif python is not None and not weights.is_made(folder):
        arguments = [str(python), weights.__file__, path, str(cache)]
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        done = subprocess.run(arguments, capture_output=True, text=True, env=env)
        if done.returncode:
            output = (done.stderr or done.stdout).strip()
            raise ConfigError(f"model {model.alias!r}: {path} cannot be made: {output}")
    return str(folder)


def simulation_command(pool: PoolConfig, simulation: Simulation, host: str) -> ServerCommand:
    """Return the command of the process that simulates all models of a pool with a port."""
    load_workload(simulation.workload)
    if Path(simulation.workload).is_file():  # the process runs in another folder
        workload = str(Path(simulation.workload).absolute())
        simulation = simulation.model_copy(update={"workload": workload})
    content = SimulatedPool(pool=pool, host=host, **simulation.model_dump())
    env = {SIMULATED_ENV: content.model_dump_json()}
    env |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return ServerCommand((sys.executable, "-m", "inframind_gym.live.simulated.server"), env)


# Processes


@dataclass(slots=True)
class Launch:
    """One server on its way up."""

    model: ModelConfig
    url: str
    phase: Phase = "queued"
    already: bool = False  # it ran before this call, or has a `url`
    command: ServerCommand | None = None
    child: subprocess.Popen[bytes] | None = None  # that this call started
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
        python: interpreter that has vLLM (`vllm_python`).
        host: address that servers listen on: "127.0.0.1", or "0.0.0.0" for the whole network, which
            needs a password: $VLLM_API_KEY.
        simulation: start one process that simulates all servers (`simulated/`); None: vLLM's.
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

    def up(
        self, *, timeout_s: float = TIMEOUT_S, watch: Watch = lambda launches: None
    ) -> list[Launch]:
        """Start the servers that do not answer, and wait until all do.

        Servers that share a GPU come up one after the other: vLLM counts memory that another one is
        filling meanwhile as its own. If one fails or ends before all are up, or on any exception,
        KeyboardInterrupt included, every server that this call started is stopped.

        Args:
            timeout_s: for each server, from its start.
            watch: called twice a second with all launches, which are in the pool's order.

        Raises:
            InfraMindError: a failure that can be foreseen: nothing was started.
        """
        servers = addresses(self.pool)
        pairs = zip(self.pool.models, servers, strict=True)
        launches = [Launch(model, server.url) for model, server in pairs]
        with self._started.locked(), MetricsWatcher(servers, _CHECK, poll_s=TIMEOUT_S) as watcher:
            self._prepare(launches, watcher.status())
            phases = {"queued"}
            try:
                while "failed" not in phases and phases & {"queued", "starting"}:
                    time.sleep(_POLL_S if "starting" in phases else 0.0)
                    self._start_queued(launches)
                    for launch, server in zip(launches, watcher.status(), strict=True):
                        if launch.phase in ("starting", "up") and launch.pid is not None:
                            self._check(launch, server, timeout_s)
                    watch(launches)
                    phases = {launch.phase for launch in launches}
            finally:
                if phases != {"up"}:
                    self._undo(launches)
        watch(launches)
        return launches

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop what was started (`StartedServers.down`)."""
        return self._started.down(grace_s)

    def _prepare(self, launches: Sequence[Launch], seen: Sequence[WatchedServer]) -> None:
        """Find what runs already, raise all problems at once, and make missing weights."""
        ours = [launch for launch in launches if launch.model.url is None]
        python = vllm_python(self._python) if ours and not self._simulation else None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
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
            if self._simulation is not None:
                command = simulation_command(self.pool, self._simulation, self._host)
            else:
                assert python is not None
                command = server_command(self.pool, launch.model, python, self._host, visible)
            launch.command = command
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
            else:
                try:
                    listening(self._host, port).close()
                except ConfigError:
                    problems.append(
                        f"{alias}: port {port} is taken. Stop what listens there, choose another "
                        f"port, or write `url: {launch.url}` in its place to use what runs there"
                    )
        if problems:
            raise InfraMindError("\n".join([*problems, "Nothing was started."]))
        self._started.end(stale)
        for launch in ours:
            if python is not None and not launch.already:
                weights_of(launch.model, python)

    def _start_queued(self, launches: Sequence[Launch]) -> None:
        """Start queued servers on whose GPUs no other server is loading."""
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
        command = launches[0].command
        assert command is not None
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
        start_s = start_of(psutil.Process(child.pid))  # at least a zombie: its parent is here
        for launch in launches:
            launch.phase, launch.child, launch.began_s = "starting", child, time.monotonic()
            launch.pid, launch.log = child.pid, log
            self._started.write(
                StartedServer(
                    alias=launch.model.alias,
                    pid=child.pid,
                    start_s=start_s,
                    url=launch.url,
                    log=str(log),
                    settings=command.digest,
                    simulated=self._simulation is not None,
                )
            )

    def _check(self, launch: Launch, answer: WatchedServer, timeout_s: float) -> None:
        """Check a server that was started: it may have come up, failed or ended."""
        server = self._started.servers[launch.model.alias]
        if not server.runs:
            code = None if launch.child is None else launch.child.poll()
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
    """Return the last lines of a log that are not blank; none if it cannot be read."""
    try:
        text = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def pool_status(pool: PoolConfig, state: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the state of the servers of a pool, in the pool's order, for people and scripts.

    `state` is "up", "asleep", "silent" (it runs and does not answer: it starts or hangs), "died",
    "stopped" (nothing was started, nothing answers) or "unreachable" (nothing answers at its url).
    Of servers that were started here: the process. Of those that are up: requests, share of the KV
    cache, mean times of all requests that have ended. The argument `state` is the folder of what
    was started. An error: a model has neither port nor url.
    """
    started = StartedServers(pool.name, state).read()
    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=TIMEOUT_S) as watcher:
        answers = watcher.status()
    rows = []
    for model, answer in zip(pool.models, answers, strict=True):
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
        row = dict.fromkeys(("running", "waiting", "kv_frac"))
        row |= {"alias": model.alias, "state": now, "url": answer.url, "note": note}
        row |= {"simulated": ours is not None and ours.simulated, "times_s": {}}
        row["pid"] = ours.pid if ours is not None and runs else None
        if answer.up and (reading := answer.reading) is not None:
            row |= {"running": int(reading.running_req), "waiting": int(reading.waiting_req)}
            row["kv_frac"] = round(reading.kv_frac, 4)
            means = reading.sums.items()
            row["times_s"] = {name: round(total / n, 4) for name, (total, n) in means if n}
        rows.append(row)
    return rows
