"""Runs cells: one policy on several episodes of one cluster, in lock-step.

The loop is that of the environment, without its autoreset: after the last decision the cluster is
still there to be looked at. A row's result depends on its own cell alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import StoppedError, blame, checked
from inframind_gym.benchmark.families import Player
from inframind_gym.benchmark.placement.suite import TRACED, PlacementCell, PlacementSuite
from inframind_gym.envs.placement.config import placement_config
from inframind_gym.envs.placement.context import contexts, spec_of
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.policies.placement import registry as placement
from inframind_gym.policies.placement.protocol import PlacementPolicy
from inframind_gym.simulator.placement.state import C_LOADS, C_WAKES, NONE

Decision = dict[str, Any]  # a record of the results


def env_kwargs(suite: PlacementSuite, cluster: str, demand: str) -> dict[str, Any]:
    """Return the JSON arguments of the environment of a place."""
    demand = suite.source("demands", demand)
    return {
        "cluster": suite.source("clusters", cluster),
        "demand": demand,
        "trace": suite.arrivals if demand == TRACED else None,
        "load": suite.load,
        "num_decisions": suite.num_decisions,
    }


@dataclass
class PlacementSimulator(Player):
    """Runs batches of cells on simulated clusters."""

    suite: PlacementSuite
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    began: float = field(default=0.0, init=False)
    _made: tuple[Any, PlacementSimulation] | None = field(default=None, init=False)

    def run(
        self, cells: Sequence[PlacementCell]
    ) -> Iterator[list[tuple[PlacementCell, list[Decision], list[float]]]]:
        """Run cells; yields each with its decisions and the milliseconds that each of them took."""
        first, rows = cells[0], np.arange(len(cells))
        policy, simulation, observations = self._start(cells)
        self.began = time.monotonic()
        choices = MultiDiscrete([simulation.num_models + 1] * simulation.num_gpus)
        decisions: list[list[Decision]] = [[] for _ in cells]
        took_ms: list[float] = []
        before = _totals(simulation)
        for number in range(self.suite.num_decisions):
            if self.stop():
                raise StoppedError
            seen = contexts(simulation, rows)
            with blame(first.policy):
                began = time.thread_time()
                chosen = policy.act_batch(observations.copy(), seen, rows)
                took_ms.append(1e3 * (time.thread_time() - began) / len(cells))
            actions = checked(first.policy, chosen, choices, len(cells))
            simulation.step(actions, observations)
            after = _totals(simulation)
            for row in rows.tolist():
                decisions[row].append(_decision(simulation, row, number, before, after))
            before = after
            self.progress(len(cells))
            if self.watch is not None:
                self.watch(simulation)
        yield [(cell, decisions[row], took_ms) for row, cell in enumerate(cells)]

    def ask(self, cell: PlacementCell) -> None:
        """Make the policy and the cluster of a cell, and reset both."""
        self._start([cell])

    def warm_up(self, cell: PlacementCell) -> None:
        """Take one step as in a cell."""
        short = self.suite.model_copy(update={"num_decisions": 1})
        for _ in PlacementSimulator(short).run([cell]):
            pass

    def _start(
        self, cells: Sequence[PlacementCell]
    ) -> tuple[PlacementPolicy, PlacementSimulation, NDArray[np.float32]]:
        """Return a policy and its clusters at the begin of cells, and what it sees."""
        first = cells[0]
        generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
        with blame(first.policy):
            policy = placement.resolve(first.policy)
            simulation = self._simulation(policy, first, len(cells))
            observations = simulation.observations()
            simulation.start(np.arange(len(cells)), generators, observations)
            policy.reset(spec_of(simulation), [cell.policy_seed for cell in cells])
        return policy, simulation, observations

    def _simulation(self, policy: Any, cell: PlacementCell, rows: int) -> PlacementSimulation:
        """Return the last clusters if they fit, else new ones; a bound brings its own kind."""
        kind = getattr(policy, "simulation", PlacementSimulation)
        kwargs = env_kwargs(self.suite, cell.cluster, cell.demand)
        key = (kind, kwargs, rows)
        if self._made is None or self._made[0] != key:
            self._made = (key, kind(placement_config(kwargs), rows))
        return self._made[1]


def _totals(simulation: PlacementSimulation) -> NDArray[np.int64]:
    """Return (E, 4) calls, jobs that arrived, jobs that ended and switches so far."""
    episode = simulation.state.episode
    switches = episode["counter"][:, C_WAKES] + episode["counter"][:, C_LOADS]
    totals = [episode["requests_made"], episode["next_job"], episode["jobs_done"], switches]
    return np.stack(totals, axis=1).astype(np.int64)


def _decision(
    simulation: PlacementSimulation,
    row: int,
    number: int,
    before: NDArray[np.int64],
    after: NDArray[np.int64],
) -> Decision:
    """Return the results of a decision within its interval."""
    episode = simulation.state.episode[row]
    calls, arrived, _, switches = (after[row] - before[row]).tolist()
    request_s = max(float(episode["waiting_s"]), 0.0) + max(float(episode["service_s"]), 0.0)
    config, gpus = simulation.config, simulation.num_gpus
    return {
        "decision": number,
        "request_s": request_s,
        "calls": calls,
        "arrived": arrived,
        "late": int(episode["late"]),
        "illegal": int(episode["illegal"]),
        "choices": gpus,
        "switches": switches,
        "gpu_s": gpus * config.ticks * config.routing_interval_s,
        "serving": int((simulation.state.host[row] != NONE).sum()),
        "job_latency_s": simulation.completed(row)["latency_s"],
    }
