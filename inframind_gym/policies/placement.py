"""Placements that are rules, and the bound `everywhere`.

An action is per GPU 0, or 1 + the model to make active.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from inframind_gym.envs.core import Bools, Ints
from inframind_gym.envs.placement import PlacementContext, PlacementSimulation, PlacementSpec
from inframind_gym.policies.base import ContextPolicy
from inframind_gym.simulator.placement.config import GpuGroup, build_params
from inframind_gym.simulator.placement.state import (
    EVERYWHERE,
    NONE,
    ClusterParams,
    first_gpu,
    is_coming,
)

HIGH: Final = 0.7  # use of slots above which `threshold` adds copies
LOW: Final = 0.3  # use below which it may take a copy away
_WIDEST: Final = 8  # GPUs of the widest instance: each model's share is a multiple of it


class BasePlacementPolicy(ContextPolicy[PlacementSpec, PlacementContext]):
    """A policy that decides row by row."""

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Make a random generator for each row."""
        super().reset(spec, seeds)
        self.generators = [np.random.default_rng(seed) for seed in seeds]

    def choose(self, context: PlacementContext, rows: Ints) -> Ints:
        """Return one decision a row, by `decide`, (n, G)."""
        actions = np.zeros((len(rows), self.spec.num_gpus), np.int64)
        for i, row in enumerate(rows.tolist()):
            actions[i] = self.decide(
                PlacementContext._make(part[i : i + 1] for part in context), row
            )
        return actions

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """Return the decision of one row, (G,).

        Args:
            context: of this row alone: arrays with a first axis of 1.
            row: its index, for what is remembered per row.
        """
        raise NotImplementedError


def blocks_of(spec: PlacementSpec, m: int, is_open: Bools) -> list[slice]:
    """Return the blocks of GPUs of model `m` that are open (G,) as a whole, in order."""
    tp = int(spec.tp[m])
    blocks = [slice(g, g + tp) for g in range(0, spec.num_gpus - tp + 1, tp)]
    return [block for block in blocks if is_open[block].all()]


def open_blocks(
    spec: PlacementSpec, context: PlacementContext, m: int, action: Ints
) -> list[slice]:
    """Return the blocks on which model `m` could be made active now and is not, in order.

    Args:
        action: (G,) the decision so far; blocks for which it chooses something are left out.
    """
    is_open = context.mask[0, :, m + 1] & (context.active[0] != m) & (action == 0)
    return blocks_of(spec, m, is_open)


class RandomPlacement(BasePlacementPolicy):
    """At each decision each GPU takes, with probability 0.1, a random model that is open to it.

    A tensor-parallel model takes its whole block, so that choices are legal.
    """

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """See the class."""
        rng, spec = self.generators[row], self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        for g in range(spec.num_gpus):
            wanted = rng.random() < 0.1
            m = int(rng.integers(spec.num_models))
            tp = int(spec.tp[m])
            block = slice(first_gpu(g, tp), first_gpu(g, tp) + tp)
            if wanted and block in open_blocks(spec, context, m, action):
                action[block] = m + 1
        return action


class StaticPlacement(BasePlacementPolicy):
    """Blocks of GPUs go to the models in turn, widest first; once there they stay.

    With fewer GPUs than the models want, the last of the list are never awake.
    """

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Share out the GPUs."""
        super().reset(spec, seeds)
        self.plan = np.full(spec.num_gpus, NONE)
        fits = spec.vram_mb[:, None] >= spec.active_mb
        order = np.argsort(-spec.tp, kind="stable").tolist()
        # Each round places every model once, as long as there is room; the first round in the
        # list's order decides who is left out.
        placed = True
        while placed:
            placed = False
            for m in order:
                for block in blocks_of(spec, m, fits[:, m] & (self.plan == NONE))[:1]:
                    self.plan[block] = m
                    placed = True

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """Choose the planned model wherever it is not active and may be loaded."""
        action = np.zeros(self.spec.num_gpus, np.int64)
        for m in range(self.spec.num_models):
            for block in open_blocks(self.spec, context, m, action):
                if (self.plan[block] == m).all():
                    action[block] = m + 1
        return action


def instances(spec: PlacementSpec, context: PlacementContext) -> Ints:
    """Return the number of instances of each model that are awake or coming, (M,)."""
    awake = context.active[0][:, None] == np.arange(spec.num_models)
    coming = is_coming(context.state[0])
    count: Ints = (awake | coming).sum(axis=0) // spec.tp
    return count


class LruPlacement(BasePlacementPolicy):
    """Swap on demand, as a cache does.

    A model with waiting calls that is neither awake nor coming takes the block of GPUs that has
    been idle longest, counted from its latest call in flight. The model with the oldest waiting
    calls comes first. GPUs that serve are taken only if no other block is open.
    """

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Forget when GPUs were used."""
        super().reset(spec, seeds)
        self._used_s = np.full((len(seeds), spec.num_gpus), -1.0)

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """See the class."""
        used = self._used_s[row]
        if context.time_s[0] == 0.0:
            used[:] = -1.0
        used[context.in_flight[0] > 0] = context.time_s[0]
        action = np.zeros(self.spec.num_gpus, np.int64)
        missing = (context.waiting[0] > 0) & (instances(self.spec, context) == 0)
        for m in np.argsort(-context.age_sum_s[0], kind="stable").tolist():
            blocks = open_blocks(self.spec, context, m, action) if missing[m] else []
            if blocks:
                action[min(blocks, key=lambda block: float(used[block].max()))] = m + 1
        return action


