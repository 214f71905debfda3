"""Workers as actors of a Ray cluster; nothing but Ray core is used, and only when asked for."""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from inframind_gym.benchmark.cluster.hosts import HostDiedError, Maker, Message, answer
from inframind_gym.errors import InfraMindError

LOCAL: Final = "local"
_CLIENT: Final = "ray://"
ROOT: Final = Path(__file__).resolve().parents[2]
_SHIPPED: Final = ("agents", "baselines", "benchmarks", "envs_configs", "inframind_gym", "tests")
_STORE_BYTES: Final = 200_000_000  # of the object store of a cluster of our own: it stays small
_KNOCK_S: Final = 10.0

_users = 0  # fleets that use the connection; the last one closes it, if it is ours
_ours = False


class RayError(InfraMindError):
    """Ray is missing, or its cluster cannot be reached."""


def connect(address: str, workers: int) -> int:
    """Connect this process with a cluster; each call must be followed by one of `disconnect`.

    Nodes on other machines are sent the packages of this checkout; nodes on this one import what
    this process imports. Workers work in the folder of this process where there is such a folder:
    checkpoints with relative paths have to be on a file system that all machines share. A process
    that is connected already stays where it is.

    Args:
        address: ``ray://host:port``, ``host:port``, "auto" (the cluster of this machine), or
            "local": a cluster of its own on this machine.
        workers: Wanted workers.

    Returns:
        How many workers the cluster has room for, at most `workers`, at least 1.

    Raises:
        RayError: Ray is not installed, or nothing answers at the address.
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
        _init(ray, address, workers)
        _ours = True
    _users += 1
    return max(1, min(workers, int(ray.cluster_resources().get("CPU", 1))))


def disconnect() -> None:
    """Undo one `connect`."""
    global _users, _ours
    _users -= 1
    if _users == 0 and _ours:
        import ray

        ray.shutdown()
        _ours = False


def _init(ray: Any, address: str, workers: int) -> None:
    import logging

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    here = {"env_vars": {"PYTHONPATH": _own_paths()}}
    try:
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            small = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
            ray.init(LOCAL, num_cpus=workers, runtime_env=here, **small, **quiet)
            return
        _knock(address)
        if address.startswith(_CLIENT):  # nothing is known of the cluster's machines
            ray.init(address, runtime_env=checkout_env(), log_to_driver=False)
            return
        ray.init(address, runtime_env=here, **quiet)
        if _has_other_machines(ray):
            ray.shutdown()
            ray.init(address, runtime_env=checkout_env(), **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise RayError(
            f"no Ray cluster can be reached at {address!r}: {reason[0].rstrip('.')}. "
            "Start one (`ray start --head`), give this process its token if it asks for one "
            "(RAY_AUTH_TOKEN), or let --ray-address be 'local'."
        ) from error


def _knock(address: str) -> None:
    """Try whether somebody listens: Ray itself would go on trying for minutes.

    Raises:
        OSError: Nobody does.
        ValueError: It is no address.
    """
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it is neither host:port, ray://host:port, 'auto' nor 'local'.")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _has_other_machines(ray: Any) -> bool:
    own = ray.util.get_node_ip_address()
    return any(node["Alive"] and node["NodeManagerAddress"] != own for node in ray.nodes())


def checkout_env() -> dict[str, Any]:
    """The runtime environment that carries the packages of this checkout to other machines."""
    others = sorted(path.name for path in ROOT.iterdir() if path.name not in _SHIPPED)
    caches = ["__pycache__", "*.pyc"]
    return {"working_dir": str(ROOT), "excludes": [*(f"/{name}" for name in others), *caches]}


def _own_paths() -> str:
    """Where this process finds what is not installed, for workers on the same machine."""
    installed = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    paths = [Path(entry or os.curdir).resolve() for entry in sys.path]
    mine = [ROOT, *(p for p in paths if not any(p.is_relative_to(where) for where in installed))]
    return os.pathsep.join(dict.fromkeys(map(str, mine)))


class Actor:
    """What runs on the cluster: one thread answers, another hands out the messages.

    Args:
        factory: ``package.module:Class`` of the worker.
        config: Its keyword arguments.
        folder: Where it works, if there is such a folder on its machine.
    """

    def __init__(self, factory: str, config: Mapping[str, Any], folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self._worker = Maker(factory, config)
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def ask(self, request: bytes) -> None:
        """Answer a pickled request."""
        answer(self._worker, pickle.loads(request), self._messages.put)

    def take(self) -> list[bytes]:
        """Wait for messages and hand out all that there are."""
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages


class RayHost:
    """A worker in an actor, which takes one core of the cluster.

    Args:
        factory: ``package.module:Class`` of the worker.
        config: Its keyword arguments.
    """

    def __init__(self, factory: str, config: Mapping[str, Any]) -> None:
        import ray

        self._ray: Any = ray
        remote = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=2)
        self._actor: Any = remote(Actor).remote(factory, dict(config), os.getcwd())
        self.reference: Any = None

    def ask(self, request: Any) -> None:
        """Send a request; it travels as bytes, so that arrays arrive writable as in a process."""
        self._actor.ask.remote(pickle.dumps(request, protocol=5))
        self.reference = self._actor.take.remote()

    def read(self) -> list[Message]:
        """The messages that have arrived."""
        try:
            messages: list[Message] = [pickle.loads(m) for m in self._ray.get(self.reference)]
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise HostDiedError(f"message of Ray: {reason[0]}") from None
        if messages[-1][0] == "item":  # more will come
            self.reference = self._actor.take.remote()
        return messages

    def end(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._actor, no_restart=True)


def ready_actors(hosts: Sequence[RayHost], timeout_s: float) -> list[RayHost]:
    """Those of the hosts that have something to read, or have died."""
    import ray

    references = {host.reference: host for host in hosts}
    ready, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
    if not ready:
        ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_s)
    return [references[reference] for reference in ready]
