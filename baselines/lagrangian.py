"""A constraint on `info["cost"]` for algorithms that know rewards alone.

The agent is paid reward - λ·cost, and λ is moved by dual ascent on the constraint that the mean
cost of an episode is at most a limit (InfraMind, arXiv 2606.11440, where the limit is 1), one step
after every batch of episodes:

    λ ← clip(λ + η·(mean episode cost - limit), 0, λ_max)

Costs have a heavy tail: under overload a query with a budget of 10 s may take 100 times that. A
step's penalty stops growing at `largest_step_cost`, for a query that is late is late; the update of
λ sees the costs as they are.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from agents.lagrangian import Multiplier
from baselines.hyperparameters import LagrangianSettings
from inframind_gym.errors import ConfigError

LATE: Final = 1.0  # an episode that costs more has taken longer than its budget
BUFFER_LENGTH: Final = 100  # episodes over which the logger averages, as SB3's own


class LagrangianVecEnv(VecEnvWrapper):
    """Pay reward - λ·cost and move λ after every `every_episodes` episodes.

    Infos pass through, so that `info["episode"]` still holds the reward, length and cost of the
    task itself, which is what SB3 logs as `rollout/ep_rew_mean`; `info["reward"]` is the reward of
    the step without the penalty.

    Args:
        venv: environments whose infos hold "cost" in every step, one query an episode.
        settings: block `lagrangian` of the hyperparameters.

    Attributes:
        multiplier: λ and its update.
        updates: how often λ was updated.
        cost_queue: costs of the last 100 episodes.
    """

    def __init__(self, venv: VecEnv, settings: LagrangianSettings) -> None:
        super().__init__(venv)
        self.settings = settings
        self.multiplier = Multiplier(
            min(settings.start, settings.largest),
            settings.learning_rate,
            settings.cost_limit,
            settings.largest,
        )
        self.updates = 0
        self.cost_queue: deque[float] = deque(maxlen=BUFFER_LENGTH)
        self._finished: list[float] = []  # costs of the episodes since the last update
        self._running = np.zeros(venv.num_envs)  # (E,) cost of each running episode

    def reset(self) -> Any:
        """Reset the environments; λ and what was learned of the costs stay."""
        self._running[:] = 0.0
        return self.venv.reset()

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Take the step and charge its cost.

        Returns:
            Observations, rewards (E,) less the penalty, dones (E,) and E infos.

        Raises:
            ConfigError: an info has no "cost".
        """
        observations, rewards, dones, infos = self.venv.step_wait()
        try:
            costs = np.array([info["cost"] for info in infos], np.float64)
        except KeyError:
            raise ConfigError(
                "LagrangianVecEnv: a step's info has no 'cost'; use it on the environments of "
                'inframind_gym, or on others that put the cost of every step in info["cost"]'
            ) from None
        for info, reward in zip(infos, rewards.tolist(), strict=True):
            info["reward"] = reward
        penalty = self.multiplier.value * np.minimum(costs, self.settings.largest_step_cost)
        self._running += costs
        for row in np.flatnonzero(dones).tolist():
            self._finish(float(self._running[row]))
        self._running[dones] = 0.0
        return observations, (rewards - penalty).astype(np.float32), dones, infos

    def _finish(self, cost: float) -> None:
        """Note an episode's cost; the last of a batch updates λ."""
        self.cost_queue.append(cost)
        self._finished.append(cost)
        if len(self._finished) < self.settings.every_episodes:
            return
        self.multiplier.update(float(np.mean(self._finished)))
        self.updates += 1
        self._finished.clear()


class LagrangianLog(BaseCallback):
    """Add λ, costs and violations of the last episodes to what the algorithm logs."""

    def __init__(self, envs: LagrangianVecEnv) -> None:
        super().__init__()
        self._envs = envs

    def _on_step(self) -> bool:
        costs = self._envs.cost_queue
        self.logger.record("lagrange/lambda", self._envs.multiplier.value)
        if costs:
            self.logger.record("charts/episodic_cost", float(np.mean(costs)))
            violations = np.asarray(costs) > LATE
            self.logger.record("charts/violation_rate", float(np.mean(violations)))
        return True
