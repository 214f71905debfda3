"""A batch of teams, behind the single and the vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.assignment.config import AssignmentConfig, assignment_config
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.assignment.observation import form_of, write_flat, write_state
from inframind_gym.envs.assignment.reward import waiting_penalty
from inframind_gym.envs.assignment.servers import AgentServers, Ended
from inframind_gym.envs.teams import TeamSimulation
from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.simulate import (
    NO_TASK,
    Answers,
    answer,
    draw_key,
    drift,
    next_task,
    team,
)

EMPTY: Final = -1  # place of the window
STREAM_ARRIVAL: Final = 210
# Sums over the tasks that ended in a step, in `info`; and those whose means are in the last one.
REPORTED: Final = ("raw_reward", "load_penalty", "quality", "latency_s", "wait_s", "tokens")
TOTALS: Final = ("raw_reward", "load_penalty", "quality", "latency_s")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# What is known of a task from its assignment until it ends.
_TASK: Final = np.dtype(
    [
        ("task_type", "i8"),
        ("complexity", "f8"),
        ("load_state", "i8"),
        ("next_load_state", "i8"),
        ("action", "i8"),
        ("scores", "f8", (len(rules.CRITERIA),)),
        ("quality", "f8"),
        ("cost_usd", "f8"),
        ("tokens", "i8"),
    ]
)


class AssignmentSimulation(TeamSimulation):
    """E teams with the same constants and settings.

    Args:
        config: the environment's arguments.
        num_envs: E.

    Attributes:
        team: constants of the simulated team.
        servers: of the queueing form; None without queues.
        completed: tasks that ended in the last step.
        imbalance: (E,) of the windows.

    Raises:
        ConfigError: the team or the pool cannot be used.
    """

    config_of = staticmethod(assignment_config)

    def __init__(self, config: AssignmentConfig, num_envs: int) -> None:
        form = form_of(config.observation, config.queues)
        super().__init__(num_envs, form, spaces.Discrete(rules.NUM_ACTIONS))
        self.config = config
        self.team = team(config.team)
        self.servers: AgentServers | None = None
        if config.queues:
            longest = int(self.team.prompt_tokens.max()) + self.team.settings.calls.max_tokens
            self.servers = AgentServers(config.pool, num_envs, config.num_tasks, longest)
            self._open = np.zeros((num_envs, config.num_tasks), _TASK)
        self.key = np.zeros(num_envs, np.uint64)
        self.ordinal = np.zeros(num_envs, np.int64)
        self.task = np.zeros(num_envs, np.int64)
        self.window = np.full((num_envs, rules.WINDOW), EMPTY, np.int64)
        self.counts = np.zeros((num_envs, len(rules.AGENTS)), np.int64)
        self.load_state = np.zeros(num_envs, np.int64)
        self.imbalance = np.zeros(num_envs)
        self.imbalance_sum = np.zeros(num_envs)
        self.hot_steps = np.zeros(num_envs, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.totals = {name: np.zeros(num_envs) for name in TOTALS}
        self.completed = Completed._make(np.zeros(0) for _ in Completed._fields)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Actions that are open, (E, 8): all of them."""
        return np.ones((self.num_envs, rules.NUM_ACTIONS), np.bool_)

    def start(
        self,
        rows: Ints,
        generators: Sequence[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """See `TeamSimulation`."""
        self.key[rows] = [draw_key(generator)[0] for generator in generators]
        self.ordinal[rows] = 0
        self.window[rows] = EMPTY
        self.counts[rows] = 0
        self.load_state[rows] = rules.BALANCED
        self.imbalance[rows] = 0.0
        if self.servers is not None:
            self.servers.start(rows)
        self._arrive(rows, np.full(len(rows), NO_TASK))
        self._begin(rows, observations)

    def go_on(
        self,
        rows: Ints,
        generators: Sequence[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """See `TeamSimulation`; a request goes on with the load and the task that are there."""
        if self.config.episode == "request":
            self._begin(rows, observations)
        else:
            self.start(rows, generators, observations)

    def _begin(self, rows: Ints, observations: NDArray[np.float32]) -> None:
        for total in (self.imbalance_sum, self.hot_steps, self.steps, *self.totals.values()):
            total[rows] = 0
        self._observe(rows, observations)

    def _arrive(self, rows: Ints, previous: Ints) -> None:
        """Let the next tasks of `rows` arrive after the `previous` ones, (k,)."""
        self.task[rows] = next_task(
            self.team, self.config.arrivals, self.key[rows], self.ordinal[rows], previous
        )

    def step_rows(
        self, rows: Ints, actions: NDArray[Any], observations: NDArray[np.float32]
    ) -> None:
        """See `TeamSimulation`; the actions are (E,) 0-7."""
        actions = actions[rows]
        ordinals, tasks, agents = self.ordinal[rows], self.task[rows], rules.agent_of(actions)
        change = None
        if self.config.arrivals == "drifting":
            length = self.config.num_tasks
            change = drift(self.team, self.key[rows], ordinals, length, agents)
        drawn = answer(self.team, self.key[rows], ordinals, tasks, actions, change)
        penalty = rules.load_penalty(self.counts[rows], agents)
        before = self.load_state[rows]
        self._record(rows, agents)
        made = np.empty(len(rows), _TASK)
        for name, values in (
            ("task_type", self.team.task_type[tasks]),
            ("complexity", self.team.complexity[tasks]),
            ("load_state", before),
            ("next_load_state", self.load_state[rows]),
            ("action", actions),
            ("scores", drawn.scores),
            ("quality", drawn.quality),
            ("cost_usd", drawn.cost_usd),
            ("tokens", drawn.input_tokens + drawn.output_tokens),
        ):
            made[name] = values
        if self.servers is None:
            wait_s = np.zeros(len(rows))
            ended = Ended(rows.copy(), ordinals, drawn.latency_s, wait_s)
            self.completed = _completed(made, ended, penalty)
        else:
            self._open[rows, ordinals] = made
            ended = self._serve(rows, actions, ordinals, drawn)
            made = self._open[ended.row, ended.ordinal]
            self.completed = _completed(made, ended, waiting_penalty(ended.wait_s))
        self._count(rows)
        self.ordinal[rows] += 1
        self._arrive(rows, tasks)
        self._observe(rows, observations)

    def over(self) -> NDArray[np.bool_]:
        """Return (E,) whose run has had all its tasks."""
        return self.ordinal >= self.config.num_tasks

    def ends(self, rows: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (E,) which requests have ended, and which runs."""
        never = np.zeros(self.num_envs, np.bool_)
        if self.config.episode == "run":
            return never, self.over()
        return np.isin(np.arange(self.num_envs), rows), never

    def rewards(self) -> Floats:
        """Return (E,) rewards of the tasks that ended in the last step."""
        return self.sum_of(self.completed.reward)

    def costs(self) -> Floats:
        """Return (E,) US dollars of the tasks that ended in the last step."""
        return self.sum_of(self.completed.cost_usd)

    def infos(self) -> dict[str, Any]:
        """Return sums over the tasks that ended in the last step, and the load after it."""
        done = self.completed
        return {
            "completed": np.bincount(done.row, minlength=self.num_envs),
            **{name: self.sum_of(getattr(done, name)) for name in REPORTED},
            "load_state": self.load_state.copy(),
            "utilization": rules.utilization(self.counts),
            "imbalance": self.imbalance.copy(),
        }

    def last_completed(self) -> Completed:
        """Return a copy of `completed`."""
        return Completed._make(column.copy() for column in self.completed)

    def sum_of(self, values: NDArray[Any]) -> Floats:
        """Add up numbers of the completed tasks by row, (E,)."""
        weights = values.astype(np.float64)
        return np.asarray(np.bincount(self.completed.row, weights, minlength=self.num_envs))

    def contexts(self, rows: Ints, *, truth: bool = False) -> AssignmentContext:
        """Return the state of `rows` at the decisions that they wait for; nothing is latent."""
        tasks = self.task[rows]
        servers = self.servers
        return AssignmentContext(
            ordinal=self.ordinal[rows],
            task=tasks,
            task_type=self.team.task_type[tasks],
            complexity=self.team.complexity[tasks],
            priority=self.team.priority[tasks],
            load_state=self.load_state[rows],
            counts=self.counts[rows],
            window=self.window[rows],
            in_flight=np.zeros((len(rows), rules.NUM_ACTIONS), np.int64)
            if servers is None
            else servers.in_flight(rows),
            time_s=np.zeros(len(rows)) if servers is None else servers.now_s[rows],
        )

    def spec(self) -> AssignmentSpec:
        """Return the facts of the run that a policy is reset with."""
        servers = self.servers
        slots = np.ones(rules.NUM_ACTIONS, np.int64) if servers is None else servers.slots.copy()
        return AssignmentSpec(self.config, slots)

    def _observe(self, rows: Ints, observations: NDArray[np.float32]) -> None:
        """Write what is seen at the decisions of `rows` into `observations`, (E, d)."""
        context = self.contexts(rows)
        if self.config.observation == "tabular":
            observations[rows] = write_state(context)
        else:
            observations[rows] = write_flat(context, self.config.queues)

    def summaries(self, rows: Ints) -> dict[str, NDArray[Any]]:
        """Return means over the steps of episodes, (k,) each."""
        steps = np.maximum(self.steps[rows], 1)
        return {
            "mean_imbalance": self.imbalance_sum[rows] / steps,
            "hot_share": self.hot_steps[rows] / steps,
            **{f"mean_{name}": self.totals[name][rows] / steps for name in TOTALS},
        }

    def _record(self, rows: Ints, agents: Ints) -> None:
        """Enter assignments into the windows."""
        window, counts = self.window[rows], self.counts[rows]
        oldest, place = window[:, 0], np.arange(len(rows))
        counts[place, oldest] -= oldest != EMPTY
        counts[place, agents] += 1
        window[:, :-1] = window[:, 1:].copy()
        window[:, -1] = agents
        self.window[rows], self.counts[rows] = window, counts
        self.load_state[rows] = rules.load_state(counts)
        self.imbalance[rows] = rules.imbalance(counts)

    def _serve(self, rows: Ints, actions: Ints, ordinals: Ints, drawn: Answers) -> Ended:
        """Send the calls to their servers and let time run to the next arrivals."""
        assert self.servers is not None
        u = uniform_array(self.key[rows], STREAM_ARRIVAL, ordinals)
        gap_s = -np.log(u) * 60.0 / self.config.arrival_rate_per_min
        last = ordinals + 1 >= self.config.num_tasks
        until_s = np.where(last, np.inf, self.servers.now_s[rows] + gap_s)
        return self.servers.advance(
            rows, actions, ordinals, drawn.input_tokens, drawn.output_tokens, until_s
        )

    def _count(self, rows: Ints) -> None:
        """Add the step to the sums of the episodes."""
        self.imbalance_sum[rows] += self.imbalance[rows]
        self.hot_steps[rows] += self.load_state[rows] != rules.BALANCED
        self.steps[rows] += 1
        for name, total in self.totals.items():
            total += self.sum_of(getattr(self.completed, name))


def _completed(made: NDArray[Any], ended: Ended, penalty: Floats) -> Completed:
    """Return the tasks `made` (k,) that ended, with their rewards."""
    raw = rules.raw_reward(made["scores"], made["cost_usd"], ended.latency_s)
    return Completed(
        row=ended.row,
        ordinal=ended.ordinal,
        **{name: made[name].copy() for name in _TASK.names or ()},
        raw_reward=raw,
        load_penalty=penalty,
        reward=rules.adjusted_reward(raw, penalty),
        latency_s=ended.latency_s,
        wait_s=ended.wait_s,
    )
