"""Placements by a rule: random, static, LRU swap-on-demand, greedy loading, autoscaler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec
from inframind_gym.policies.placement.protocol import BasePlacementPolicy, block_of, open_blocks
from inframind_gym.simulator.placement.state import NONE, is_coming


class RandomPlacement(BasePlacementPolicy):
    """Each decision, each GPU with probability `change` takes a random model that is open to it.

    Groups are chosen as a whole, so its choices are legal.
    """

    name = "random"

    def __init__(self, change: float = 0.1) -> None:
        self.change = change

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Make one generator a row."""
        super().reset(spec, seeds)
        self._rng = [np.random.default_rng(seed) for seed in seeds]

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """See the class."""
        rng, spec = self._rng[row], self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        for g in range(spec.num_gpus):
            wanted = rng.random() < self.change
            m = int(rng.integers(spec.num_models))
            block = block_of(spec, g, m)
            is_open = block in open_blocks(spec, context, m)
            if wanted and is_open and not action[block.start : block.stop].any():
                action[block.start : block.stop] = m + 1
        return action


class StaticPlacement(BasePlacementPolicy):
    """Blocks of GPUs go to the models in turn, widest first; once there they stay.

    With fewer GPUs than the models want, the last of the list are never awake.
    """

    name = "static"

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Share out the GPUs."""
        super().reset(spec, seeds)
        self.plan = np.full(spec.num_gpus, NONE)
        order = sorted(range(spec.num_models), key=lambda m: (-int(spec.tp[m]), m))
        # Each round places every model once, as long as there is room; the first round in the
        # list's order decides who is left out.
        placed = True
        while placed:
            placed = False
            for m in order:
                block = self._next_block(m)
                if block is not None:
                    self.plan[block.start : block.stop] = m
                    placed = True

    def _next_block(self, m: int) -> range | None:
        tp = int(self.spec.tp[m])
        for first in range(0, self.spec.num_gpus - tp + 1, tp):
            block = slice(first, first + tp)
            fits = (self.spec.vram_mb[block] >= self.spec.active_mb[m]).all()
            if fits and (self.plan[block] == NONE).all():
                return range(first, first + tp)
        return None

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Choose what is planned wherever it is not there yet and may come."""
        action = np.zeros(self.spec.num_gpus, np.int64)
        for m in range(self.spec.num_models):
            for block in open_blocks(self.spec, context, m):
                if (self.plan[block.start : block.stop] == m).all():
                    action[block.start : block.stop] = m + 1
        return action


def instances(spec: PlacementSpec, context: PlacementContext) -> NDArray[np.int64]:
    """Return the number of instances of each model that are awake or coming, (M,)."""
    awake = context.active[0][:, None] == np.arange(spec.num_models)
    coming = is_coming(context.state[0])
    count: NDArray[np.int64] = (awake | coming).sum(axis=0) // spec.tp
    return count


class LruPlacement(BasePlacementPolicy):
    """Swap on demand, as a cache does.

    A model with waiting calls that is neither awake nor coming takes the block of GPUs that has
    been idle longest, counted from its latest call in flight. The model with the oldest waiting
    calls comes first. GPUs that serve are taken only if no other block is open.
    """

    name = "lru"

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Forget when GPUs were used."""
        super().reset(spec, seeds)
        self._used_s = np.full((len(seeds), spec.num_gpus), -1.0)

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """See the class."""
        used = self._used_s[row]
        if context.time_s[0] == 0.0:
            used[:] = -1.0
        used[context.in_flight[0] > 0] = context.time_s[0]
        action = np.zeros(self.spec.num_gpus, np.int64)
        missing = (context.waiting[0] > 0) & (instances(self.spec, context) == 0)
        for m in np.argsort(-context.age_sum_s[0], kind="stable").tolist():
            if not missing[m]:
                continue
            blocks = [
                block
                for block in open_blocks(self.spec, context, m)
                if not action[block.start : block.stop].any()
            ]
            if blocks:
                oldest = min(blocks, key=lambda block: max(used[g] for g in block))
                action[oldest.start : oldest.stop] = m + 1
        return action


class GreedyPlacement(BasePlacementPolicy):
    """Every idle GPU loads the model with most waiting calls per copy.

    Models are taken by waiting calls per instance, the copies of this decision counted, until none
    has any; the first open block without a call in flight and whose own model has none waiting
    takes each. The cost of a switch is ignored.
    """

    name = "greedy"

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """See the class."""
        spec = self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        copies = instances(spec, context)
        waiting = context.waiting[0]
        active = context.active[0]
        idle = (context.in_flight[0] == 0) & ((active == NONE) | (waiting[active] == 0))
        given = np.zeros(spec.num_models, np.bool_)
        while True:
            pressure = np.where(given, 0.0, waiting / (copies + 1.0))
            m = int(pressure.argmax())
            if pressure[m] <= 0.0:
                return action
            blocks = [
                block
                for block in open_blocks(spec, context, m)
                if idle[block.start : block.stop].all()
                and not action[block.start : block.stop].any()
            ]
            if blocks:
                action[blocks[0].start : blocks[0].stop] = m + 1
                copies[m] += 1
            else:
                given[m] = True


class ThresholdPlacement(BasePlacementPolicy):
    """An autoscaler with two thresholds on the use of slots.

    The use of a model is its calls in flight and waiting over the slots of its instances. Above
    `high` (and whenever calls wait for a model that is not awake) it wants one more instance. It
    takes the block whose models are least used, none of them above `low`, if they have another
    instance or no demand; a model that is not awake takes it whatever is there.

    Args:
        high: use above which copies are added.
        low: use below which a copy may be taken away.
    """

    name = "threshold"

    def __init__(self, high: float = 0.7, low: float = 0.3) -> None:
        self.high, self.low = high, low

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """See the class."""
        spec = self.spec
        action = np.zeros(spec.num_gpus, np.int64)
        copies = instances(spec, context)
        active = context.active[0]
        in_flight = np.zeros(spec.num_models)
        for m in range(spec.num_models):
            in_flight[m] = context.in_flight[0][active == m].sum() / spec.tp[m]
        asked = in_flight + context.waiting[0]
        use = asked / np.maximum(copies * spec.slots, 1)
        missing = (copies == 0) & (context.waiting[0] > 0)
        order = np.lexsort((-use, ~missing))
        for m in order.tolist():
            if not missing[m] and use[m] <= self.high:
                continue
            blocks = []
            for block in open_blocks(spec, context, m):
                owners = {int(active[g]) for g in block if active[g] != NONE}
                spare = all(copies[a] > 1 or asked[a] == 0 for a in owners)
                calm = all(use[a] < self.low for a in owners)
                if not action[block.start : block.stop].any() and (missing[m] or (spare and calm)):
                    blocks.append((max((use[a] for a in owners), default=-1.0), block.start))
            if blocks:
                _, first = min(blocks)
                block = range(first, first + int(spec.tp[m]))
                for a in {int(active[g]) for g in block if active[g] != NONE}:
                    copies[a] -= 1
                copies[m] += 1
                action[block.start : block.stop] = m + 1
        return action
