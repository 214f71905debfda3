"""`everywhere`, a bound: every model awake on all GPUs, without switching.

The same jobs meet a cluster in which every model has as many GPUs for itself as the real cluster
has in all, awake from the beginning. Every call finds at its next tick more free servers of its
model than any placement could give it, so it waits less and its batch slows it less. That is
optimistic, and no proof for each single job: the router sends to the server of least drain latency,
a rule and not an optimum. The proven bound is weaker: no job ends before its `ideal_s`, the longest
line of its calls, each alone.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext
from inframind_gym.envs.placement.simulation import PlacementSimulation, build_params
from inframind_gym.policies.placement.protocol import BasePlacementPolicy
from inframind_gym.simulator.placement.cards import GpuGroup
from inframind_gym.simulator.placement.state import EVERYWHERE, ClusterParams

_WIDEST = 8  # GPUs of the widest instance: each model's share is a multiple of it


class EverywhereSimulation(PlacementSimulation):
    """The cluster of the bound, with the jobs of the real one."""

    def _build_world(self) -> ClusterParams:
        """Return the constants of the real cluster, its GPUs multiplied."""
        real = super()._build_world()
        share = -(-self.cluster_config.num_gpus // _WIDEST) * _WIDEST
        memory = max(card.active_mem_MB for card in self.cards)
        many = GpuGroup(count=share * len(self.cards), vram_total_MB=memory, alpha=1.0)
        cluster = self.cluster_config.model_copy(update={"gpus": (many,)})
        world = build_params(self.config, cluster, self.cards, self.demand, self.arrivals)
        settings = real.settings.copy()  # rates and norms are those of the real cluster
        settings["initial"] = EVERYWHERE
        settings["foreign_mb"] = 0.0
        return world._replace(settings=settings)


class EverywherePlacement(BasePlacementPolicy):
    """The bound as a policy: it leaves every GPU alone in a cluster of its own kind.

    Attributes:
        bound: listed with the contestants, not ranked.
        simulation: the cluster in which it is measured.
    """

    name = "everywhere"
    bound: ClassVar = True
    simulation: ClassVar = EverywhereSimulation

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Leave every GPU alone."""
        return np.zeros(self.spec.num_gpus, np.int64)
