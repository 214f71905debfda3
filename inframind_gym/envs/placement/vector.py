"""Many clusters in one compiled batch: `gym.make_vec("InfraMind-Placement-v0", num_envs=64)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv, signature_in_a_batch
from inframind_gym.envs.checks import SampleMask
from inframind_gym.envs.placement.config import placement_config
from inframind_gym.envs.placement.context import (
    PlacementContext,
    PlacementSpec,
    contexts,
    spec_of,
)
from inframind_gym.envs.placement.env import PlacementEnv, placement_spaces
from inframind_gym.envs.placement.reward import TERMS
from inframind_gym.envs.placement.simulation import PlacementSimulation


class PlacementVectorEnv(BatchEnv):
    """`InfraMind-Placement-v0` in a batch (`BatchEnv`); arguments as of `PlacementEnv`."""

    truncates = True
    __signature__ = signature_in_a_batch(PlacementEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.config = placement_config(arguments)
        self.simulation = PlacementSimulation(self.config, num_envs, self.num_threads)
        box, places, choices = placement_spaces(self.simulation)
        self._set_spaces(box, places, choices)
        self._sample_mask = SampleMask(choices)

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        generators = [self._generators[row] for row in rows.tolist()]
        self.simulation.start(rows, generators, observations)

    def _carry_out(
        self,
        actions: NDArray[np.int64],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        simulation = self.simulation
        simulation.terms[self._over] = 0.0  # the rows that do not step
        simulation.step_rows(rows, actions, observations)
        terms = simulation.terms
        rewards = terms[:, 0] + terms[:, 1] + terms[:, 2]
        costs = simulation.state.episode["late"].astype(np.float64)
        infos = {
            "rewards": {
                **{term: terms[:, i].copy() for i, term in enumerate(TERMS)},
                **{f"_{term}": self._every() for term in TERMS},
            },
            "_rewards": self._every(),
            "illegal": simulation.state.episode["illegal"].copy(),
            "_illegal": self._every(),
        }
        return rewards, costs, simulation.over(), infos

    def _sample_masks(self) -> tuple[Any, ...]:
        return tuple(map(self._sample_mask.of, self.action_masks()))

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the choices that are open to each GPU, (E, G·(M + 1))."""
        return self.simulation.state.mask.reshape(self.num_envs, -1).copy()

    def contexts(self, rows: NDArray[np.int64] | None = None) -> PlacementContext:
        """Return the input of a placement policy, of some rows or of all."""
        return contexts(self.simulation, np.arange(self.num_envs) if rows is None else rows)

    def placement_spec(self) -> PlacementSpec:
        """Return the facts of the run that a placement policy is reset with."""
        return spec_of(self.simulation)

    def _every(self) -> NDArray[np.bool_]:
        return np.ones(self.num_envs, np.bool_)

    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        summary: dict[str, NDArray[Any]] = {}
        for row in np.flatnonzero(over).tolist():
            for key, value in self.simulation.summary(row).items():
                summary.setdefault(key, np.zeros(self.num_envs, type(value)))[row] = value
        return summary
