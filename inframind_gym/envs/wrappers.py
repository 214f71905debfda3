"""Wrappers: episode statistics with costs, and metrics for Prometheus.

`RecordEpisodeCost` has the form of Gymnasium's `RecordEpisodeStatistics`.

    env = RecordEpisodeCost(gym.make("InfraMind-Executor-v0"))
    ...
    observation, reward, terminated, truncated, info = env.step(action)
    if terminated or truncated:
        info["episode"]  # {"r": 1.0, "l": 6, "c": 0.42}
    np.mean(env.cost_queue), np.mean(env.violation_queue)

    envs = RecordEpisodeCostVector(gym.make_vec("InfraMind-Stream-v0", num_envs=64))
    ...
    *_, infos = envs.step(actions)
    infos["episode"]["c"][infos["_episode"]]  # of the episodes that ended in this step

Nothing that an environment returns depends on wall-clock time: the same seed gives the same infos.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from inframind_gym.envs.exporter import DEFAULT_PORT, RouterExporter
from inframind_gym.envs.routing import RoutingEnv
from inframind_gym.errors import InfraMindError

if TYPE_CHECKING:
    _Batch = VectorEnv[Any, Any, NDArray[Any]]
    _VectorWrapper = VectorWrapper[Any, Any, Any, Any, NDArray[Any]]
else:  # before Gymnasium 1.4 it is not generic
    _VectorWrapper = VectorWrapper


class EpisodeHistory:
    """The last episodes: their reward, length and cost, and whether the cost was over the limit.

    Attributes:
        episode_count: episodes so far, those that were forgotten too.
        return_queue: rewards of the last `buffer_length` episodes.
        length_queue: their numbers of steps.
        cost_queue: their costs.
        violation_queue: whether the cost per query was above the limit.
    """

    def __init__(self, buffer_length: int, cost_limit: float) -> None:
        self.cost_limit = cost_limit
        self.episode_count = 0
        self.return_queue: deque[float] = deque(maxlen=buffer_length)
        self.length_queue: deque[int] = deque(maxlen=buffer_length)
        self.cost_queue: deque[float] = deque(maxlen=buffer_length)
        self.violation_queue: deque[bool] = deque(maxlen=buffer_length)

    def _keep(self, reward: float, length: float, cost: float, queries: int) -> None:
        """Add an episode to the history."""
        self.episode_count += 1
        self.return_queue.append(reward)
        self.length_queue.append(int(length))
        self.cost_queue.append(cost)
        self.violation_queue.append(cost / max(queries, 1) > self.cost_limit)


class RecordEpisodeCost(
    gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs, EpisodeHistory
):
    """Keep reward, length and cost of the episodes of one environment.

    At the end of an episode `info["episode"]` holds "r" (sum of rewards), "l" (steps) and "c" (sum
    of `info["cost"]`); what an inner `RecordEpisodeStatistics` has put there stays. An episode
    violates its constraint where the cost per query is above the limit: an Executor episode is one
    query, a Stream episode is judged by the mean over its queries.

    Args:
        env: an environment whose steps give `info["cost"]`.
        buffer_length: episodes to remember.
        stats_key: where in `info` the statistics go.
        cost_limit: largest cost per query that is no violation; 1 is the budget.

    The attributes are those of `EpisodeHistory`.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        buffer_length: int = 100,
        stats_key: str = "episode",
        cost_limit: float = 1.0,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, buffer_length=buffer_length, stats_key=stats_key, cost_limit=cost_limit
        )
        gym.Wrapper.__init__(self, env)
        EpisodeHistory.__init__(self, buffer_length, cost_limit)
        self._stats_key = stats_key
        self._sums = {"r": 0.0, "l": 0, "c": 0.0}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment and the sums of the episode."""
        self._sums = {"r": 0.0, "l": 0, "c": 0.0}
        return self.env.reset(seed=seed, options=options)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step; the last one of an episode carries its statistics."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._sums["r"] += float(reward)
        self._sums["l"] += 1
        self._sums["c"] += float(info["cost"])
        if terminated or truncated:
            info.setdefault(self._stats_key, {}).update(self._sums)
            queries = int(getattr(self.unwrapped, "queries_done", 1))
            self._keep(self._sums["r"], self._sums["l"], self._sums["c"], queries)
        return observation, reward, terminated, truncated, info


class ExportMetrics(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Show what a router does to Prometheus while it runs (`docs/metrics.md`).

        env = ExportMetrics(gym.make("InfraMind-StreamLive-v0", record_calls=True), port=9400)
        env.follow(policy)  # shows its name and its λ, if it has one
        ...
        env.close()  # stops serving

    Any single environment of this package, live or simulated; calls, retries and tokens by model
    are counted where it was made with `record_calls=True`.

    Args:
        env: the environment, also within other wrappers.
        port: where to listen; 0 takes a free port.
        host: address to listen at. The metrics are shown to whoever can reach it.

    Attributes:
        exporter: the metrics and their server, with its `url`.

    Raises:
        InfraMindError: the environment is none that can be watched, the port is in use, or
            prometheus-client is not installed.
    """

    def __init__(
        self, env: gym.Env[ObsType, ActType], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        RecordConstructorArgs.__init__(self, port=port, host=host)
        gym.Wrapper.__init__(self, env)
        watched: object = env.unwrapped
        if not isinstance(watched, RoutingEnv):
            raise InfraMindError(
                f"{type(watched).__name__} cannot be watched: metrics are exported of the single "
                "environments that route queries (Executor, Planner, Stream, simulated or live)"
            )
        self.exporter = RouterExporter(watched.simulation.pool.aliases, port, host)
        self.exporter.metrics.watch(watched)

    def follow(self, policy: object) -> None:
        """Say who decides: its `name` is shown, and its `multiplier` λ if it has one."""
        self.exporter.metrics.follow(policy)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment."""
        result = self.env.reset(seed=seed, options=options)
        self.exporter.metrics.began()
        return result

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment, and count what was decided and what has ended."""
        result = self.env.step(action)
        self.exporter.metrics.stepped()
        return result

    def close(self) -> None:
        """Stop serving, and close the environment."""
        self.exporter.close()
        super().close()


class RecordEpisodeCostVector(_VectorWrapper, EpisodeHistory):
    """The same for a batch of environments, compiled or one of Gymnasium's.

    Where episodes ended, `infos["episode"]` holds arrays (E,) "r", "l" and "c", 0 in the other
    rows, and `infos["_episode"]` tells which rows these are.

    Args:
        env: a vector environment whose steps give `infos["cost"]`.
        buffer_length: episodes to remember, over all environments.
        stats_key: where in `infos` the statistics go.
        cost_limit: as of `RecordEpisodeCost`.

    The attributes are those of `EpisodeHistory`.
    """

    def __init__(
        self,
        env: _Batch,
        buffer_length: int = 100,
        stats_key: str = "episode",
        cost_limit: float = 1.0,
    ) -> None:
        VectorWrapper.__init__(self, env)
        EpisodeHistory.__init__(self, buffer_length, cost_limit)
        self._stats_key = stats_key
        self._autoreset = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._costs = np.zeros(self.num_envs)
        self._over = np.zeros(self.num_envs, np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments (all, or those of `options["reset_mask"]`) and their sums."""
        mask = (options or {}).get("reset_mask")
        self._start(np.ones(self.num_envs, np.bool_) if mask is None else mask.copy())
        return self.env.reset(seed=seed, options=options)

    def _start(self, rows: NDArray[np.bool_]) -> None:
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        self._costs[rows] = 0.0
        self._over[rows] = False

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take a step in every environment; see the class for what is added to `infos`."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        counts = np.ones(self.num_envs, np.bool_)
        if self._autoreset == AutoresetMode.NEXT_STEP:  # this step was the reset of these rows
            counts = ~self._over
            self._start(self._over.copy())
        self._returns[counts] += rewards[counts]
        self._lengths[counts] += 1
        costs = np.asarray(infos["cost"], np.float64)
        if "final_info" in infos:  # the costs of last steps with SAME_STEP autoreset
            costs = np.where(infos["_final_info"], infos["final_info"]["cost"], costs)
        self._costs[counts] += costs[counts]
        self._over = terminations | truncations
        if self._over.any():
            over, last = self._over, infos.get("final_info", infos)
            sums = {"r": self._returns, "l": self._lengths, "c": self._costs}
            statistics = {name: np.where(over, values, 0) for name, values in sums.items()}
            infos.setdefault(self._stats_key, {}).update(statistics)
            infos[f"_{self._stats_key}"] = over.copy()
            queries = last.get("queries", np.ones(self.num_envs, np.int64))
            for row in np.flatnonzero(over).tolist():
                reward, length, cost = (values[row].item() for values in sums.values())
                self._keep(reward, length, cost, int(queries[row]))
            if self._autoreset == AutoresetMode.SAME_STEP:
                self._start(over.copy())
        return observations, rewards, terminations, truncations, infos
