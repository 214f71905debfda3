"""Work spread over processes or over a Ray cluster, with the same result on any number of workers.

A worker is an object in a process of its own, or in an actor on Ray. It is called as
`worker(emit, request)`; the items that it emits arrive as they come, then the end of the request or
the error that ended it. `run_jobs` hands out jobs to workers of one kind, `Fleet` keeps stateful
shards. Processes are our own and not those of `concurrent.futures`, whose executors lose all work
when one process dies and have no items before the end.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeVar, cast

from inframind_gym.errors import InfraMindError

MAX_ATTEMPTS: Final = 3  # at work whose workers die
POLL_S: Final = 0.2
LOCAL: Final = "local"
ROOT: Final = Path(__file__).resolve().parents[2]
_CLIENT: Final = "ray://"
_SHIPPED: Final = ("agents", "baselines", "benchmarks", "envs_configs", "inframind_gym", "tests")
_STORE_BYTES: Final = 200_000_000  # of the object store of a local cluster: it stays small
_CONNECT_S: Final = 10.0
_THREADS: Final = tuple(f"{of}_NUM_THREADS" for of in ("OMP", "OPENBLAS", "MKL", "NUMBA"))

Emit = Callable[[Any], None]
Message = tuple[Literal["item", "done", "error"], Any]
_Call = tuple[str, Sequence[Any], Mapping[int, Sequence[Any]]]  # method, shared and own arguments
J = TypeVar("J")


class WorkerDiedError(InfraMindError):
    """A worker is gone: killed, out of memory, or with its machine."""


class RayError(InfraMindError):
    """Ray is missing, or its cluster cannot be reached."""


class Worker(Protocol):
    """One worker, wherever it runs; it answers one request at a time."""

    def ask(self, request: Any) -> None:
        """Send a request; returns at once."""

    def read(self) -> list[Message]:
        """Return the messages that have arrived; blocks until there are some.

        Raises:
            WorkerDiedError: The worker is gone.
        """

    def end(self) -> None:
        """Stop the worker, busy or not."""


def load_object(path: str) -> Any:
    """Import the object that ``package.module:name`` names.

    Raises:
        InfraMindError: It is not of this form, or there is no such module or name.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InfraMindError(f"{path!r} must have the form package.module:name.")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InfraMindError(f"{path!r} cannot be imported: {error}.") from error


class _Target:
    """The object that a worker calls, made at the first request: errors need a way out."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        self._factory, self._config = factory, config
        self._made: Callable[[Emit, Any], None] | None = None

    def answer(self, request: Any, send: Callable[[bytes], None]) -> None:
        """Answer a request; pickled messages leave by `send`."""
        try:
            if self._made is None:
                self._made = cast(Any, load_object(self._factory)(**self._config))
            self._made(lambda item: send(pickle.dumps(("item", item), protocol=5)), request)
        except (BrokenPipeError, ConnectionResetError):  # the parent is gone
            raise
        except Exception as error:
            send(pickle.dumps(("error", _portable(error)), protocol=5))
        else:
            send(pickle.dumps(("done", None), protocol=5))


def _portable(error: Exception) -> Exception:
    """Return the error in a form that survives pickling, with its traceback as a note."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        known = isinstance(error, InfraMindError)
        copy = InfraMindError(str(error)) if known else RuntimeError(repr(error))
    if not isinstance(copy, InfraMindError):
        copy.add_note(f"raised in a worker:\n{trace}")
    return cast(Exception, copy)


def _serve(connection: Connection, factory: str, config: Mapping[str, Any]) -> None:
    """Answer requests in a process until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    for name in _THREADS:  # each worker is one core's work
        os.environ.setdefault(name, "1")
    target = _Target(factory, config)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            target.answer(connection.recv(), connection.send_bytes)


class _ProcessWorker:
    """A worker in a process of this machine, see `Workers.make`."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, config), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `read` raises
            self.connection.send(request)

    def read(self) -> list[Message]:
        try:
            return [pickle.loads(self.connection.recv_bytes())]
        except (EOFError, ConnectionResetError):
            self._process.join(timeout=1.0)
            raise WorkerDiedError(f"exit code {self._process.exitcode}") from None

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


