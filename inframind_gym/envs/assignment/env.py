"""InfraMind-Assignment-v0: which agent takes a task."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.assignment.config import (
    DEFAULT_POOL,
    Episode,
    Load,
    Observation,
    assignment_config,
)
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.assignment.observation import StateForm, form_of
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.envs.checks import check_actions, check_options
from inframind_gym.envs.observations import ObservationForm
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.settings import DEFAULT_TEAM
from inframind_gym.teams.assignment.simulate import Arrivals

RENDER_MODES: Final = ("ansi", "rgb_array")
_HIGHS: Final = np.array([rules.NUM_ACTIONS])
# Sums over the tasks that ended in a step, in `info`.
REPORTED: Final = ("raw_reward", "load_penalty", "quality", "latency_s", "wait_s", "tokens")


def space_of(form: ObservationForm) -> spaces.Space[Any]:
    """Return the space of observations in a form."""
    return spaces.Discrete(rules.NUM_STATES) if isinstance(form, StateForm) else form.space


class AssignmentEnv(gym.Env[Any, np.int64]):
    """Decide for every task which of four agents takes it, and on which of two providers.

    ## Description

    Tasks of four types arrive one after the other. Each agent is the expert of one type; whoever
    gets too many of the last eight tasks is *hot*, and its answers earn less. A judge scores every
    answer. The rules are `inframind_gym.teams.assignment.rules`, the answers are drawn from
    `envs_configs/teams/assignment.yaml`, whose constants are priors.

    With `load="queue"` a hot agent is slow because its server's queue is: tasks arrive in real
    time, every agent has a GPU with the models of both providers, and calls are served by the
    simulated vLLM servers of the routing environments.

    ## Action Space

    `Discrete(8)`: 2 x agent + provider, agents in alphabetical order (analyst, coder, researcher,
    validator), providers openai, anthropic. `info["action_mask"]` is all ones.

    ## Observation Space

    `observation="full"`: a Dict of task, load state, window and, with queues, tasks in flight
    (`inframind_gym.envs.assignment.observation`); "flat": the same in one Box, (48,) or with
    queues (56,); "tabular": `Discrete(20)`, 5 x task type + load state.

    ## Rewards and costs

    The reward of the tasks that ended in the step: the judge's mean score, less cost and latency,
    less the load penalty (`inframind_gym.envs.assignment.reward`). Without queues that is the task
    that was just assigned. With queues a task's reward comes in the step in which it ends, as in
    `InfraMind-Stream-v0`; `completed()` ties it to the decision. `info["cost"]`: US dollars of the
    agents' calls that ended. `info` has the sums of `raw_reward`, `load_penalty`, the true
    `quality`, `latency_s`, `wait_s` and `tokens` over the `completed` tasks of the step, their
    mean `scores`, and the `load_state`, `utilization` and `imbalance` after it.

    ## Starting State

    An empty window, idle servers, a first task.

    ## Episode End

    `episode="run"`: truncated after `num_tasks` tasks, never terminated; with queues the last step
    runs until all tasks have ended. `episode="request"`: every step terminates the episode, as in
    the production system, whose learner has no next state; window and tasks go on with the next
    episode unless `reset` is given a seed.

    ## Arguments

    All are JSON types.

    * `team`: name or path of the team's constants (`envs_configs/teams`).
    * `arrivals`: "uniform": from the bank of tasks; "skewed": 70 % are coding; "bursty": the next
      task is of the same type with probability 0.85; "drifting": from the bank, and one agent gets
      worse at what it knows best.
    * `load`: "window" or "queue".
    * `observation`: "full", "flat" or "tabular".
    * `num_tasks`: length of a run: 50 as in the source, 500 for the long form.
    * `episode`: "run" or "request".
    * `pool`: with queues, name or path of a pool of eight models in the order of the actions
      (`envs_configs/teams/pools`).
    * `arrival_rate_per_min`: with queues, rate of the Poisson arrivals.
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        team: str = DEFAULT_TEAM,
        arrivals: Arrivals = "uniform",
        load: Load = "window",
        observation: Observation = "full",
        num_tasks: int = 50,
        episode: Episode = "run",
        pool: str = DEFAULT_POOL,
        arrival_rate_per_min: float = 240.0,
        render_mode: str | None = None,
        **unknown_arguments: Any,
    ) -> None:
        arguments = {**locals(), **unknown_arguments}
        for name in ("self", "render_mode", "unknown_arguments"):
            del arguments[name]
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(unknown("render_mode", render_mode, RENDER_MODES))
        self.render_mode = render_mode
        self.config = assignment_config(arguments)
        self.simulation = AssignmentSimulation(self.config, 1)
        self._form = form_of(self.config.observation, self.config.queues)
        self.observation_space = space_of(self._form)
        self.action_space = spaces.Discrete(rules.NUM_ACTIONS)
        self._row = np.zeros(1, np.int64)
        self._started = self._running = False
        self._episode_cost = self._episode_reward = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Raises:
            ConfigError: an option is given; there are none.
        """
        super().reset(seed=seed)
        check_options(options, ())
        observations = self.simulation.observations()
        if self.config.episode == "request" and self._started and seed is None:
            self.simulation.resume(self._row, observations)
        else:
            self.simulation.start(self._row, [self.np_random], observations)
        self._started = self._running = True
        self._episode_cost = self._episode_reward = 0.0
        return self._form.of(observations[0]), {
            "cost": 0.0,
            **self._load_info(),
            "action_mask": self.action_masks().astype(np.int8),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Assign the task that waits, and let time run to the next one.

        Raises:
            ActionError: an action of the wrong shape or out of range.
            gymnasium.error.ResetNeeded: the episode is over.
        """
        if not self._running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before step()")
        observations = self.simulation.observations()
        self.simulation.step(check_actions(action, _HIGHS, 1)[:, 0], self._row, observations)
        done, sums = self.simulation.completed, self.simulation.sum_of
        reward, cost = float(sums(done.reward)[0]), float(sums(done.cost_usd)[0])
        self._episode_reward += reward
        self._episode_cost += cost
        terminated = self.config.episode == "request"
        truncated = not terminated and bool(self.simulation.over()[0])
        count = len(done.row)
        info: dict[str, Any] = {
            "cost": cost,
            "completed": count,
            **{name: float(sums(getattr(done, name))[0]) for name in REPORTED},
            "scores": done.scores.sum(axis=0) / max(count, 1),
            **self._load_info(),
            "action_mask": self.action_masks().astype(np.int8),
        }
        if terminated or truncated:
            self._running = False
            info |= {
                "episode_cost": self._episode_cost,
                "episode_reward": self._episode_reward,
                **self.simulation.summary(0),
            }
        return self._form.of(observations[0]), reward, terminated, truncated, info

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (8,): all of them."""
        return np.ones(rules.NUM_ACTIONS, np.bool_)

    def context(self) -> AssignmentContext:
        """Return the input of an assignment policy, arrays with a first axis of 1."""
        return self.simulation.context(self._row)

    def assignment_spec(self) -> AssignmentSpec:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step."""
        return Completed._make(column.copy() for column in self.simulation.completed)

    def render(self) -> Any:
        """Return the team: lines of text ("ansi") or a picture, (540, 960, 3) uint8."""
        if self.render_mode is None:
            return None
        from inframind_gym.envs.assignment import rendering

        if self.render_mode == "ansi":
            return rendering.text(self.simulation)
        return rendering.draw_frame(self.simulation, self._episode_reward, self._episode_cost)

    def _load_info(self) -> dict[str, Any]:
        counts = self.simulation.counts[0]
        return {
            "load_state": int(self.simulation.load_state[0]),
            "utilization": rules.utilization(counts),
            "imbalance": float(self.simulation.imbalance[0]),
        }
