"""Base class of the vector environments: seeds, checks, sums over an episode, autoreset."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.actions import check_actions
from inframind_gym.errors import ConfigError

Seeds = int | Sequence[int | None] | None  # of environment 0, or one an environment
# Observations, rewards, terminations, truncations and infos of a step.
BatchStep = tuple[
    NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]


class BatchEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """Seeds, the checks of `step`, sums over an episode, and how its end is told (SAME_STEP).

    Args:
        num_envs: E.
        arguments: of the environments; `render_mode` is taken out.

    Raises:
        ConfigError: the batch would be empty, or is to be rendered.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, arguments: dict[str, Any]) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; a batch has at least one environment")
        if arguments.pop("render_mode", None) is not None:
            raise ConfigError("a vector environment is not rendered; make a single one to look at")
        self.num_envs = num_envs
        self._generators: list[np.random.Generator] = []  # none before the first reset
        self._episode_costs = np.zeros(num_envs)
        self._episode_rewards = np.zeros(num_envs)

    def _set_spaces(
        self, observation: spaces.Box, action: spaces.MultiDiscrete | spaces.Discrete
    ) -> None:
        """Set the spaces of one environment and of the batch."""
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)
        highs = action.nvec if isinstance(action, spaces.MultiDiscrete) else action.n
        self._highs = np.atleast_1d(np.asarray(highs))

    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        """The last info of the single environments, in a batch.

        Args:
            over: (E,) whose episode is over.
            rewards, costs: (E,) sums of those episodes, 0 elsewhere.

        Returns:
            (E,) arrays.
        """
        raise NotImplementedError

    def _begin_again(self, rows: NDArray[np.int64], observations: NDArray[np.float32]) -> None:
        """Begin the next episode in the environments `rows`, and write what they see."""
        raise NotImplementedError

    def _begin(self, seed: Seeds) -> None:
        """Seed where that is asked for or due, and sum up from 0: a reset of all environments."""
        if seed is not None or not self._generators:
            self._generators = [seeding.np_random(s)[0] for s in row_seeds(seed, self.num_envs)]
        self._episode_costs[:] = 0.0
        self._episode_rewards[:] = 0.0

    def _check(self, actions: Any) -> NDArray[np.int64]:
        """(E, parts) actions of a step.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            ConfigError: `reset` was not called.
        """
        if not self._generators:
            raise ConfigError("call reset() before step()")
        return check_actions(actions, self._highs, self.num_envs)

    def _infos(self, costs: NDArray[np.float64]) -> dict[str, Any]:
        return {"cost": costs, "_cost": np.ones(self.num_envs, np.bool_)}

    def _end(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], infos: dict[str, Any]
    ) -> None:
        """Tell of the episodes that are over, and begin the next ones.

        Args:
            rows: (k,) environments.
            observations: (E, d) of the step; at `rows` those of the next episodes are written.
            infos: of the step, with its "cost"; "final_obs" and "final_info" are added.
        """
        over = np.zeros(self.num_envs, np.bool_)
        over[rows] = True
        final_obs = np.empty(self.num_envs, object)
        for row in rows.tolist():
            final_obs[row] = observations[row].copy()
        episode_costs = np.where(over, self._episode_costs, 0.0)
        episode_rewards = np.where(over, self._episode_rewards, 0.0)
        final = {
            "cost": np.where(over, infos["cost"], 0.0),
            "episode_cost": episode_costs,
            "episode_reward": episode_rewards,
        } | self._summary(over, episode_rewards, episode_costs)
        infos |= {
            "final_obs": final_obs,
            "_final_obs": over,
            "final_info": final | {f"_{key}": over.copy() for key in final},
            "_final_info": over.copy(),
        }
        self._episode_costs[rows] = 0.0
        self._episode_rewards[rows] = 0.0
        self._begin_again(rows, observations)


def signature_in_a_batch(single: type) -> Signature:
    """Signature of a vector environment: `num_envs`, and the arguments of the single one."""
    num_envs = Parameter("num_envs", Parameter.KEYWORD_ONLY, default=1, annotation="int")
    shared = [
        p.replace(kind=Parameter.KEYWORD_ONLY)
        for p in signature(single).parameters.values()
        if p.name != "render_mode" and p.kind is not Parameter.VAR_KEYWORD
    ]
    return Signature([num_envs, *shared])


def row_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """The seed of every row of a batch: row i takes seed + i, or its own of a list.

    Raises:
        ConfigError: a list of the wrong length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigError(f"{len(seed)} seeds for {num_envs} environments")
    return list(seed)
