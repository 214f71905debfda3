"""What the heuristics share: per-row decision counts, reproducible draws, masks, strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policy import BasePolicy, Contexts, PolicySpec, models_up
from inframind_gym.rng import STREAM_POLICY, uniform_array

MIX: Final = "mix"  # as a strategy: draw from the workload's measured mix of strategies

# What a row's draw is for: the second coordinate of the counter-based generator.
DRAW_MODEL: Final = 0
DRAW_STRATEGY: Final = 1
DRAW_TIE: Final = 2


class RowwiseDraws(BasePolicy):
    """A policy whose draws are functions of (seed of the row, decisions the row has made, use).

    Neither the order nor the company in which rows are asked can change a draw. A subclass adds 1
    to `decisions[rows]` at the end of its `act_batch`.
    """

    def __init__(self) -> None:
        self.decisions: NDArray[np.int64] = np.zeros(0, np.int64)  # (rows,)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows."""
        super().reset(spec, seeds)
        self.decisions = np.zeros(len(seeds), np.int64)

    def uniform(self, rows: NDArray[np.int64], use: int) -> NDArray[np.float64]:
        """One number in (0, 1) for each of `rows`, for its next decision."""
        return uniform_array(self.seeds[rows], STREAM_POLICY, self.decisions[rows], use)


class Heuristic(RowwiseDraws, ABC):
    """A policy that picks a model for every row and then, unless told otherwise, a strategy.

    Args:
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
    """

    def __init__(self, strategy: str = MIX) -> None:
        super().__init__()
        self.strategy = strategy
        self._strategy_index = -1

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the strategy is none of the workload's.
        """
        super().reset(spec, seeds)
        self._strategy_index = -1 if self.strategy == MIX else spec.strategy_index(self.strategy)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`; see `Policy.act_batch`."""
        up = models_up(contexts, self.spec.num_models)
        models = self.choose_models(observations, contexts, rows, up)
        strategies = self.choose_strategies(observations, contexts, rows, models)
        self.decisions[rows] += 1
        return self.spec.action(models, strategies)

    @abstractmethod
    def choose_models(
        self,
        observations: NDArray[np.float32],
        contexts: Contexts,
        rows: NDArray[np.int64],
        up: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """The (n,) models, each one of those that are `up` (n, M)."""

    def choose_strategies(
        self,
        observations: NDArray[np.float32],
        contexts: Contexts,
        rows: NDArray[np.int64],
        models: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The (n,) strategies for the chosen `models` (n,)."""
        if self._strategy_index >= 0:
            return np.full(len(rows), self._strategy_index, np.int64)
        share = np.broadcast_to(self.spec.strategy_share, (len(rows), self.spec.num_strategies))
        return draw_from(share, self.uniform(rows, DRAW_STRATEGY))

    def argmin(
        self, score: NDArray[np.float64], rows: NDArray[np.int64], up: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The model of lowest `score` (n, M) among those that are up; ties are drawn."""
        masked = np.where(up, score, np.inf)
        lowest = masked == masked.min(axis=1, keepdims=True)
        return draw_from(lowest.astype(np.float64), self.uniform(rows, DRAW_TIE))


def draw_from(weights: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw one column a row.

    Args:
        weights: (n, k), not negative, with a positive sum in every row.
        u: (n,) uniform numbers in (0, 1).

    Returns:
        (n,) columns; a column of weight 0 is never drawn.
    """
    edges = np.cumsum(weights, axis=1)
    threshold = u * edges[:, -1]
    return np.asarray((edges <= threshold[:, None]).sum(axis=1), np.int64)


def named(name: str, *arguments: str) -> str:
    """A policy's name with its arguments, as `resolve_policy` reads it."""
    return ":".join((name, *arguments))
