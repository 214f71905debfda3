"""The interface of placement policies, and the pieces that most of them share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec
from inframind_gym.policies.protocol import BaseBatchPolicy, BatchPolicy, Ints

# Actions (n, G): per GPU 0, or 1 + the model to make active.
PlacementPolicy = BatchPolicy[PlacementSpec, PlacementContext]


class BasePlacementPolicy(BaseBatchPolicy[PlacementSpec, PlacementContext]):
    """A policy that decides row by row."""

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Remember the facts of the run; make one generator a row."""
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

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Return the decision of one row, (G,).

        Args:
            context: arrays with a first axis of 1.
            row: which one.
        """
        raise NotImplementedError


def blocks_of(spec: PlacementSpec, m: int, is_open: NDArray[np.bool_]) -> list[slice]:
    """Return the blocks of GPUs of model `m` that are open (G,) as a whole, in order."""
    tp = int(spec.tp[m])
    blocks = [slice(g, g + tp) for g in range(0, spec.num_gpus - tp + 1, tp)]
    return [block for block in blocks if is_open[block].all()]


def open_blocks(
    spec: PlacementSpec, context: PlacementContext, m: int, action: NDArray[np.int64]
) -> list[slice]:
    """Return the blocks on which model `m` could be made active now and is not, in order.

    Args:
        action: (G,) the decision so far; blocks for which it chooses something are left out.
    """
    is_open = context.mask[0, :, m + 1] & (context.active[0] != m) & (action == 0)
    return blocks_of(spec, m, is_open)
