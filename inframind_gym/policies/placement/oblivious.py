"""Placements that look at no queue: random, and one that never changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.placement.protocol import BasePlacementPolicy, block_of, open_blocks
from inframind_gym.simulator.placement.context import PlacementContext, PlacementSpec
from inframind_gym.simulator.placement.state import NONE


class RandomPlacement(BasePlacementPolicy):
    """Each decision, each GPU with probability `change` takes a random model that is open to it.

    Groups are chosen as a whole, so its choices are legal.
    """

    name = "random"

    def __init__(self, change: float = 0.1) -> None:
        self.change = change

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """One generator a row."""
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
