"""Parallel work: processes of this machine or a Ray cluster, both through joblib."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from inframind_gym.errors import InfraMindError, require

MAX_ATTEMPTS: Final = 3  # at work whose processes die
LOCAL: Final = "local"
ROOT: Final = Path(__file__).resolve().parents[2]
_SHIPPED: Final = ("agents", "baselines", "benchmarks", "envs_configs", "inframind_gym", "tests")
_STORE_BYTES: Final = 200_000_000  # of the object store of a local cluster: it stays small
_POLL_S: Final = 0.2
J = TypeVar("J")


class WorkerDiedError(InfraMindError):
    """A process is gone: killed, out of memory, or with its machine."""


class RayError(InfraMindError):
    """Ray is missing, or its cluster cannot be reached."""


def available_cores() -> int:
    """Count the cores that this process may use; all cores where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(
    work: Callable[[J], Any],
    jobs: Sequence[J],
    workers: int,
    ray_address: str | None = None,
    wanted: Callable[[J], bool] = lambda job: True,
) -> Iterator[tuple[J, Any]]:
    """Yield jobs with their results as they come; jobs whose process dies are begun again.

    Args:
        work: A function of a module.
        jobs: In the order in which they are begun.
        workers: Processes, at most; one without a cluster is this one.
        ray_address: Of a Ray cluster: ``ray://host:port``, ``host:port``, "auto" (the cluster of
            this machine), or "local" (a new one on this machine); None for processes.
        wanted: Whether a job that is about to begin is still to be done.

    Raises:
        WorkerDiedError: Processes have died MAX_ATTEMPTS times.
        RayError: Ray is not installed, or nothing answers at the address.
    """
    if workers == 1 and ray_address is None:
        for job in jobs:
            if wanted(job):
                yield job, work(job)
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(jobs))
    deaths: tuple[type[Exception], ...] = (TerminatedWorkerError,)
    with _backend(ray_address, workers) as backend:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            options = {} if ray_address else {"inner_max_num_threads": 1}
            if ray_address:
                deaths = (importlib.import_module("ray.exceptions").RayActorError,)
            try:
                with parallel_config(backend, n_jobs=workers, **options):
                    # joblib's backend of Ray has no generators: it hands out a few jobs at a time.
                    at_once = 4 * workers if ray_address else max(len(left), 1)
                    how = "list" if ray_address else "generator_unordered"
                    waiting = list(left)
                    for start in range(0, len(waiting), at_once):
                        todo = (
                            delayed(_numbered)(work, i, jobs[i])
                            for i in waiting[start : start + at_once]
                            if wanted(jobs[i])
                        )
                        for i, result in Parallel(return_as=how, batch_size=1)(todo):
                            yield jobs[i], result
                            del left[i]
                return
            except deaths as error:
                if attempt == MAX_ATTEMPTS:
                    raise WorkerDiedError(
                        f"a process died {MAX_ATTEMPTS} times ({str(error).split('.')[0]}). If "
                        "memory ran out, use fewer --workers; what has finished is kept."
                    ) from None


def _numbered(work: Callable[[Any], Any], number: int, job: Any) -> tuple[int, Any]:
    """Do a job in a process that leaves Ctrl-C to its parent and ends with it."""
    if not any(thread.name == "end-with-parent" for thread in threading.enumerate()):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True)
        watch.name = "end-with-parent"
        watch.start()
    return number, work(job)


def _end_with_parent(parent: int) -> None:
    """End this process as soon as its parent has ended, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)


@contextmanager
def _backend(address: str | None, workers: int) -> Iterator[str]:
    """Connect to a cluster for the time of a block; yields the name of joblib's backend.

    Nodes on other machines are sent the packages of this checkout. A process that is connected
    already stays connected as it is.
    """
    if address is None:
        yield "loky"
        return
    try:
        ray: Any = require("ray", "--ray-address", "ray")
    except InfraMindError as error:
        raise RayError(str(error)) from None
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, address, workers)
    importlib.import_module("ray.util.joblib").register_ray()
    try:
        yield "ray"
    finally:
        if not connected:
            ray.shutdown()


def _connect(ray: Any, address: str, workers: int) -> None:
    paths = [str(ROOT), *(str(Path(entry or os.curdir).resolve()) for entry in sys.path)]
    outside = [path for path in paths if not Path(path).is_relative_to(sys.prefix)]
    here = {"env_vars": {"PYTHONPATH": os.pathsep.join(dict.fromkeys(outside))}}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    options = {"runtime_env": here, **quiet}
    if address.startswith("ray://"):  # nothing is known of the cluster's machines
        options = {"runtime_env": checkout_env(), "log_to_driver": False}
    elif address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"num_cpus": workers, "include_dashboard": False}
        options["object_store_memory"] = _STORE_BYTES
    try:
        if address not in (LOCAL, "auto"):  # Ray itself would try for minutes
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError("it is neither host:port, ray://host:port, 'auto' nor 'local'.")
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        ray.init(address, **options)
        if not address.startswith("ray://"):
            own = ray.util.get_node_ip_address()
            if any(node["Alive"] and node["NodeManagerAddress"] != own for node in ray.nodes()):
                ray.shutdown()
                ray.init(address, runtime_env=checkout_env(), **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RayError(
            f"no Ray cluster can be reached at {address!r}: {reason}. Start one (`ray start "
            "--head`), give this process its token if it asks for one (RAY_AUTH_TOKEN), or let "
            "--ray-address be 'local'."
        ) from error


def checkout_env() -> dict[str, Any]:
    """Return the runtime environment that carries this checkout's packages to other machines."""
    others = sorted(path.name for path in ROOT.iterdir() if path.name not in _SHIPPED)
    caches = ["__pycache__", "*.pyc"]
    return {"working_dir": str(ROOT), "excludes": [*(f"/{name}" for name in others), *caches]}
