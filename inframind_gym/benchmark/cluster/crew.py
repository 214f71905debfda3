"""Workers that take jobs from a queue; one that dies costs its job a retry, nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from inframind_gym.benchmark.cluster.hosts import Host, HostDiedError, ProcessHost, ready_processes
from inframind_gym.benchmark.cluster.ray_hosts import RayHost, connect, disconnect, ready_actors
from inframind_gym.errors import InfraMindError

MAX_ATTEMPTS: Final = 3  # at work that costs workers their life
POLL_S = 0.2

J = TypeVar("J")


class WorkerDiedError(InfraMindError):
    """A worker is gone: killed, out of memory, or with its machine."""


class Site:
    """Where hosts are made: this machine's processes, or a Ray cluster; a context manager.

    Args:
        workers: Most hosts at a time.
        ray_address: Of a Ray cluster, see `inframind_gym.benchmark.cluster.ray_hosts.connect`; None for processes.

    Attributes:
        size: Most hosts at a time, no more than there is room for.

    Raises:
        RayError: Ray is missing or cannot be reached.
    """

    def __init__(self, workers: int, ray_address: str | None = None) -> None:
        if workers < 1:
            raise InfraMindError(f"workers is {workers}; it must be at least 1.")
        self._on_ray = ray_address is not None
        self._open = True
        self.size = connect(ray_address, workers) if ray_address is not None else workers

    def host(self, factory: str, config: Mapping[str, Any]) -> Host:
        """Make a host."""
        return RayHost(factory, config) if self._on_ray else ProcessHost(factory, config)

    def ready(self, hosts: Sequence[Any], timeout_s: float = POLL_S) -> list[Any]:
        """Those of the hosts, all of this site, that can be read."""
        return (ready_actors if self._on_ray else ready_processes)(hosts, timeout_s)

    def close(self) -> None:
        """Leave the cluster; the second time does nothing."""
        if self._open and self._on_ray:
            disconnect()
        self._open = False


@contextmanager
def site(workers: int, ray_address: str | None = None) -> Iterator[Site]:
    """A `Site` for the time of a block."""
    made = Site(workers, ray_address)
    try:
        yield made
    finally:
        made.close()


def run_jobs(
    where: Site,
    factory: str,
    config: Mapping[str, Any],
    jobs: Iterable[J],
    *,
    retry: Callable[[J, HostDiedError], Iterable[J]],
    request: Callable[[J], Any] = lambda job: job,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[J, Any]]:
    """Hand out jobs to workers that are made alike, and again when a worker dies.

    Args:
        where: Where the workers are.
        factory: ``package.module:Class`` of the worker, see `inframind_gym.benchmark.cluster.hosts.Worker`.
        config: Its keyword arguments.
        jobs: What is to be done, in this order.
        retry: Told which job was lost and why; what it returns is done at the end. It raises when
            that has happened too often.
        request: What the worker is asked for a job.
        stop: Called several times a second; raises to end the run.

    Yields:
        Jobs with what their workers emit, as it comes.

    Raises:
        Exception: What a worker has raised.
    """
    queue = deque(jobs)
    at_work: dict[Host, J] = {}
    try:
        while queue or at_work:
            while queue and len(at_work) < where.size:
                host = where.host(factory, config)
                at_work[host] = queue.popleft()
                host.ask(request(at_work[host]))
            stop()
            for host in where.ready(list(at_work)):
                job = at_work[host]
                try:
                    messages = host.read()
                except HostDiedError as death:
                    del at_work[host]
                    host.end()
                    queue.extend(retry(job, death))
                    continue
                for kind, content in messages:
                    if kind == "error":
                        raise content
                    if kind == "item":
                        yield job, content
                    elif queue:
                        at_work[host] = queue.popleft()
                        host.ask(request(at_work[host]))
                    else:
                        del at_work[host]
                        host.end()
    finally:
        for host in at_work:
            host.end()
