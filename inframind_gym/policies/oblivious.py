"""Policies blind to the load: random, round robin, one fixed choice, the measured mix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import PolicySpec
from inframind_gym.policies.draws import draw_from, named
from inframind_gym.policies.heuristic import DRAW_MODEL, DRAW_STRATEGY, MIX, Asked, Heuristic


class RandomPolicy(Heuristic):
    """Every model that is up and every strategy with equal probability."""

    name = "random"

    def __init__(self) -> None:
        super().__init__()

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """A uniform draw among the models that are up."""
        return draw_from(asked.up.astype(np.float64), self.uniform(asked.rows, DRAW_MODEL))

    def choose_strategies(self, asked: Asked, models: NDArray[np.int64]) -> NDArray[np.int64]:
        """A uniform draw among the strategies."""
        equal = np.ones((len(asked.rows), self.spec.num_strategies))
        return draw_from(equal, self.uniform(asked.rows, DRAW_STRATEGY))


class RoundRobinPolicy(Heuristic):
    """One model after the other in the pool's order; a model that is down loses its turn.

    Args:
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
    """

    def __init__(self, strategy: str = MIX) -> None:
        super().__init__(strategy)
        self.name = named("round_robin", *([] if strategy == MIX else [strategy]))
        self._next: NDArray[np.int64] = np.zeros(0, np.int64)  # (rows,) model whose turn it is

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start every row at the first model."""
        super().reset(spec, seeds)
        self._next = np.zeros(len(seeds), np.int64)

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The first model that is up, from the one whose turn it is."""
        models = first_up(self._next[asked.rows], asked.up)
        self._next[asked.rows] = (models + 1) % self.spec.num_models
        return models


class StaticPolicy(Heuristic):
    """Always the same model with the same strategy; the next one in the pool while it is down.

    Args:
        model: alias of a model of the pool.
        strategy: name of a strategy, or "mix".
    """

    def __init__(self, model: str = "qwen-14b", strategy: str = "Concise") -> None:
        super().__init__(strategy)
        self.model = model
        self.name = named("static", model, strategy)
        self._model_index = 0

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Find the model in the pool.

        Raises:
            ConfigError: the pool has no such model, or there is no such strategy.
        """
        super().reset(spec, seeds)
        self._model_index = spec.model_index(self.model)

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The fixed model, or the first one after it that is up."""
        return first_up(np.full(len(asked.rows), self._model_index, np.int64), asked.up)


class StaticMixPolicy(Heuristic):
    """Draws every call from the measured oblivious mix of the workload's models and strategies.

    The stand-in for an oblivious router such as MasRouter: right on average about what it likes,
    blind to where the queues are.
    """

    name = "static_mix"

    def __init__(self) -> None:
        super().__init__()

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """A draw from the models' shares, renormalised over those that are up."""
        share = self.spec.model_share * asked.up
        unwanted = share.sum(axis=1) <= 0.0  # only models are up that the mix never uses
        share[unwanted] = asked.up[unwanted]
        return draw_from(share, self.uniform(asked.rows, DRAW_MODEL))


def first_up(start: NDArray[np.int64], up: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The first model that is up at or after `start` (n,), going round; `up` is (n, M)."""
    num_models = up.shape[1]
    order = (start[:, None] + np.arange(num_models)) % num_models
    ahead = np.take_along_axis(up, order, axis=1).argmax(axis=1)
    return np.asarray((start + ahead) % num_models, np.int64)