class _Actor:
    """Answers requests on the cluster in one thread, and hands out the messages in another.

    It works in `folder`, where its machine has it.
    """

    def __init__(self, factory: str, config: Mapping[str, Any], folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self._target = _Target(factory, config)
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def ask(self, request: bytes) -> None:
        self._target.answer(pickle.loads(request), self._messages.put)

    def take(self) -> list[bytes]:
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages


class _RayWorker:
    """A worker in an actor on Ray, which takes one core of the cluster, see `Workers.make`."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        self._ray: Any = importlib.import_module("ray")
        remote = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=2)
        self._actor: Any = remote(_Actor).remote(factory, dict(config), os.getcwd())
        self.reference: Any = None

    def ask(self, request: Any) -> None:
        # As bytes, so that arrays arrive writable as in a process.
        self._actor.ask.remote(pickle.dumps(request, protocol=5))
        self.reference = self._actor.take.remote()

    def read(self) -> list[Message]:
        try:
            messages: list[Message] = [pickle.loads(m) for m in self._ray.get(self.reference)]
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(f"message of Ray: {_first_line(error)}") from None
        if messages[-1][0] == "item":  # more will come
            self.reference = self._actor.take.remote()
        return messages

    def end(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


class Workers:
    """Place where workers are made: this machine or a Ray cluster; a context manager.

    Args:
        workers: Most workers at a time.
        ray_address: Of a Ray cluster: ``ray://host:port``, ``host:port``, "auto" (the cluster of
            this machine), or "local" (a new one on this machine); None for processes.

    Attributes:
        size: Most workers at a time, at most the cores of the cluster.

    Raises:
        RayError: Ray is not installed, or nothing answers at the address.
    """

    def __init__(self, workers: int, ray_address: str | None = None) -> None:
        if workers < 1:
            raise InfraMindError(f"workers is {workers}; it must be at least 1.")
        self._ray: Any = None if ray_address is None else _connect(ray_address, workers)
        self.size = workers
        if self._ray is not None:
            self.size = max(1, min(workers, int(self._ray.cluster_resources().get("CPU", 1))))

    def make(self, factory: str, config: Mapping[str, Any]) -> Worker:
        """Make a worker that calls ``package.module:Class`` with these keyword arguments."""
        return (_ProcessWorker if self._ray is None else _RayWorker)(factory, config)

    def ready(self, workers: Sequence[Any]) -> list[Any]:
        """Wait for a moment, and return the workers that can be read or have died."""
        if self._ray is None:
            by_connection = {worker.connection: worker for worker in workers}
            return [by_connection[cast(Any, c)] for c in wait(list(by_connection), timeout=POLL_S)]
        by_reference = {worker.reference: worker for worker in workers}
        for number, timeout_s in ((len(workers), 0), (1, POLL_S)):
            found, _ = self._ray.wait(list(by_reference), num_returns=number, timeout=timeout_s)
            if found:
                break
        return [by_reference[reference] for reference in found]

    def close(self) -> None:
        """Leave the cluster; the second time does nothing."""
        if self._ray is not None:
            _disconnect()
        self._ray = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_users = 0  # of the connection with a cluster; the last one closes it, if it is ours
_ours = False


def _connect(address: str, workers: int) -> Any:
    """Connect this process with a cluster and return Ray; `_disconnect` undoes one call.

    Nodes on other machines are sent the packages of this checkout; nodes on this one import the
    same as this process. Workers work in the folder of this process where their machine has it:
    checkpoints with relative paths have to be on a file system that all machines share. A process
    that is connected already stays connected as it is.
    """
    global _users, _ours
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise RayError(
            "--ray-address needs Ray: install the extra `ray`, from the repository "
            '`pip install -c constraints.txt -e ".[ray]"`.'
        ) from None
    if not ray.is_initialized():
        try:
            _start(ray, address, workers)
        except (OSError, ValueError, RuntimeError) as error:
            raise RayError(
                f"no Ray cluster can be reached at {address!r}: {_first_line(error).rstrip('.')}. "
                "Start one (`ray start --head`), give this process its token if it asks for one "
                "(RAY_AUTH_TOKEN), or let --ray-address be 'local'."
            ) from error
        _ours = True
    _users += 1
    return ray


def _disconnect() -> None:
    global _users, _ours
    _users -= 1
    if _users == 0 and _ours:
        importlib.import_module("ray").shutdown()
        _ours = False


def _start(ray: Any, address: str, workers: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    here = {"env_vars": {"PYTHONPATH": _own_paths()}}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        small = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
        ray.init(LOCAL, num_cpus=workers, runtime_env=here, **small, **quiet)
        return
    if address != "auto":  # Ray itself would try for minutes
        host, _, port = address.removeprefix(_CLIENT).rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError("it is neither host:port, ray://host:port, 'auto' nor 'local'.")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    if address.startswith(_CLIENT):  # nothing is known of the cluster's machines
        ray.init(address, runtime_env=checkout_env(), log_to_driver=False)
        return
    ray.init(address, runtime_env=here, **quiet)
    own = ray.util.get_node_ip_address()
    if any(node["Alive"] and node["NodeManagerAddress"] != own for node in ray.nodes()):
        ray.shutdown()
        ray.init(address, runtime_env=checkout_env(), **quiet)


def checkout_env() -> dict[str, Any]:
    """Return the runtime environment that carries this checkout's packages to other machines."""
    others = sorted(path.name for path in ROOT.iterdir() if path.name not in _SHIPPED)
    caches = ["__pycache__", "*.pyc"]
    return {"working_dir": str(ROOT), "excludes": [*(f"/{name}" for name in others), *caches]}