class GreedyPlacement(BasePlacementPolicy):
    """Every idle GPU loads the model with most waiting calls per copy.

    Models are taken by waiting calls per instance, the copies of this decision counted, until none
    has any; the first open block without a call in flight and whose own model has none waiting
    takes each. The cost of a switch is ignored.
    """

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """See the class."""
        spec = self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        copies = instances(spec, context)
        waiting = context.waiting[0]
        active = context.active[0]
        idle = (context.in_flight[0] == 0) & ((active == NONE) | (waiting[active] == 0))
        has_no_block = np.zeros(spec.num_models, np.bool_)
        while True:
            pressure = np.where(has_no_block, 0.0, waiting / (copies + 1.0))
            m = int(pressure.argmax())
            if pressure[m] <= 0.0:
                return action
            blocks = [b for b in open_blocks(spec, context, m, action) if idle[b].all()]
            if blocks:
                action[blocks[0]] = m + 1
                copies[m] += 1
            else:
                has_no_block[m] = True


class ThresholdPlacement(BasePlacementPolicy):
    """An autoscaler with two thresholds on the use of slots.

    The use of a model is its calls in flight and waiting over the slots of its instances. A model
    above HIGH, or with waiting calls and no instance, gets one more. It takes the block whose
    models are least used, all of them below LOW and with another instance or no demand. A model
    without an instance may take any open block.
    """

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """See the class."""
        spec = self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        copies = instances(spec, context)
        active = context.active[0]
        is_active = active[:, None] == np.arange(spec.num_models)
        in_flight = (context.in_flight[0][:, None] * is_active).sum(axis=0) / spec.tp
        demand = in_flight + context.waiting[0]
        use = demand / np.maximum(copies * spec.slots, 1)
        missing = (copies == 0) & (context.waiting[0] > 0)
        order = np.lexsort((-use, ~missing))
        for m in order.tolist():
            if not missing[m] and use[m] <= HIGH:
                continue
            blocks = []
            for block in open_blocks(spec, context, m, action):
                owners = np.unique(active[block][active[block] != NONE])
                spare = ((copies[owners] > 1) | (demand[owners] == 0)).all()
                calm = (use[owners] < LOW).all()
                if missing[m] or (spare and calm):
                    blocks.append((use[owners].max(initial=-1.0), block.start, block, owners))
            if blocks:
                _, _, block, owners = min(blocks)
                copies[owners] -= 1
                copies[m] += 1
                action[block] = m + 1
        return action


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
    """Every model awake on all GPUs, without switching.

    The same jobs meet a cluster in which every model has as many GPUs for itself as the real
    cluster has in all, awake from the beginning. Every call finds at its next tick more free
    servers of its model than any placement could give it, so it waits less and its batch slows it
    less. That is optimistic, and no proof for each single job: the router sends to the server of
    least drain latency, a rule and not an optimum. The proven bound is weaker: no job ends before
    its `ideal_s`, the longest line of its calls, each alone.
    """

    bound: ClassVar = True
    simulation: ClassVar = EverywhereSimulation

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """Leave every GPU alone."""
        return np.zeros(self.spec.num_gpus, np.int64)
