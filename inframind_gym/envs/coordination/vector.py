"""Many questions in one batch: `gym.make_vec("InfraMind-Coordination-v0", num_envs=64)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv, signature_in_a_batch
from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.context import CoordinationContext, CoordinationSpec
from inframind_gym.envs.coordination.env import (
    CoordinationEnv,
    coordination_spaces,
    scenario_of,
)
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.teams.coordination.rules import TERMS


class CoordinationVectorEnv(BatchEnv):
    """`InfraMind-Coordination-v0` in a batch (`BatchEnv`); arguments as of `CoordinationEnv`.

    A scenario of `reset` is that of all rows until the next `reset`. In place of texts the infos
    have arrays: "action" (what was carried out, -1 for nothing) and "reason" (a place in
    `teams.coordination.state.REASONS`).
    """

    __signature__ = signature_in_a_batch(CoordinationEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.config = coordination_config(arguments)
        self.simulation = CoordinationSimulation(self.config, num_envs)
        box, choices = coordination_spaces()
        self._set_spaces(box, None, choices)
        self._scenario = scenario_of(None)

    def _set_options(self, options: dict[str, Any] | None) -> None:
        self._scenario = scenario_of(options)

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        generators = [self._generators[row] for row in rows.tolist()]
        self.simulation.start(rows, generators, observations, self._scenario)

    def _carry_out(
        self,
        actions: NDArray[np.int64],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        simulation, every = self.simulation, np.ones(self.num_envs, np.bool_)
        simulation.terms[self._over] = 0.0  # the rows that do not step
        simulation.step_rows(rows, actions[:, 0], observations)
        terms = simulation.terms
        infos: dict[str, Any] = {
            "rewards": {
                **{term: terms[:, i].copy() for i, term in enumerate(TERMS)},
                **{f"_{term}": every.copy() for term in TERMS},
            },
            "action": simulation.action.copy(),
            "reason": simulation.state.reason.copy(),
        }
        infos |= {f"_{name}": every.copy() for name in tuple(infos)}
        return terms.sum(axis=1), simulation.costs(), simulation.over(), infos

    def _sample_masks(self) -> tuple[Any, ...]:
        return tuple(self.simulation.state.mask.astype(np.int8))

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (E, 15)."""
        mask: NDArray[np.bool_] = self.simulation.state.mask.copy()
        return mask

    def contexts(self, rows: NDArray[np.int64] | None = None) -> CoordinationContext:
        """Return the input of a policy, of some rows or of all."""
        return self.simulation.contexts(np.arange(self.num_envs) if rows is None else rows)

    def coordination_spec(self) -> CoordinationSpec:
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