def _own_paths() -> str:
    """Folders from which this process imports what is not installed, as PYTHONPATH."""
    installed = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    paths = [Path(entry or os.curdir).resolve() for entry in sys.path]
    mine = [ROOT, *(p for p in paths if not any(p.is_relative_to(where) for where in installed))]
    return os.pathsep.join(dict.fromkeys(map(str, mine)))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def run_jobs(
    where: Workers,
    factory: str,
    config: Mapping[str, Any],
    jobs: Iterable[J],
    *,
    retry: Callable[[J, WorkerDiedError], Iterable[J]],
    request: Callable[[J], Any] = lambda job: job,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[J, Any]]:
    """Hand out jobs to workers of one kind, and again when a worker dies.

    Args:
        where: Place of the workers.
        factory: ``package.module:Class`` of the object that they call.
        config: Its keyword arguments.
        jobs: In the order in which they are begun.
        retry: Called with the job that was lost and the reason; the jobs that it returns are done
            at the end. It raises when that has happened too often.
        request: Makes the worker's request of a job.
        stop: Called several times a second; raises to end the run.

    Yields:
        Jobs with the items of their workers, as they come.

    Raises:
        Exception: A worker raised it.
    """
    waiting = deque(jobs)
    at_work: dict[Worker, J] = {}

    def begin(worker: Worker) -> None:
        at_work[worker] = waiting.popleft()
        worker.ask(request(at_work[worker]))

    def end(worker: Worker) -> J:
        worker.end()
        return at_work.pop(worker)

    try:
        while waiting or at_work:
            while waiting and len(at_work) < where.size:
                begin(where.make(factory, config))
            stop()
            for worker in where.ready(list(at_work)):
                try:
                    messages = worker.read()
                except WorkerDiedError as death:
                    waiting.extend(retry(end(worker), death))
                    continue
                for kind, content in messages:
                    if kind == "error":
                        raise content
                    if kind == "item":
                        yield at_work[worker], content
                    elif waiting:
                        begin(worker)
                    else:
                        end(worker)
    finally:
        for worker in at_work:
            worker.end()


class _Shards:
    """Shards of one worker, made with the keyword arguments `configs` by their indices."""

    def __init__(self, factory: str, configs: Mapping[int, Mapping[str, Any]]) -> None:
        make = load_object(factory)
        self._shards = {index: make(**config) for index, config in configs.items()}

    def __call__(self, emit: Emit, request: _Call) -> None:
        """Emit (index, result) of a method call on each shard, one shard after the other."""
        method, shared, each = request
        for index, shard in self._shards.items():
            emit((index, getattr(shard, method)(*shared, *each[index])))


