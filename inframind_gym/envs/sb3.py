"""The compiled vector environments as a Stable-Baselines3 `VecEnv`.

    import gymnasium as gym
    import inframind_gym
    from inframind_gym.envs.sb3 import SB3VecEnv
    from stable_baselines3 import PPO

    envs = SB3VecEnv(gym.make_vec("InfraMind-Executor-v0", num_envs=16))
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, verbose=1)
    model.learn(100_000)  # logs rollout/ep_rew_mean: no Monitor is needed

`sb3_contrib.MaskablePPO` reads the masks through `action_masks`. This module needs the extra
`agents`; nothing else in the package imports it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from inframind_gym.envs import core
from inframind_gym.envs.core import Bools, Float32s, Ints
from inframind_gym.errors import ConfigError, needs

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(
        f"{needs('SB3VecEnv', 'Stable-Baselines3', 'agents')}. Or step the vector environment "
        "itself."
    ) from error

Indices = None | int | Iterable[int]

# Methods of a single environment -> the batch's methods, whose results are indexed by row.
_ROW_METHODS = {"action_masks": "action_masks", "context": "contexts"}


class SB3VecEnv(VecEnv):
    """Stable-Baselines3's view of one of our vector environments (`core.VectorEnv`).

    The info of row i is a dict of its own: "cost" and "TimeLimit.truncated" in every step; in the
    last one of an episode also "terminal_observation", "episode_cost" and "episode" with "r"
    (reward), "l" (steps) and "c" (cost), which feed SB3's logger. Wall-clock time ("t") is left
    out, so that infos are reproducible. Observations and rewards are float32.

    Args:
        env: result of `gym.make_vec` for one of our ids, wrapped or not.

    Attributes:
        returns: rewards of the last 100 episodes.
        episodes: number of episodes that are over.

    Raises:
        ConfigError: `env` is not one of our vector environments.
    """

    def __init__(self, env: VectorEnv[Any, Any, NDArray[Any]]) -> None:
        batch = getattr(env, "unwrapped", None)
        if not isinstance(batch, core.VectorEnv):
            raise ConfigError(
                f"SB3VecEnv takes the compiled vector environments, got {type(env).__name__}; "
                'make one with gym.make_vec("InfraMind-Executor-v0", num_envs=8), or give single '
                "environments to SB3's own DummyVecEnv"
            )
        self.batch: Any = batch  # its methods differ from id to id
        self.env, self.episodes = env, 0
        self.returns: deque[float] = deque(maxlen=100)
        self._sums = np.zeros((3, batch.num_envs))  # reward, steps and cost of running episodes
        self._actions: Ints | None = None
        super().__init__(batch.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Start a new stream everywhere, with the seeds and options that were set, if any."""
        seeds: Any = None if all(seed is None for seed in self._seeds) else self._seeds
        options: dict[str, Any] = {}
        for key in sorted(set().union(*self._options)):
            if any(key not in row for row in self._options):
                raise ConfigError(f"reset option {key!r} must be given to all environments or none")
            values = [row[key] for row in self._options]
            is_text = all(isinstance(value, str) and value == values[0] for value in values)
            options[key] = values[0] if is_text else np.array(values)  # texts are for all rows
        observations, _ = self.env.reset(seed=seeds, options=options or None)
        self._sums[:] = 0.0
        self._reset_seeds()
        self._reset_options()
        self._actions = None
        self.reset_infos = [{"cost": 0.0} for _ in range(self.num_envs)]
        return _float32(observations)

    def step_async(self, actions: Ints) -> None:
        """Keep the actions (E,) or (E, a) for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, Float32s, Bools, list[dict[str, Any]]]:
        """Carry out the actions.

        Returns:
            Observations (E, d) or a dict of arrays (E, …), rewards (E,), dones (E,) and E infos;
            where an episode is over the observation is the first of the next one.

        Raises:
            ConfigError: no actions were given.
            ActionError: an action out of range.
        """
        if self._actions is None:
            raise ConfigError("call step_async(actions) before step_wait()")
        actions, self._actions = self._actions, None
        observations, rewards, terminations, truncations, batch = self.env.step(actions)
        self._sums += rewards, np.ones(self.num_envs), batch["cost"]
        dones = terminations | truncations
        cuts = (truncations & ~terminations).tolist()
        infos: list[dict[str, Any]] = [
            {"cost": cost, "TimeLimit.truncated": cut}
            for cost, cut in zip(batch["cost"].tolist(), cuts, strict=True)
        ]
        for row in np.flatnonzero(dones).tolist():
            reward, steps, cost = self._sums[:, row].tolist()
            episode = {"r": reward, "l": int(steps), "c": cost}
            self._sums[:, row] = 0.0
            self.episodes += 1
            self.returns.append(reward)
            infos[row] |= {
                "terminal_observation": _float32(batch["final_obs"][row]),
                "episode_cost": episode["c"],
                "episode": episode,
            }
            self.reset_infos[row] = {"cost": 0.0}
        return _float32(observations), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of the vector environment, once for each row.

        `action_masks` and `context` are the row's own, as in a single environment.

        Raises:
            AttributeError: there is no such attribute.
        """
        rows = self._get_indices(indices)
        if attr_name in _ROW_METHODS:
            method = getattr(self.batch, _ROW_METHODS[attr_name])
            return [lambda row=row: method()[row] for row in rows]
        return [getattr(self.batch, attr_name) for _ in rows]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the vector environment, which all rows share.

        Raises:
            ConfigError: `indices` name some of the rows.
        """
        if len(set(self._get_indices(indices))) < self.num_envs:
            raise ConfigError(
                f"set_attr: all {self.num_envs} rows share {attr_name!r}, got indices={indices!r}; "
                "leave them out"
            )
        setattr(self.batch, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method once; `action_masks` and `context` return each row's own result."""
        method = getattr(self.batch, _ROW_METHODS.get(method_name, method_name))
        result, rows = method(*method_args, **method_kwargs), self._get_indices(indices)
        return [result[row] if method_name in _ROW_METHODS else result for row in rows]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Return True for SB3's `Monitor`, whose work this adapter does, else False."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]


def _float32(observations: Any) -> Any:
    """Return observations, an array or a dict of arrays, as float32."""
    if isinstance(observations, dict):
        return {name: np.asarray(part, np.float32) for name, part in observations.items()}
    return np.asarray(observations, np.float32)
