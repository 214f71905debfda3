"""Many clusters in one compiled batch: `gym.make_vec("InfraMind-Placement-v0", num_envs=64)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.placement import no_options, placement_spaces
from inframind_gym.envs.spaces import check_actions, row_seeds
from inframind_gym.errors import ConfigError
from inframind_gym.placement.config import placement_config
from inframind_gym.placement.context import PlacementContext, PlacementSpec, contexts, spec_of
from inframind_gym.placement.simulation import PlacementSimulation
from inframind_gym.placement.step import TERMS


class PlacementVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """E clusters that step together; row i does what a single environment of its seed does.

    Autoreset is SAME_STEP: where an episode ends, `infos["final_obs"]` and `infos["final_info"]`
    tell how, and the observation is the first of the next episode. Reward, cost and terms of a row
    are always those of the step that was taken.

    Args:
        num_envs: E.
        arguments: as of `PlacementEnv`.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; a batch has at least one environment")
        if arguments.pop("render_mode", None) is not None:
            raise ConfigError("a vector environment is not rendered; make a single one to look at")
        self.num_envs = num_envs
        self.config = placement_config(arguments)
        self.simulation = PlacementSimulation(self.config, num_envs)
        self.single_observation_space, self.single_action_space = placement_spaces(self.simulation)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._highs = np.asarray(self.single_action_space.nvec)
        self._generators: list[np.random.Generator] = []
        self._episode_costs = np.zeros(num_envs)
        self._episode_rewards = np.zeros(num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode everywhere.

        Args:
            seed: of environment 0 (environment i takes seed + i), or one an environment.
            options: there are none.

        Raises:
            ConfigError: an option is given, or the number of seeds is wrong.
        """
        no_options(options)
        if seed is not None or not self._generators:
            self._generators = [seeding.np_random(s)[0] for s in row_seeds(seed, self.num_envs)]
        observations = self.simulation.observations()
        self.simulation.start(np.arange(self.num_envs), self._generators, observations)
        self._episode_costs[:] = 0.0
        self._episode_rewards[:] = 0.0
        return observations, self._infos(np.zeros(self.num_envs))

    def step(
        self, actions: Any
    ) -> tuple[
        NDArray[np.float32],
        NDArray[np.float64],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Carry out one decision in every environment.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            ConfigError: `reset` was not called.
        """
        if not self._generators:
            raise ConfigError("call reset() before step()")
        simulation = self.simulation
        checked = check_actions(actions, self._highs, self.num_envs)
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
            self._autoreset(np.flatnonzero(truncations), observations, infos)
        terminations = np.zeros(self.num_envs, np.bool_)
        return observations, rewards, terminations, truncations, infos

    # What a policy may know

    def action_masks(self) -> NDArray[np.bool_]:
        """(E, G·(M + 1)) which choices are open to each GPU."""
        return self.simulation.state.mask.reshape(self.num_envs, -1).copy()

    def contexts(self, rows: NDArray[np.int64] | None = None) -> PlacementContext:
        """What a placement policy decides by, of some rows or of all."""
        return contexts(self.simulation, np.arange(self.num_envs) if rows is None else rows)

    def placement_spec(self) -> PlacementSpec:
        """What a placement policy is told before a run."""
        return spec_of(self.simulation)

    def _every(self) -> NDArray[np.bool_]:
        return np.ones(self.num_envs, np.bool_)

    def _infos(self, costs: NDArray[np.float64]) -> dict[str, Any]:
        return {"cost": costs, "_cost": self._every()}

    def _autoreset(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], infos: dict[str, Any]
    ) -> None:
        over = np.zeros(self.num_envs, np.bool_)
        over[rows] = True
        final_obs = np.empty(self.num_envs, object)
        final: dict[str, NDArray[Any]] = {
            "cost": np.where(over, infos["cost"], 0.0),
            "episode_cost": np.where(over, self._episode_costs, 0.0),
            "episode_reward": np.where(over, self._episode_rewards, 0.0),
        }
        for row in rows.tolist():
            final_obs[row] = observations[row].copy()
            for key, value in self.simulation.summary(row).items():
                final.setdefault(key, np.zeros(self.num_envs, type(value)))[row] = value
        infos |= {
            "final_obs": final_obs,
            "_final_obs": over,
            "final_info": final | {f"_{key}": over.copy() for key in final},
            "_final_info": over.copy(),
        }
        self._episode_costs[rows] = 0.0
        self._episode_rewards[rows] = 0.0
        self.simulation.start(rows, [self._generators[row] for row in rows], observations)
