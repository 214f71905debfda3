"""Base class of the heuristics: a model first, then a strategy; masks and ties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import Contexts, PolicySpec, models_up
from inframind_gym.policies.draws import RowwiseDraws, draw_from

MIX: Final = "mix"  # as a strategy: draw from the workload's measured mix of strategies

# What a row's draw is for: the second coordinate of the counter-based generator.
DRAW_MODEL: Final = 0
DRAW_STRATEGY: Final = 1
DRAW_TIE: Final = 2


class Asked(NamedTuple):
    """Arguments of `act_batch`: one decision for each of n rows."""

    observations: NDArray[np.float32]  # (n, d)
    contexts: Contexts  # (n,)
    rows: NDArray[np.int64]  # (n,)
    up: NDArray[np.bool_]  # (n, M) models that may be chosen


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
        asked = Asked(observations, contexts, rows, models_up(contexts, self.spec.num_models))
        models = self.choose_models(asked)
        strategies = self.choose_strategies(asked, models)
        self.decisions[rows] += 1
        return self.spec.action(models, strategies)

    @abstractmethod
    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The (n,) models, each one of those that are `up` (n, M)."""

    def choose_strategies(self, asked: Asked, models: NDArray[np.int64]) -> NDArray[np.int64]:
        """The (n,) strategies for the chosen `models` (n,)."""
        if self._strategy_index >= 0:
            return np.full(len(asked.rows), self._strategy_index, np.int64)
        share = np.broadcast_to(
            self.spec.strategy_share, (len(asked.rows), self.spec.num_strategies)
        )
        return draw_from(share, self.uniform(asked.rows, DRAW_STRATEGY))

    def argmin(
        self, score: NDArray[np.float64], rows: NDArray[np.int64], up: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The model of lowest `score` (n, M) among those that are up; ties are drawn."""
        masked = np.where(up, score, np.inf)
        lowest = masked == masked.min(axis=1, keepdims=True)
        return draw_from(lowest.astype(np.float64), self.uniform(rows, DRAW_TIE))
