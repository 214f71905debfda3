"""Many clusters in one compiled batch: `gym.make_vec("InfraMind-Placement-v0", num_envs=64)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.batch import BatchEnv, BatchStep, Seeds, signature_in_a_batch
from inframind_gym.envs.placement.config import placement_config
from inframind_gym.envs.placement.context import (
    PlacementContext,
    PlacementSpec,
    contexts,
    spec_of,
)
from inframind_gym.envs.placement.env import PlacementEnv, no_options, placement_spaces
from inframind_gym.envs.placement.reward import TERMS
from inframind_gym.envs.placement.simulation import PlacementSimulation


class PlacementVectorEnv(BatchEnv):
    """E clusters that step together; row i does what a single environment of its seed does.

    Autoreset is SAME_STEP: where an episode ends, `infos["final_obs"]` and `infos["final_info"]`
    are of that episode, and the observation is the first of the next one. Reward, cost and terms of
    a row are always those of the step that was taken.

    Args:
        num_envs: E; the other arguments are those of `PlacementEnv`. It is not rendered.
    """

    __signature__ = signature_in_a_batch(PlacementEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.config = placement_config(arguments)
        self.simulation = PlacementSimulation(self.config, num_envs)
        self._set_spaces(*placement_spaces(self.simulation))

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode everywhere.

        Args:
            seed: of environment 0 (environment i takes seed + i), or one an environment.
            options: there are none.

        Raises:
            ConfigError: an option is given, or the number of seeds is wrong.
        """
        no_options(options)
        self._begin(seed)
        observations = self.simulation.observations()
        self.simulation.start(np.arange(self.num_envs), self._generators, observations)
        return observations, self._infos(np.zeros(self.num_envs))

    def step(self, actions: Any) -> BatchStep:
        """Carry out one decision in every environment.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            ConfigError: `reset` was not called.
        """
        simulation = self.simulation
        checked = self._check(actions)
        observations = simulation.observations()
        simulation.step(checked, observations)
        terms = simulation.terms
        rewards = terms[:, 0] + terms[:, 1] + terms[:, 2]
        costs = simulation.state.episode["late"].astype(np.float64)
        self._episode_costs += costs
        self._episode_rewards += rewards
        truncations = simulation.over()
        infos = self._infos(costs)
        infos |= {
            "rewards": {
                **{term: terms[:, i].copy() for i, term in enumerate(TERMS)},
                **{f"_{term}": self._every() for term in TERMS},
            },
            "_rewards": self._every(),
            "illegal": simulation.state.episode["illegal"].copy(),
            "_illegal": self._every(),
        }
        if truncations.any():
            self._end(np.flatnonzero(truncations), observations, infos)
        terminations = np.zeros(self.num_envs, np.bool_)
        return observations, rewards, terminations, truncations, infos

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

    def _begin_again(self, rows: NDArray[np.int64], observations: NDArray[np.float32]) -> None:
        generators = [self._generators[row] for row in rows.tolist()]
        self.simulation.start(rows, generators, observations)
