"""Workers: jobs in processes of this machine or on a Ray cluster, behind one interface.

A worker is an object that is called as `worker(emit, request)`. The items that it emits arrive as
they come, then the end of the request or the error that ended it. The processes are our own and not
those of `concurrent.futures`: its pools lose all work when one process dies, and have no items
before the end.
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
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, cast

from inframind_gym.errors import InfraMindError, needs

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
J = TypeVar("J")


class WorkerDiedError(InfraMindError):
    """A worker is gone: killed, out of memory, or with its machine."""


class RayError(InfraMindError):
    """Ray is missing, or its cluster cannot be reached."""


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
        self._made_of = factory, config
        self._made: Callable[[Emit, Any], None] | None = None

    def __call__(self, emit: Emit, request: Any) -> None:
        if self._made is None:
            factory, config = self._made_of
            self._made = cast(Callable[[Emit, Any], None], load_object(factory)(**config))
        self._made(emit, request)

    def answer(self, request: Any, send: Callable[[bytes], None]) -> None:
        """Answer a request; pickled messages leave by `send`."""
        try:
            self(lambda item: send(pickle.dumps(("item", item), protocol=5)), request)
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
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    for name in _THREADS:  # each worker is one core's work
        os.environ.setdefault(name, "1")
    target = _Target(factory, config)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            target.answer(connection.recv(), connection.send_bytes)


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended, whatever it is doing.

    The sentinel is a pipe that ends with the parent, or with the last process that has inherited
    its other end; the parent's id changes at once. PR_SET_PDEATHSIG would go by the thread that
    started this process, which can end long before its process does.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == parent.pid and not wait([parent.sentinel], timeout=POLL_S):
        pass
    os._exit(1)


class _ProcessWorker:
    """A worker in a process of this machine; it answers one request at a time."""

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, config), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: Any) -> None:
        """Send a request; returns at once."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `read` raises
            self.connection.send(request)

    def read(self) -> list[Message]:
        """Return the messages that have arrived, at least one; raises where the worker is gone."""
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
    """The same in an actor on Ray, which takes one core of the cluster."""

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


_Worker = _ProcessWorker | _RayWorker


class Workers:
    """Workers of one kind, which stay until the block ends; a context manager.

    A worker is made when there is a job for it. With one worker and no cluster the object is called
    in this process, and requests and items are handed over as they are; otherwise they are pickled.

    Args:
        factory: ``package.module:Class`` of the object that each worker calls.
        config: Its keyword arguments.
        workers: Most workers.
        ray_address: Of a Ray cluster: ``ray://host:port``, ``host:port``, "auto" (the cluster of
            this machine), or "local" (a new one on this machine); None for processes.

    Attributes:
        size: Most workers, at most the cores of the cluster.

    Raises:
        RayError: Ray is not installed, or nothing answers at the address.
    """

    def __init__(
        self,
        factory: str,
        config: Mapping[str, Any],
        workers: int = 1,
        ray_address: str | None = None,
    ) -> None:
        if workers < 1:
            raise InfraMindError(f"workers is {workers}; it must be at least 1.")
        self._made_of = factory, config
        self._idle: list[_Worker] = []
        self._ray: Any = None
        self._connected = False  # by us: then it is ours to disconnect
        if ray_address is not None:
            self._ray, self._connected = _connect(ray_address, workers)
        self._here = _Target(factory, config) if ray_address is None and workers == 1 else None
        self.size = workers
        if self._ray is not None:
            self.size = max(1, min(workers, int(self._ray.cluster_resources().get("CPU", 1))))

    def run(
        self,
        jobs: Iterable[J],
        *,
        retry: Callable[[J, WorkerDiedError], Iterable[J]] | None = None,
        request: Callable[[J], Any] = lambda job: job,
        stop: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[J, Any]]:
        """Hand out jobs, and again when a worker dies.

        Args:
            jobs: In the order in which they are begun.
            retry: Called with a job that was lost and the reason; the jobs that it returns are done
                at the end. It raises when that has happened too often; None: MAX_ATTEMPTS times.
            request: Makes the worker's request of a job.
            stop: Called several times a second; raises to end the run.

        Yields:
            Jobs with the items of their workers, as they come.

        Raises:
            WorkerDiedError: A job was lost too often.
            Exception: A worker raised it.
        """
        waiting, at_work = deque(jobs), dict[_Worker, J]()
        lost: Counter[int] = Counter()

        def again(job: J, death: WorkerDiedError) -> list[J]:
            lost[id(job)] += 1
            if lost[id(job)] == MAX_ATTEMPTS:
                raise WorkerDiedError(
                    f"a worker died {MAX_ATTEMPTS} times at one job (last {death})."
                )
            return [job]

        def begin(worker: _Worker) -> None:
            at_work[worker] = waiting.popleft()
            worker.ask(request(at_work[worker]))

        while waiting and self._here is not None:
            stop()
            job, items = waiting.popleft(), list[Any]()
            self._here(items.append, request(job))
            yield from ((job, item) for item in items)
        try:
            while waiting or at_work:
                while waiting and len(at_work) < self.size:
                    begin(self._idle.pop() if self._idle else self._make())
                stop()
                for worker in self._ready(list(at_work)):
                    try:
                        messages = worker.read()
                    except WorkerDiedError as death:
                        worker.end()
                        waiting.extend((retry or again)(at_work.pop(worker), death))
                        continue
                    for kind, content in messages:
                        if kind == "error":
                            raise content
                        if kind == "item":
                            yield at_work[worker], content
                        elif waiting:
                            begin(worker)
                        else:
                            del at_work[worker]
                            self._idle.append(worker)
        finally:
            for worker in at_work:
                worker.end()

    def _make(self) -> _Worker:
        return (_ProcessWorker if self._ray is None else _RayWorker)(*self._made_of)

    def _ready(self, workers: Sequence[Any]) -> list[Any]:
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
        """Stop all workers and leave the cluster; the second time does nothing."""
        while self._idle:
            self._idle.pop().end()
        if self._connected:
            self._ray.shutdown()
        self._ray, self._connected = None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(address: str, workers: int) -> tuple[Any, bool]:
    """Connect this process with a cluster; return Ray and whether there was no connection yet.

    Nodes on other machines are sent the packages of this checkout; nodes on this one import the
    same as this process. Workers work in the folder of this process where their machine has it:
    checkpoints with relative paths have to be on a file system that all machines share. A process
    that is connected already stays connected as it is.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise RayError(needs("--ray-address", "Ray", "ray")) from None
    if ray.is_initialized():
        return ray, False
    try:
        _start(ray, address, workers)
    except (OSError, ValueError, RuntimeError) as error:
        raise RayError(
            f"no Ray cluster can be reached at {address!r}: {_first_line(error).rstrip('.')}. "
            "Start one (`ray start --head`), give this process its token if it asks for one "
            "(RAY_AUTH_TOKEN), or let --ray-address be 'local'."
        ) from error
    return ray, True


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
