"""Public facts of a run: the pool, the workload and the layout of observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.layout import EMBED_DIM, ObservationLayout
from inframind_gym.errors import ConfigError, unknown


def _no_embeddings() -> NDArray[np.float32]:
    return np.zeros((0, EMBED_DIM), np.float32)


@dataclass(frozen=True, eq=False)
class PolicySpec:
    """The public facts of a run. M models, S strategies, T budget tiers.

    Nothing here depends on the run's seed: a policy may use all of it. Arrays are copied to the
    stated type and made read-only.

    Args:
        models: (M,) aliases in the order of the action, for example "qwen-14b".
        strategies: (S,) names in the order of the action: Flash, Concise, DeepThink.
        layout: where each quantity lies in an observation.
        workload: name of the workload.
        budget_tiers_s: (T,) float64, seconds: the budgets that queries may carry.
        model_share: (M,) float64, sums to 1: the measured oblivious mix of the workload.
        strategy_share: (S,) float64, sums to 1: the measured mix of strategies.
        expected_call_s: (M,) float64, seconds that one call takes at light load, from the server
            card and the workload's median lengths.
        ability: (M,) float64, logits: how good each model is at the workload, before the run.
        max_num_seqs: (M,) int64, slots: calls that a server runs at once.
        queue_norm: requests at which the feature d_queue is 1.
        scheduler: "edf", "edf_late_last" or "fcfs".
        metrics_poll_s: seconds between two polls of the telemetry.
        level: whose decisions are the policy's: "executor", "planner" or "joint".
        task_embeddings: (T, 384) float32, what the query index of an "index" observation points to.
        role_embeddings: (R, 384) float32, what its role index points to.

    Raises:
        ConfigError: an array of the wrong length or with a value that is not finite, a share that
            is negative or does not sum to 1, a layout for another number of models.
    """

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    layout: ObservationLayout
    workload: str
    budget_tiers_s: NDArray[np.float64]
    model_share: NDArray[np.float64]
    strategy_share: NDArray[np.float64]
    expected_call_s: NDArray[np.float64]
    ability: NDArray[np.float64]
    max_num_seqs: NDArray[np.int64]
    queue_norm: float = 16.0
    scheduler: str = "edf"
    metrics_poll_s: float = 5.0
    level: str = "executor"
    task_embeddings: NDArray[np.float32] = field(default_factory=_no_embeddings)
    role_embeddings: NDArray[np.float32] = field(default_factory=_no_embeddings)

    def __post_init__(self) -> None:
        """Convert and check every field."""
        object.__setattr__(self, "models", tuple(self.models))
        object.__setattr__(self, "strategies", tuple(self.strategies))
        self._freeze("budget_tiers_s", np.float64, None)
        self._freeze("strategy_share", np.float64, self.num_strategies)
        for name in ("model_share", "expected_call_s", "ability"):
            self._freeze(name, np.float64, self.num_models)
        self._freeze("max_num_seqs", np.int64, self.num_models)
        for name in ("task_embeddings", "role_embeddings"):
            view = np.asarray(getattr(self, name), np.float32).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        for name in ("model_share", "strategy_share"):
            share = getattr(self, name)
            if np.any(share < 0.0) or abs(float(share.sum()) - 1.0) > 1e-6:
                raise ConfigError(f"PolicySpec.{name} is {share.tolist()}; shares sum to 1")
        if self.layout.num_models != self.num_models:
            raise ConfigError(
                f"PolicySpec has {self.num_models} models and a layout for {self.layout.num_models}"
            )

    @property
    def num_models(self) -> int:
        """Number of models M."""
        return len(self.models)

    @property
    def num_strategies(self) -> int:
        """Number of strategies S."""
        return len(self.strategies)

    @property
    def num_actions(self) -> int:
        """Number of joint actions M * S."""
        return self.num_models * self.num_strategies

    @overload
    def action(self, model: int, strategy: int) -> int: ...
    @overload
    def action(
        self, model: NDArray[np.int64], strategy: NDArray[np.int64] | int
    ) -> NDArray[np.int64]: ...
    def action(
        self, model: int | NDArray[np.int64], strategy: int | NDArray[np.int64]
    ) -> int | NDArray[np.int64]:
        """The joint action a = m * S + s for numbers or arrays."""
        return model * self.num_strategies + strategy

    def model_of(self, action: NDArray[np.int64]) -> NDArray[np.int64]:
        """The models m = a // S of an array of actions."""
        return action // self.num_strategies

    def strategy_of(self, action: NDArray[np.int64]) -> NDArray[np.int64]:
        """The strategies s = a % S of an array of actions."""
        return action % self.num_strategies

    def model_index(self, model: str) -> int:
        """Position of a model's alias.

        Raises:
            ConfigError: the pool has no such model; names the nearest.
        """
        if model not in self.models:
            raise ConfigError(unknown("model", model, self.models))
        return self.models.index(model)

    def strategy_index(self, strategy: str) -> int:
        """Position of a strategy's name.

        Raises:
            ConfigError: there is no such strategy; names the nearest.
        """
        if strategy not in self.strategies:
            raise ConfigError(unknown("strategy", strategy, self.strategies))
        return self.strategies.index(strategy)

    def _freeze(self, name: str, dtype: type[np.generic], length: int | None) -> None:
        values = np.array(getattr(self, name), dtype)
        if values.ndim != 1 or (length is not None and len(values) != length):
            raise ConfigError(
                f"PolicySpec.{name} has shape {values.shape}; expected ({length or 'any'},)"
            )
        if not np.all(np.isfinite(values.astype(np.float64))):
            raise ConfigError(f"PolicySpec.{name} is {values.tolist()}; all must be finite")
        values.flags.writeable = False
        object.__setattr__(self, name, values)
