"""Spend the budget on the strongest model that it still pays for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError
from inframind_gym.policies import Contexts
from inframind_gym.policies.heuristic import Asked
from inframind_gym.policies.queue_aware import QueueAware, checked_weight
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph


class BudgetGreedyPolicy(QueueAware):
    """The strongest model whose expected latency fits the call's share of the remaining budget.

    The share is the remaining budget over the calls that still follow one another: the waves left
    (twice as many where every node makes a second call) and the final decision. The strategy
    follows from the slack: DeepThink where the share is `deep_slack` times the expected latency,
    Flash where it is less than `flash_slack` times, Concise between. Where no model fits, the
    fastest answers with Flash: the answer will be late, so it should at least be out of the way.

    Args:
        deep_slack: share over expected latency from which DeepThink is used; at least flash_slack.
        flash_slack: share over expected latency below which Flash is used; at least 1.
        e2e_weight: trust in the polled end-to-end latency of a full server, 0 to 1.

    Raises:
        ConfigError: the slacks or the weight are out of order.
    """

    name = "budget_greedy"

    def __init__(
        self, deep_slack: float = 2.0, flash_slack: float = 1.25, e2e_weight: float = 0.5
    ) -> None:
        super().__init__()
        if not 1.0 <= flash_slack <= deep_slack:
            raise ConfigError(
                f"flash_slack is {flash_slack} and deep_slack {deep_slack}; "
                "they must satisfy 1 <= flash_slack <= deep_slack"
            )
        self.deep_slack = deep_slack
        self.flash_slack = flash_slack
        self.e2e_weight = checked_weight(e2e_weight)
        self._calls_per_node = np.array([graph(name, 1).calls_per_node for name in TOPOLOGIES])
        self._slack: NDArray[np.float64] = np.zeros(0)  # (n,) of the batch in hand

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The strongest model that is up and fits, else the fastest that is up."""
        expected = self.expected_latency_s(asked.observations, asked.rows, self.e2e_weight)
        remaining_s = self.spec.layout.remaining_budget_s(asked.observations)
        share_s = remaining_s / self.stages_left(asked.contexts)
        fits = asked.up & (expected <= share_s[:, None])
        strongest = np.where(fits, self.spec.ability, -np.inf).argmax(axis=1)
        models = np.where(fits.any(axis=1), strongest, self.argmin(expected, asked.rows, asked.up))
        self._slack = share_s / expected[np.arange(len(asked.rows)), models]
        return np.asarray(models, np.int64)

    def choose_strategies(self, asked: Asked, models: NDArray[np.int64]) -> NDArray[np.int64]:
        """DeepThink with much slack, Flash with little, Concise between."""
        spec = self.spec
        flash, concise, deep = (
            spec.strategy_index(strategy) for strategy in ("Flash", "Concise", "DeepThink")
        )
        thrifty = np.where(self._slack >= self.flash_slack, concise, flash)
        return np.asarray(np.where(self._slack >= self.deep_slack, deep, thrifty), np.int64)

    def stages_left(self, contexts: Contexts) -> NDArray[np.int64]:
        """Calls that still follow one another, (n,), this one and the final decision included."""
        waves = contexts["num_waves"].astype(np.int64) - contexts["wave"]
        calls = np.maximum(waves, 1) * self._calls_per_node[contexts["topology"]]
        return np.asarray(calls + 1, np.int64)
