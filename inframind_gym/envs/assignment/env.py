"""InfraMind-Assignment-v0: which agent takes a task."""

from __future__ import annotations

from typing import Any

from inframind_gym.envs.assignment.config import DEFAULT_POOL, Episode, Load, Observation
from inframind_gym.envs.assignment.context import Completed
from inframind_gym.envs.assignment.simulation import REPORTED, AssignmentSimulation
from inframind_gym.envs.teams import TeamEnv, arguments_of
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.settings import DEFAULT_TEAM


class AssignmentEnv(TeamEnv):
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

    metadata: dict[str, Any] = TeamEnv.metadata | {"render_fps": 4}

    simulation: AssignmentSimulation

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
        self._set_up(AssignmentSimulation.of(arguments_of(locals()), 1), render_mode)

    def _reset_info(self) -> dict[str, Any]:
        return self._load_info()

    def _step_info(self, action: Any) -> dict[str, Any]:
        done, sums = self.simulation.completed, self.simulation.sum_of
        count = len(done.row)
        return {
            "completed": count,
            **{name: float(sums(getattr(done, name))[0]) for name in REPORTED},
            "scores": done.scores.sum(axis=0) / max(count, 1),
            **self._load_info(),
        }

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step."""
        return self.simulation.last_completed()

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
