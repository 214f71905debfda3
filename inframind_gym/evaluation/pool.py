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
        yield from ((job, work(job)) for job in jobs if wanted(job))
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(jobs))
    deaths: type[Exception] = TerminatedWorkerError
    options: dict[str, Any] = {"backend": "loky", "inner_max_num_threads": 1}
    how, at_once = "generator_unordered", len(left)
    with _cluster(ray_address, workers):
        if ray_address:  # joblib's backend of Ray has no generators: it takes a few jobs at a time
            deaths = importlib.import_module("ray.exceptions").RayActorError
            options, how, at_once = {"backend": "ray"}, "list", 4 * workers
        for attempt in range(1, MAX_ATTEMPTS + 1):
            waiting = list(left)
            try:
                with parallel_config(n_jobs=workers, **options):
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
    """Do a job in a process that leaves Ctrl-C to its parent and ends as soon as that has ended."""
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if not any(thread.name == "end-with-parent" for thread in threading.enumerate()):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()
    return number, work(job)


@contextmanager
def _cluster(address: str | None, workers: int) -> Iterator[None]:
    """Connect to a Ray cluster for the time of a block, and register joblib's backend of it.

    Nodes on other machines are sent the packages of this checkout. A process that is connected
    already stays connected as it is.
    """
    if address is None:
        yield
        return
    try:
        ray: Any = require("ray", "--ray-address", "ray")
    except InfraMindError as error:
        raise RayError(str(error)) from None
    connected = ray.is_initialized()
    if not connected:
        try:
            _connect(ray, address, workers)
        except (OSError, ValueError, RuntimeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise RayError(
                f"no Ray cluster can be reached at {address!r}: {reason}. Start one (`ray start "
                "--head`), give this process its token if it asks for one (RAY_AUTH_TOKEN), or let "
                "--ray-address be 'local'."
            ) from error
    importlib.import_module("ray.util.joblib").register_ray()
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()


def _connect(ray: Any, address: str, workers: int) -> None:
    """Connect to a cluster; raises OSError, ValueError or RuntimeError if there is none."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet |= {"num_cpus": workers, "include_dashboard": False}
        quiet["object_store_memory"] = _STORE_BYTES
    elif address != "auto":  # Ray itself would try for minutes
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError("it is neither host:port, ray://host:port, 'auto' nor 'local'.")
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    if address.startswith("ray://"):  # nothing is known of the cluster's machines
        ray.init(address, runtime_env=checkout_env(), log_to_driver=False)
        return
    paths = [str(ROOT), *(str(Path(entry or os.curdir).resolve()) for entry in sys.path)]
    outside = [path for path in paths if not Path(path).is_relative_to(sys.prefix)]
    here = {"env_vars": {"PYTHONPATH": os.pathsep.join(dict.fromkeys(outside))}}
    ray.init(address, runtime_env=here, **quiet)
    this = ray.util.get_node_ip_address()
    if any(node["Alive"] and node["NodeManagerAddress"] != this for node in ray.nodes()):
        ray.shutdown()
        ray.init(address, runtime_env=checkout_env(), **quiet)


def checkout_env() -> dict[str, Any]:
    """Return the runtime environment that carries this checkout's packages to other machines."""
    others = sorted(path.name for path in ROOT.iterdir() if path.name not in _SHIPPED)
    caches = ["__pycache__", "*.pyc"]
    return {"working_dir": str(ROOT), "excludes": [*(f"/{name}" for name in others), *caches]}
