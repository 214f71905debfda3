"""What no placement can beat by much: every model awake everywhere, for nothing.

The same jobs meet a cluster in which every model has as many GPUs for itself as the real cluster
has in all, awake from the beginning: memory without end, no switching, no sharing. Every call finds
at its next tick more free servers of its model than any placement could give it, so it waits and is
slowed by its batch less. Optimistic, and no proof for each single job: the router sends to the
server of least drain latency, which is a rule and not an optimum. What is proven is weaker: no job
ends before its `ideal_s`, the longest line of its calls, each alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.placement.cards import GpuGroup
from inframind_gym.placement.config import placement_config
from inframind_gym.placement.context import PlacementContext
from inframind_gym.placement.policy import BasePlacementPolicy
from inframind_gym.placement.simulation import PlacementSimulation
from inframind_gym.placement.state import EVERYWHERE, World
from inframind_gym.placement.world import build_world

_WIDEST = 8  # GPUs of the widest instance: each model's share is a multiple of it


class EverywhereSimulation(PlacementSimulation):
    """The cluster of the bound, with the jobs of the real one."""

    def _build_world(self) -> World:
        """The world of the real cluster, its GPUs multiplied."""
        real = super()._build_world()
        share = -(-self.cluster_config.num_gpus // _WIDEST) * _WIDEST
        memory = max(card.active_mem_MB for card in self.cards)
        many = GpuGroup(count=share * len(self.cards), vram_total_MB=memory, alpha=1.0)
        cluster = self.cluster_config.model_copy(update={"gpus": (many,)})
        world = build_world(self.config, cluster, self.cards, self.demand, self.arrivals)
        settings = real.settings.copy()  # rates and norms are those of the real cluster
        settings["initial"] = EVERYWHERE
        settings["foreign_mb"] = 0.0
        return world._replace(settings=settings)


class EverywherePlacement(BasePlacementPolicy):
    """The bound as a policy: it leaves every GPU alone in a cluster of its own kind.

    Attributes:
        bound: it cannot be beaten by much, and is not ranked.
        simulation: the cluster in which it is measured.
    """

    name = "everywhere"
    bound: ClassVar = True
    simulation: ClassVar = EverywhereSimulation

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Nothing is to be done."""
        return np.zeros(self.spec.num_gpus, np.int64)


class BoundRun(NamedTuple):
    """What the bound reaches on one seed."""

    reward: float  # mean over the decisions of an episode
    late: int  # jobs whose deadline passed
    jobs: NDArray[Any]  # (k,) JOB_DONE


def optimistic(arguments: Mapping[str, Any], seeds: Sequence[int]) -> list[BoundRun]:
    """Run the bound on the jobs that environments with these arguments and seeds meet.

    Args:
        arguments: keyword arguments of `InfraMind-Placement-v0`.
        seeds: as given to `reset`.

    Raises:
        ConfigError: an argument is wrong.
    """
    simulation = EverywhereSimulation(placement_config(arguments), len(seeds))
    observations = simulation.observations()
    # Gymnasium's own way from a seed to a generator.
    generators = [np.random.Generator(np.random.PCG64(np.random.SeedSequence(s))) for s in seeds]
    simulation.start(np.arange(len(seeds)), generators, observations)
    alone = np.zeros((len(seeds), simulation.num_gpus), np.int64)
    rewards = np.zeros(len(seeds))
    for _ in range(simulation.config.num_decisions):
        simulation.step(alone, observations)
        rewards += simulation.terms.sum(axis=1)
    return [
        BoundRun(
            reward=float(rewards[e] / simulation.config.num_decisions),
            late=int(simulation.state.episode[e]["jobs_late"]),
            jobs=simulation.finished(e),
        )
        for e in range(len(seeds))
    ]
