"""Many teams in one batch: `gym.make_vec("InfraMind-TokenBudget-v0", num_envs=64)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv, signature_in_a_batch
from inframind_gym.envs.checks import check_actions
from inframind_gym.envs.observations import ObservationForm
from inframind_gym.envs.token_budget.config import token_budget_config
from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.envs.token_budget.env import (
    TokenBudgetEnv,
    continuous_actions,
    token_budget_spaces,
)
from inframind_gym.envs.token_budget.reward import TERMS
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation


class TokenBudgetVectorEnv(BatchEnv):
    """`InfraMind-TokenBudget-v0` in a batch (`BatchEnv`); arguments as of `TokenBudgetEnv`.

    In place of events, which are texts, the infos have arrays: "action" (what was carried out),
    "tokens" and "reason" (a place in `teams.token_budget.state.REASONS`).
    """

    __signature__ = signature_in_a_batch(TokenBudgetEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.config = token_budget_config(arguments)
        self.simulation = TokenBudgetSimulation(self.config, num_envs)
        box, choices = token_budget_spaces(self.config)
        if isinstance(choices, spaces.Discrete):
            self._set_spaces(box, None, choices)
        else:
            self._show(ObservationForm(box, None), len(box.low))
            self.single_observation_space, self.single_action_space = box, choices
            self.observation_space = batch_space(box, num_envs)
            self.action_space = batch_space(choices, num_envs)

    def _checked(self, actions: Any) -> NDArray[Any]:
        if self.config.action == "continuous":
            return continuous_actions(actions, self.num_envs)
        return check_actions(actions, self._highs, self.num_envs)

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        generators = [self._generators[row] for row in rows.tolist()]
        self.simulation.start(rows, generators, observations)

    def _carry_out(
        self,
        actions: NDArray[Any],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        simulation = self.simulation
        simulation.terms[self._over] = 0.0  # the rows that do not step
        simulation.tokens[self._over] = 0
        single = actions if self.config.action == "continuous" else actions[:, 0]
        simulation.step_rows(rows, single, observations)
        terms, every = simulation.terms, np.ones(self.num_envs, np.bool_)
        infos: dict[str, Any] = {
            "rewards": {
                **{term: terms[:, i].copy() for i, term in enumerate(TERMS)},
                **{f"_{term}": every.copy() for term in TERMS},
            },
            "action": simulation.action.copy(),
            "tokens": simulation.tokens.copy(),
            "reason": simulation.state.reason.copy(),
        }
        infos |= {f"_{name}": every.copy() for name in tuple(infos)}
        self._truncated = simulation.truncated()
        return terms.sum(axis=1), simulation.costs(), simulation.over(), infos

    def _cut_short(self, over: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return over & self._truncated

    def _infos(self, costs: NDArray[np.float64]) -> dict[str, Any]:
        infos = super()._infos(costs)
        if self.config.action == "continuous":
            del infos["action_mask"], infos["_action_mask"]
        return infos

    def _sample_masks(self) -> tuple[Any, ...]:
        return tuple(self.simulation.state.mask.astype(np.int8))

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (E, 16)."""
        mask: NDArray[np.bool_] = self.simulation.state.mask.copy()
        return mask

    def contexts(self, rows: NDArray[np.int64] | None = None) -> TokenBudgetContext:
        """Return the input of a policy, of some rows or of all."""
        return self.simulation.contexts(np.arange(self.num_envs) if rows is None else rows)

    def token_budget_spec(self) -> TokenBudgetSpec:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()

    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        rows = np.flatnonzero(over)
        summary: dict[str, NDArray[Any]] = {}
        for key, values in self.simulation.summaries(rows).items():
            summary[key] = np.zeros(self.num_envs, values.dtype)
            summary[key][rows] = values
        return summary
