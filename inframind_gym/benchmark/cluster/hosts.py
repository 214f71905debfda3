"""Where work is done: a process of this machine, or an actor on a Ray cluster.

A host makes one object and calls it for every request: ``worker(emit, request)``. What the worker
emits arrives here as it comes, then the end of the request, or the error that it ended with. A host
that dies raises `HostDiedError` where it is read, whatever it died of; who reads it decides what is
to be done about that.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Literal, Protocol, cast

from inframind_gym.errors import InfraMindError

Emit = Callable[[Any], None]
Message = tuple[Literal["item", "done", "error"], Any]

_ONE_THREAD: Final = (  # each host is one core's work
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class HostDiedError(Exception):
    """A host is gone; the message says of what, as far as it is known."""


class Worker(Protocol):
    """What a host makes and calls."""

    def __call__(self, emit: Emit, request: Any) -> None:
        """Answer a request by emitting any number of items."""


class Host(Protocol):
    """One worker, wherever it is; it answers one request at a time."""

    def ask(self, request: Any) -> None:
        """Send a request; returns at once."""

    def read(self) -> list[Message]:
        """What has arrived; blocks until something has.

        Raises:
            HostDiedError: The host is gone.
        """

    def end(self) -> None:
        """Stop the host, whatever it is doing."""


def load_object(path: str) -> Any:
    """Import what ``package.module:name`` names.

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


def answer(worker: Callable[[], Worker], request: Any, send: Callable[[bytes], None]) -> None:
    """Let a worker answer a request; items, the end and errors leave by `send`, pickled.

    Args:
        worker: Gives the worker, or raises what making it has raised.
        request: Handed to the worker.
        send: Takes a pickled `Message`.
    """
    try:
        worker()(lambda item: send(pickle.dumps(("item", item), protocol=5)), request)
    except (BrokenPipeError, ConnectionResetError):  # nobody listens any more
        raise
    except Exception as error:
        send(pickle.dumps(("error", portable(error)), protocol=5))
    else:
        send(pickle.dumps(("done", None), protocol=5))


def portable(error: Exception) -> Exception:
    """The error in a form that survives pickling, with its traceback as a note."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        known = isinstance(error, InfraMindError)
        copy = InfraMindError(str(error)) if known else RuntimeError(repr(error))
    if not isinstance(copy, InfraMindError):
        copy.add_note(f"raised in a worker:\n{trace}")
    return cast(Exception, copy)


class Maker:
    """Makes a worker when it is first asked for, and repeats the error if that fails.

    Args:
        factory: ``package.module:Class``.
        config: Its keyword arguments.
    """

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        self._factory, self._config = factory, config
        self._worker: Worker | None = None

    def __call__(self) -> Worker:
        """The worker."""
        if self._worker is None:
            self._worker = load_object(self._factory)(**self._config)
        return cast(Worker, self._worker)


def _serve(connection: Connection, factory: str, config: Mapping[str, Any]) -> None:
    """Body of a process: requests in, messages out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    worker = Maker(factory, config)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            answer(worker, connection.recv(), connection.send_bytes)


class ProcessHost:
    """A worker in a process of its own.

    Args:
        factory: ``package.module:Class`` of the worker.
        config: Its keyword arguments.
    """

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, config), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: Any) -> None:
        """Send a request."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died: reading will tell
            self.connection.send(request)

    def read(self) -> list[Message]:
        """The next message."""
        try:
            return [pickle.loads(self.connection.recv_bytes())]
        except (EOFError, ConnectionResetError):
            self._process.join(timeout=1.0)
            raise HostDiedError(f"exit code {self._process.exitcode}") from None

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def ready_processes(hosts: Sequence[ProcessHost], timeout_s: float) -> list[ProcessHost]:
    """Those of the hosts that have something to read, or have died."""
    by_connection = {host.connection: host for host in hosts}
    ready = wait(list(by_connection), timeout=timeout_s)
    return [by_connection[cast(Connection, connection)] for connection in ready]