class Fleet:
    """A fixed number of stateful shards; a context manager.

    Results come in the order of the shards, and each shard sees the same calls in the same order
    wherever it is: the same seed gives the same bits for any number of workers. With one worker and
    no cluster everything runs in this process, without pickling. Shards of one worker are given the
    same arguments: a shard must not change them.

    Args:
        factory: ``package.module:Class`` of a shard.
        configs: Keyword arguments of every shard.
        workers: Most processes, or actors on Ray; shards are dealt out to them in turn.
        ray_address: Of a Ray cluster, see `Workers`; None for processes.

    Raises:
        RayError: Ray is missing or cannot be reached.
    """

    def __init__(
        self,
        factory: str,
        configs: Sequence[Mapping[str, Any]],
        workers: int = 1,
        ray_address: str | None = None,
    ) -> None:
        self._factory, self._configs = factory, [dict(config) for config in configs]
        self._inline: _Shards | None = None
        self._where: Workers | None = None
        self._workers: list[Worker | None] = []  # None: dead
        self._asked: _Call = ("", (), {})
        if ray_address is None and min(workers, len(configs)) <= 1:
            self._inline = _Shards(factory, dict(enumerate(self._configs)))
        else:
            self._where = Workers(max(1, min(workers, len(configs))), ray_address)
            self._workers = [None] * min(self._where.size, len(configs))
            self.restart()

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._configs)

    def restart(self) -> None:
        """Make the shards of dead workers again; the others keep their state."""
        for number, worker in enumerate(self._workers):
            if worker is None and self._where is not None:
                configs = {index: self._configs[index] for index in self._indices(number)}
                config = {"factory": self._factory, "configs": configs}
                self._workers[number] = self._where.make(f"{__name__}:_Shards", config)

    def _indices(self, worker: int) -> range:
        return range(worker, len(self), len(self._workers))

    def call(self, method: str, *shared: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Call a method on every shard: `ask`, then `results`."""
        self.ask(method, *shared, each=each)
        return self.results()

    def ask(self, method: str, *shared: Any, each: Sequence[Any] | None = None) -> None:
        """Begin a method call on every shard; `results` waits for its results.

        Workers begin at once; without any, `results` makes the calls.

        Args:
            method: Its name.
            *shared: Arguments that are the same for all shards.
            each: If given, ``each[i]`` is the last argument of shard i.

        Raises:
            WorkerDiedError: A worker died before; `restart` makes its shards again.
        """
        if each is not None and len(each) != len(self):
            raise InfraMindError(f"each has {len(each)} items for {len(self)} shards.")
        if (self._where is None and self._inline is None) or None in self._workers:
            raise WorkerDiedError("the fleet has dead or closed workers: call restart() first.")
        own = {i: () if each is None else (each[i],) for i in range(len(self))}
        self._asked = (method, shared, own)
        for number, worker in enumerate(self._workers):
            if worker is not None:
                worker.ask((method, shared, {i: own[i] for i in self._indices(number)}))

    def results(self) -> list[Any]:
        """Return the results of `ask`, in the order of the shards.

        Raises:
            WorkerDiedError: A worker died. The other shards have carried out the call; `restart`
                makes the lost ones again.
            Exception: The method of a shard raised it.
        """
        results: dict[int, Any] = {}
        if self._inline is not None:
            self._inline(lambda item: results.__setitem__(*item), self._asked)
        waiting = {w: number for number, w in enumerate(self._workers) if w is not None}
        failure: Exception | None = None
        while waiting and self._where is not None:
            for worker in self._where.ready(list(waiting)):
                try:
                    messages = worker.read()
                except WorkerDiedError as death:
                    number = waiting.pop(worker)
                    self._workers[number] = None
                    worker.end()
                    failure = WorkerDiedError(
                        f"worker {number} died ({death}) in {self._asked[0]!r}."
                    )
                    continue
                for kind, content in messages:
                    if kind == "item":
                        results.__setitem__(*content)
                        continue
                    waiting.pop(worker)
                    if kind == "error" and failure is None:
                        failure = content
        if failure is not None:
            raise failure
        return [results[index] for index in range(len(self))]

    def close(self) -> None:
        """Stop all workers; the second time does nothing."""
        for worker in self._workers:
            if worker is not None:
                worker.end()
        self._workers = [None] * len(self._workers)
        if self._where is not None:
            self._where.close()
            self._where = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
