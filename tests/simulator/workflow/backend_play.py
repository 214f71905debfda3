"""Play a sweep on a simulation, compiled or driven, and keep everything that was to be seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.live import BackendSimulation
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.simulator.workflow.backend import Backend, Call, Reply, ScriptedBackend
from inframind_gym.simulator.workflow.dispatch import (
    DECISION,
    RESUME,
    STREAM_OVER,
    TAGGED_QUERY_OVER,
)
from inframind_gym.simulator.workflow.state import START
from tests.simulator.workflow.surrogate_backend import SurrogateBackend

MODELS = ("llama-3b", "deepseek-32b", "qwen-14b", "mistral-24b", "llama-8b")
NUM_MODELS = 5
NUM_STRATEGIES = 3

Decide = Callable[[np.void, NDArray[np.float32]], NDArray[np.int64]]


@dataclass
class Sweep:
    """What the agent saw, earned and was told."""

    observations: NDArray[np.float32]  # (k, d)
    contexts: NDArray[Any]  # (k,)
    rewards: NDArray[np.float64]  # (k,)
    costs: NDArray[np.float64]
    statuses: list[int]
    completed: NDArray[Any]  # the agent's queries
    calls: NDArray[Any]


def play(
    simulation: RoutingSimulation,
    decide: Decide,
    *,
    seed: int = 0,
    rate_per_min: float = 100.0,
    budget_s: float = np.nan,
) -> Sweep:
    """One sweep from its start to its end."""
    observations = np.zeros((1, simulation.form.width), np.float32)
    rows = np.zeros(1, np.int64)
    generators = [np.random.default_rng(seed)]
    simulation.set_options({"arrival_rate_per_min": rate_per_min, "budget_s": budget_s})
    # Tagged queries from the first on.
    simulation._begin_streams(rows, generators, observations, inside=False)
    seen: list[list[Any]] = [[], [], [], [], []]
    completed = []
    while True:
        status = int(simulation.status[0])
        decisions = simulation.decisions
        now = (observations[0], decisions[0], simulation.rewards[0], simulation.costs[0], status)
        for column, value in zip(seen, now, strict=True):
            column.append(value.copy() if isinstance(value, np.ndarray | np.void) else value)
        if status == STREAM_OVER:
            break
        if status == TAGGED_QUERY_OVER:
            simulation.drive(
                RESUME, rows, np.zeros(0, START), np.zeros((1, 1), np.int64), observations
            )
            continue
        assert status == DECISION
        action = decide(decisions[0], observations[0]).reshape(1, -1)
        simulation.step(rows, action, observations)
        completed.append(simulation.completed(0))
    return Sweep(
        observations=np.array(seen[0]),
        contexts=np.array(seen[1]),
        rewards=np.array(seen[2]),
        costs=np.array(seen[3]),
        statuses=seen[4],
        completed=np.concatenate(completed),
        calls=simulation.calls(0),
    )


def at_random(simulation: RoutingSimulation, seed: int) -> Decide:
    """Random plans and routes; query after query goes through the six topologies."""
    rng = np.random.default_rng(seed)
    highs = {
        "executor": [simulation.num_routes],
        "planner": [6, 6] + [12] * 6,
        "joint": [6, 6] + [12] * 6 + [simulation.num_routes],
    }[simulation.config.level]

    def decide(context: np.void, observation: NDArray[np.float32]) -> NDArray[np.int64]:
        action = rng.integers(0, highs)
        if len(highs) > 1:
            action[0] = context["query"] % highs[0]
        return action

    return decide


def by_node(models: list[int], strategy: int = 0) -> Decide:
    """Node i goes to model models[i % len]."""
    return lambda context, observation: np.array(
        [models[int(context["node"]) % len(models)] * NUM_STRATEGIES + strategy]
    )


class Outage(NamedTuple):
    """A model is down: calls that it has at `from_s` fail then, later ones at once."""

    model: int
    from_s: float
    until_s: float = math.inf


class Failing(ScriptedBackend):
    """Scripted servers that go down."""

    def __init__(self, reply: Callable[[Call], Reply], outages: tuple[Outage, ...]) -> None:
        super().__init__(NUM_MODELS, self._answer)
        self._script, self._outages = reply, outages

    def _answer(self, call: Call) -> Reply:
        reply, now_s = self._script(call), self.now_s()
        for model, from_s, until_s in self._outages:
            if model == call.model and from_s < now_s + reply.latency_s and now_s < until_s:
                reply = replace(reply, latency_s=max(from_s - now_s, 0.0), failed=True)
        return reply

    def models_up(self) -> int:
        down = {m for m, from_s, until_s in self._outages if from_s <= self.now_s() < until_s}
        return super().models_up() & ~sum(1 << m for m in down)


class Scripted:
    """A driven simulation on a scripted backend, with the backends that it opened."""

    def __init__(
        self,
        reply: Callable[[Call], Reply],
        *,
        outages: tuple[Outage, ...] = (),
        retries: int = 0,
        patience_s: float = 600.0,
        kind: Callable[..., ScriptedBackend] = Failing,
        one_query: bool = False,
        topology: str = "IO",
        num_agents: int = 1,
        **arguments: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "num_queries": 1,
            "observation": "index",
            "record_calls": True,
            "planner": {"topology": topology, "num_agents": num_agents},
            "agents": {},
        }
        self.opened: list[ScriptedBackend] = []

        def open_backend(simulation: BackendSimulation, key: int) -> Backend:
            self.opened.append(kind(reply, outages))
            return self.opened[-1]

        self.simulation = BackendSimulation(
            checked_arguments(EnvConfig, {**defaults, **arguments}),
            open_backend,
            one_query=one_query,
            retries=retries,
            patience_s=patience_s,
        )

    def play(self, decide: Decide, **options: Any) -> Sweep:
        """One sweep."""
        return play(self.simulation, decide, **options)


def both(one_query: bool, seed: int, rate_per_min: float, **arguments: Any) -> tuple[Sweep, Sweep]:
    """The same sweep, compiled and driven."""
    defaults = {"num_queries": 30, "observation": "index", "record_calls": True}
    config = checked_arguments(EnvConfig, {**defaults, **arguments})
    compiled = RoutingSimulation(config, 1, one_query=one_query)
    driven = BackendSimulation(config, SurrogateBackend, one_query=one_query)
    ours, theirs = (
        play(s, at_random(s, seed), seed=seed, rate_per_min=rate_per_min)
        for s in (compiled, driven)
    )
    return ours, theirs


def same_sweep(ours: Sweep, theirs: Sweep) -> None:
    """Everything that was seen is equal."""
    assert ours.statuses == theirs.statuses
    for field in ("observations", "contexts", "rewards", "costs", "completed", "calls"):
        left, right = getattr(ours, field), getattr(theirs, field)
        assert left.dtype == right.dtype
        for name in left.dtype.names or (...,):
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{field} {name}")
