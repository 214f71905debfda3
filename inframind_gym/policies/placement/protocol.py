"""The interface of placement policies.

It mirrors `inframind_gym.policies.Policy`: reset once with the facts of the run and one seed a row,
then asked at every decision, several rows at once. Draws and memory belong to a row: the same row
with the same seed gets the same actions, alone or in a batch. A policy is found by its name or path
(`inframind_gym.policies.placement.registry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec


@runtime_checkable
class PlacementPolicy(Protocol):
    """Chooses for every GPU a model to make active, or to leave it alone."""

    name: str

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: PlacementContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the decisions of several rows.

        Args:
            observations: (n, d), one a row.
            contexts: arrays with a first axis of n.
            rows: (n,) which of the rows given to `reset` these are.

        Returns:
            (n, G): per GPU 0, or 1 + the model to make active.
        """


class BasePlacementPolicy:
    """A policy that decides row by row."""

    name = "base"

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Remember the facts of the run; make one generator a row."""
        self.spec = spec
        self.generators = [np.random.default_rng(seed) for seed in seeds]

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: PlacementContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return one decision a row, by `decide`, (n, G)."""
        actions = np.zeros((len(rows), self.spec.num_gpus), np.int64)
        for i, row in enumerate(rows.tolist()):
            actions[i] = self.decide(
                PlacementContext._make(part[i : i + 1] for part in contexts), row
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
