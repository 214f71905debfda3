"""The interface that the policies of all families but routing share.

It mirrors `inframind_gym.policies.Policy`: reset once with the facts of the run and one seed a row,
then asked at every decision, several rows at once. What a policy draws and learns belongs to a row:
the same row with the same seed gets the same actions, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array

Spec = TypeVar("Spec")
Context = TypeVar("Context")
_Spec = TypeVar("_Spec", contravariant=True)
_Context = TypeVar("_Context", contravariant=True)
Ints = NDArray[np.int64]


@runtime_checkable
class BatchPolicy(Protocol[_Spec, _Context]):
    """Decides for several rows at once."""

    name: str

    def reset(self, spec: _Spec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act_batch(self, observations: NDArray[np.float32], contexts: _Context, rows: Ints) -> Ints:
        """Return the actions of several rows.

        Args:
            observations: (n, ...), one a row.
            contexts: arrays with a first axis of n.
            rows: (n,) which of the rows given to `reset` these are.

        Returns:
            (n,), or (n, a) where an action has a parts.
        """


class BaseBatchPolicy(Generic[Spec, Context]):
    """A policy that decides from the contexts alone, by `choose`."""

    name = "base"

    def reset(self, spec: Spec, seeds: Sequence[int]) -> None:
        """Remember the facts of the run and the seeds."""
        self.spec = spec
        self.seeds = np.array([int(seed) % 2**64 for seed in seeds], np.uint64)

    def act_batch(self, observations: NDArray[np.float32], contexts: Context, rows: Ints) -> Ints:
        """Return the actions of the rows, by `choose`."""
        return np.asarray(self.choose(contexts, rows), np.int64)

    def choose(self, context: Context, rows: Ints) -> Ints:
        """Return the actions of the rows (n,) whose state is `context`."""
        raise NotImplementedError

    def draw(self, rows: Ints, ordinals: Ints, use: int = 0) -> NDArray[np.float64]:
        """Return a number in (0, 1) for each of `rows` at its decision, (n,)."""
        return uniform_array(self.seeds[rows], STREAM_POLICY, ordinals, use)

    def draw_open(self, rows: Ints, ordinals: Ints, mask: NDArray[np.bool_]) -> Ints:
        """Return one of the open actions of each row, all equally likely, (n,)."""
        place = np.floor(self.draw(rows, ordinals) * mask.sum(axis=1)).astype(np.int64) + 1
        return np.asarray((np.cumsum(mask, axis=1) >= place[:, None]).argmax(axis=1))
