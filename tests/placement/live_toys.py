"""A live cluster of servers that only pretend: two slots, three models, every fault on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveLimits, PlacementLiveConfig, ServerAddress
from inframind_gym.live.placement.cluster import LivePlacement
from inframind_gym.live.placement.instance import VllmServer
from inframind_gym.simulator.placement.state import STATE_NAMES
from tests.live.vllm_server.fake import Answer, FakeServer
from tests.placement.toys import write_demand

MODELS = ("tiny-4x256", "tiny-2x128", "tiny-1x64")
QWEN, LLAMA8, LLAMA3 = 1, 2, 3  # choices
SLEEP = "/sleep?level=1&mode=wait"


class Pretended(VllmServer):
    """The server of one instance: a fake one that starts at once.

    Attributes:
        fake: what runs; None where nothing does.
        past: what ran before.
        start_fails: why it cannot start.
    """

    def __init__(self, model: str, limits: LiveLimits) -> None:
        self.limits, self.url = limits, ""
        self.model = model
        self.fake: FakeServer | None = None
        self.past: list[FakeServer] = []
        self.script: Callable[[dict[str, Any], int], Answer] = lambda request, number: Answer()
        self.start_fails = ""

    def start(self, cancelled: Callable[[], bool]) -> ServerAddress:
        if self.start_fails:
            raise InfraMindError(self.start_fails)
        self.fake = FakeServer(lambda r, n: self.script(r, n), model=self.model)
        self.url = self.fake.url
        return ServerAddress(alias=self.model, url=self.url, model=self.model)

    def stop(self) -> None:
        if self.fake is not None:
            self.fake.close()
            self.past.append(self.fake)
            self.fake = None

    @property
    def all(self) -> list[FakeServer]:
        return [*self.past, *([self.fake] if self.fake else [])]


class Play:
    """A live cluster, and what is done with it."""

    def __init__(self, live: LivePlacement) -> None:
        self.live, self.seen = live, live.observations()

    def states(self, g: int) -> list[str]:
        return [STATE_NAMES[s] for s in self.live.state.instance["state"][0, g].tolist()]

    def begin(self, seed: int = 0, *, jobs: bool = True) -> None:
        """Begin an episode; without jobs all calls are those of `ask`."""
        self.live.reset(np.zeros(1, np.int64), [np.random.default_rng(seed)], self.seen)
        if not jobs:
            self.live.state.arrival_s[0] = np.inf
            self.live.world.dag["calls"] = 1

    def decide(self, *choices: int) -> None:
        self.live.step(np.zeros(1, np.int64), np.array([choices], np.int64), self.seen)

    def wake(self, choice: int) -> None:
        """Choose a model for GPU 0, and wait until it is awake there."""
        self.decide(choice, 0)
        self.until(lambda: self.states(0)[choice - 1] == "active")

    def ask(self, m: int, count: int = 1, tokens: int = 5) -> None:
        """Let jobs of one call for model `m` (from 0) come, soon."""
        state, traffic = self.live.state, self.live.traffic

        def add() -> None:
            state.rank[0] = m
            before = set(traffic._tokens)
            state.arrival_s[0, state.episode[0]["next_job"]] = self.live._records.now_s
            traffic.add_job(int(state.episode[0]["next_job"]))
            (slot,) = set(traffic._tokens) - before
            traffic._tokens[slot] = [(2, tokens)]

        for _ in range(count):
            self.live._records.put(add)

    @property
    def done(self) -> int:
        """Jobs that are over."""
        return int(self.live.state.episode[0]["jobs_done"])

    def summary(self, *names: str) -> list[float]:
        found = self.live.summary(0)
        return [found[name] for name in names]

    def until(self, true: Callable[[], object], limit_s: float = 60.0) -> None:
        """Leave all GPUs alone until something is so."""
        over_s = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < over_s, (self.live.table(0), self.live.transitions)
            self.decide(*[0] * self.live.num_gpus)


class Stage(Play):
    """A live cluster over servers that pretend.

    Attributes:
        servers: by leader and model.
    """

    def __init__(self, folder: Path, **arguments: Any) -> None:
        limits: dict[str, Any] = {"sleep_s": 1.0, "wake_s": 5.0, "backoff_s": 0.5, "health_s": 0.05}
        limits |= {"answer_s": 2.0, "misses": 3, **arguments.pop("live", {})}
        defaults: dict[str, Any] = {
            "pool": "cpu-tiny",
            "demand": write_demand(
                folder,
                jobs_per_gpu_per_min=300,
                topologies={"IO": 1},
                num_agents={1: 1},
                prompt_tokens={"median": 20, "sigma": 0.2},
                output_tokens={"median": 10, "sigma": 0.2},
            ),
            "routing_interval_s": 0.05,
            "decision_interval_s": 0.1,
            "num_decisions": 10,
            "state": str(folder / "state"),
            "live": limits,
        }
        self.limits = LiveLimits(**limits)
        self.servers: dict[tuple[int, int], Pretended] = {}
        super().__init__(
            LivePlacement(PlacementLiveConfig.model_validate(defaults | arguments), self.make)
        )

    def make(self, g: int, m: int) -> Pretended:
        if (g, m) not in self.servers:
            self.servers[g, m] = Pretended(MODELS[m], self.limits)
        return self.servers[g, m]

    def fake(self, g: int, m: int) -> FakeServer:
        fake = self.servers[g, m].fake
        assert fake is not None
        return fake

    @property
    def fakes(self) -> list[FakeServer]:
        """All that ever ran."""
        return [fake for server in self.servers.values() for fake in server.all]

    def settle(self) -> None:
        self.until(lambda: not self.live.state.episode[0]["moving"])

    @property
    def counters(self) -> dict[str, int]:
        return self.live.counters(0)

    def phases(self) -> list[tuple[str, str, str]]:
        return [(each.phase, each.model, each.now) for each in self.live.transitions]


@contextmanager
def stage(folder: Path, **arguments: Any) -> Iterator[Stage]:
    made = Stage(folder, **arguments)
    try:
        yield made
    finally:
        made.live.close()
        assert all(server.fake is None for server in made.servers.values())
        # Whatever else happened: nothing was ever sent to a sleeper, nobody slept before the end
        # of what was in flight.
        assert [fake.hung for fake in made.fakes if fake.hung] == []
        assert [n for fake in made.fakes for n in fake.open_at_sleep if n] == []


def open_choice(rng: np.random.Generator, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.array([rng.choice(np.flatnonzero(row)) for row in mask])


def on_gpu_0(play: Stage, m: int) -> None:
    """Have model `m` (from 0) awake on GPU 0, and no other there; nothing on GPU 1."""
    play.begin(jobs=False)
    play.wake(m + 1)
