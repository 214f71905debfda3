"""A fixed number of stateful shards, run here, in processes or on a Ray cluster.

The number and the shape of the shards belong to what is computed; where they run does not: results
come in the order of the shards, and each shard sees the same calls in the same order wherever it
is. So the same seed gives the same bits for any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from inframind_gym.benchmark.cluster.crew import Site, WorkerDiedError
from inframind_gym.benchmark.cluster.hosts import Emit, Host, HostDiedError, load_object
from inframind_gym.errors import InfraMindError

__all__ = ["Fleet", "WorkerDiedError"]


class Shards:
    """The shards of one worker.

    Args:
        factory: ``package.module:Class`` of a shard.
        configs: Keyword arguments of each shard, by its index.
    """

    def __init__(self, factory: str, configs: Mapping[int, Mapping[str, Any]]) -> None:
        make = load_object(factory)
        self._shards = {index: make(**config) for index, config in configs.items()}

    def __call__(
        self, emit: Emit, request: tuple[str, Sequence[Any], Mapping[int, Sequence[Any]]]
    ) -> None:
        """Emit (index, result) of a method call on each shard, one shard after the other."""
        method, shared, each = request
        for index, shard in self._shards.items():
            emit((index, getattr(shard, method)(*shared, *each[index])))


class Fleet:
    """Stateful shards; a context manager.

    With one worker and no cluster everything runs in this process, and arguments and results are
    handed over as they are; otherwise they are pickled. Shards of one worker are handed the same
    arguments: a shard must not change them.

    Args:
        factory: ``package.module:Class`` of a shard.
        configs: Keyword arguments of every shard.
        workers: Most processes, or actors on Ray; shards are dealt out to them in turn.
        ray_address: Address of a Ray cluster (``ray://host:port``, ``host:port``, "local"), or
            None.

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
        self._inline: Shards | None = None
        self._site: Site | None = None
        self._hosts: list[Host | None] = []  # None: dead
        self._asked: tuple[str, Sequence[Any], Mapping[int, Sequence[Any]]] = ("", (), {})
        if ray_address is None and min(workers, len(configs)) <= 1:
            self._inline = Shards(factory, dict(enumerate(self._configs)))
        else:
            self._site = Site(max(1, min(workers, len(configs))), ray_address)
            self._hosts = [None] * min(self._site.size, len(configs))
            self.restart()

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._configs)

    def restart(self) -> None:
        """Make the shards of dead workers anew; the others keep their state."""
        for number, host in enumerate(self._hosts):
            if host is None and self._site is not None:
                indices = range(number, len(self._configs), len(self._hosts))
                configs = {index: self._configs[index] for index in indices}
                config = {"factory": self._factory, "configs": configs}
                self._hosts[number] = self._site.host(
                    "inframind_gym.benchmark.cluster.fleet:Shards", config
                )

    def call(self, method: str, *shared: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Call a method on every shard: `ask`, then `results`."""
        self.ask(method, *shared, each=each)
        return self.results()

    def ask(self, method: str, *shared: Any, each: Sequence[Any] | None = None) -> None:
        """Have a method called on every shard; `results` waits for what it returns.

        Workers begin at once; without any, `results` makes the calls.

        Args:
            method: Its name.
            *shared: Arguments that are the same for all shards.
            each: If given, ``each[i]`` is the last argument of shard i.

        Raises:
            WorkerDiedError: A worker has died before; `restart` makes its shards anew.
        """
        if each is not None and len(each) != len(self):
            raise InfraMindError(f"each has {len(each)} items for {len(self)} shards.")
        if (self._site is None and self._inline is None) or None in self._hosts:
            raise WorkerDiedError("the fleet has dead or closed workers: call restart() first.")
        own = {i: () if each is None else (each[i],) for i in range(len(self))}
        self._asked = (method, shared, own)
        for number, host in enumerate(self._hosts):
            if host is not None:
                mine = {i: own[i] for i in range(number, len(self), len(self._hosts))}
                host.ask((method, shared, mine))

    def results(self) -> list[Any]:
        """What the shards have answered to `ask`, in their order.

        Raises:
            WorkerDiedError: A worker has died. The other shards have carried out the call;
                `restart` makes the lost ones anew.
            Exception: What the method of a shard has raised.
        """
        results: dict[int, Any] = {}
        if self._inline is not None:
            self._inline(lambda item: results.__setitem__(*item), self._asked)
        else:
            self._read(results)
        return [results[index] for index in range(len(self))]

    def _read(self, results: dict[int, Any]) -> None:
        waiting = {host: number for number, host in enumerate(self._hosts) if host is not None}
        failure: Exception | None = None
        while waiting and self._site is not None:
            for host in self._site.ready(list(waiting)):
                try:
                    messages = host.read()
                except HostDiedError as death:
                    number = waiting.pop(host)
                    self._hosts[number] = None
                    host.end()
                    failure = WorkerDiedError(
                        f"worker {number} died ({death}) in {self._asked[0]!r}."
                    )
                    continue
                for kind, content in messages:
                    if kind == "item":
                        results.__setitem__(*content)
                        continue
                    waiting.pop(host)
                    if kind == "error" and failure is None:
                        failure = content
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Stop all workers; the second time does nothing."""
        for host in self._hosts:
            if host is not None:
                host.end()
        self._hosts = [None] * len(self._hosts)
        if self._site is not None:
            self._site.close()
            self._site = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
