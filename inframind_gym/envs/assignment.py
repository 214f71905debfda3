"""InfraMind-Assignment-v0: which agent takes a task, when agents get overloaded."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import model_validator

from inframind_gym.configs import StrictModel, within
from inframind_gym.envs.core import Env, Float32s, ObservationForm, Rngs, Simulation, VectorEnv
from inframind_gym.envs.render import BAD, RUNNING, WAITING, Bar, Cell, Frame, Headline, Table
from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.rules import AGENTS, NUM_ACTIONS, PROVIDERS, TASK_TYPES, WINDOW
from inframind_gym.teams.state import Bools, Column, Columns, Floats, Ints, Rows, keys_of

MOST_TASKS: Final = 1_000_000
EMPTY: Final = -1  # in place of an agent in the window
STREAM_ARRIVAL: Final = 210
# Sums over the tasks that ended in a step, in `info`; the first four are also summed over episodes.
REPORTED: Final = ("raw_reward", "load_penalty", "quality", "latency_s", "wait_s", "tokens")
SUMMARIES: Final = ("mean_imbalance", "hot_share", *(f"mean_{name}" for name in REPORTED[:4]))
Load = Literal["window", "queue"]


class AssignmentConfig(StrictModel):
    """Arguments of `AssignmentEnv`, described there, with the values that they may have."""

    team: str = simulate.DEFAULT_TEAM
    arrivals: rules.Arrivals = "uniform"
    load: Load = "window"
    observation: Literal["full", "flat", "tabular"] = "full"
    num_tasks: Annotated[int, within(1, MOST_TASKS)] = 50
    episode: Literal["run", "request"] = "run"
    arrival_rate_per_min: Annotated[float, within(0.001, 1e6)] = 240.0

    @model_validator(mode="after")
    def _check_episode(self) -> AssignmentConfig:
        if self.episode == "request" and self.load == "queue":
            raise ValueError(
                "episode 'request' ends with its task, which load 'queue' answers later; use load "
                "'window', or episode 'run'"
            )
        return self

    @property
    def queues(self) -> bool:
        """True if tasks are served by servers with queues."""
        return self.load == "queue"


class AssignmentSpec(NamedTuple):
    """Facts of a run; the constants of its random draws are not among them."""

    config: AssignmentConfig
    slots: NDArray[np.int64]  # (8,) calls that the server of an action runs at once


class AssignmentContext(Rows):
    """Decisions that n teams wait for; policies get copies of some rows."""

    ordinal: Ints  # (n,) of the task in its run, from 0 on
    task: Ints  # (n,) place in the bank
    task_type: Ints  # (n,)
    complexity: Floats  # (n,)
    priority: Floats  # (n,)
    load_state: Ints  # (n,)
    counts: Annotated[Ints, len(AGENTS)]  # assignments of each agent in the window
    window: Annotated[Ints, WINDOW]  # agents, oldest first; -1: empty
    in_flight: Annotated[Ints, NUM_ACTIONS]  # tasks in the server of each action; 0 without queues
    time_s: Floats  # (n,) 0 without queues


class Completed(NamedTuple):
    """Tasks that ended in a step, (k,) each; without queues one in every row."""

    row: Ints
    ordinal: Ints
    task_type: Ints
    complexity: Floats
    load_state: Ints  # at the decision
    next_load_state: Ints  # after the assignment was recorded
    action: Ints
    scores: Floats  # (k, 4)
    quality: Floats  # the true one, for reports
    raw_reward: Floats
    load_penalty: Floats
    reward: Floats
    cost_usd: Floats
    latency_s: Floats
    wait_s: Floats  # before the server took the call; 0 without queues
    tokens: Ints  # prompt and answer

    def of(self, chosen: NDArray[np.bool_]) -> Completed:
        """Return those of the tasks that `chosen` (k,) marks."""
        return Completed._make(column[chosen] for column in self)


# Observations


class StateForm(ObservationForm):
    """Observations as numbers of states."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0.0, rules.NUM_STATES - 1.0, (1,), np.float32), None)
        self.space = spaces.Discrete(rules.NUM_STATES)

    def of(self, flat: NDArray[np.float32]) -> Any:
        """Return the states of observations (..., 1) as integers (...)."""
        states = flat[..., 0].astype(np.int64)
        return states if states.ndim else np.int64(states)


_TYPES: Final = np.eye(len(TASK_TYPES), dtype=np.float32)
_STATES: Final = np.eye(len(rules.LOAD_STATES), dtype=np.float32)
# Functions of the decisions that wait, an `AssignmentContext`; see `Columns`.
_COLUMNS: Final[dict[str, Column]] = {
    "task_type": (4, 0, 1, lambda context: _TYPES[context.task_type]),
    "load_state": (5, 0, 1, lambda context: _STATES[context.load_state]),
    "utilization": (4, 0, 1, lambda context: rules.utilization(context.counts)),
    "window": (8 * 4, 0, 1, lambda context: _one_hot(context.window)),
    "fill": (1, 0, 1, lambda context: context.counts.sum(axis=1) / WINDOW),
    "complexity": (1, 0, 1, lambda context: context.complexity),
    "priority": (1, 0, 1, lambda context: context.priority),
}
_IN_FLIGHT: Final[Column] = (8, 0, 5, lambda context: context.in_flight / WINDOW)
# "flat" observations by form of load.
FLAT: Final = {"window": Columns(_COLUMNS), "queue": Columns(_COLUMNS | {"in_flight": _IN_FLIGHT})}


def _one_hot(window: Ints) -> Bools:
    """Return the agents of windows (n, 8), a row of zeros where a place is empty, (n, 32)."""
    is_there: Bools = window[:, :, None] == np.arange(len(AGENTS))
    return is_there.reshape(len(window), -1)


# The batch of teams


class AssignmentSimulation(Simulation):
    """E teams with the same constants and settings; NumPy computes all rows at once.

    Attributes:
        team: constants of the simulated team.
        servers: of the queueing form; None without queues.
        last_completed: tasks that ended in the last step.
        imbalance: (E,) of the windows.

    Raises:
        ConfigError: the team cannot be used, or too many tasks can be in flight.
    """

    config: AssignmentConfig

    def __init__(self, config: AssignmentConfig, num_envs: int, num_threads: int = 1) -> None:
        flat = FLAT[config.load]
        window = flat.places["window"].reshape(WINDOW, len(AGENTS))
        places = flat.places | {"window": window} if config.observation == "full" else None
        form = ObservationForm(flat.box, places)
        if config.observation == "tabular":
            form = StateForm()
        super().__init__(num_envs, form, spaces.Discrete(NUM_ACTIONS))
        self.config, self.team = config, simulate.team(config.team)
        self.servers = simulate.AgentServers(num_envs, config.num_tasks) if config.queues else None
        # Columns of `Completed` that are known at the assignment, (E, num_tasks) each; with queues.
        self._assigned: dict[str, NDArray[Any]] = {}
        self.key = np.zeros(num_envs, np.uint64)
        self.state = AssignmentContext(num_envs)
        self.imbalance = np.zeros(num_envs)
        self.steps = np.zeros(num_envs, np.int64)
        self.sums = {name: np.zeros(num_envs) for name in SUMMARIES}  # over an episode's steps
        self.last_completed = Completed._make(np.zeros(0) for _ in Completed._fields)

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes; see `Simulation`."""
        if first or self.config.episode == "run":  # a request goes on with load and task
            self.key[rows] = keys_of(rngs)
            self.state.clear(rows)
            self.state.window[rows] = EMPTY
            self.imbalance[rows] = 0.0
            if self.servers is not None:
                self.servers.start(rows)
            self._arrive(rows, np.full(len(rows), simulate.NO_TASK))
        for total in (self.steps, *self.sums.values()):
            total[rows] = 0
        self.truncated[rows] = self.terminated[rows] = False
        self._observe(rows, observations)

    def _arrive(self, rows: Ints, previous: Ints) -> None:
        """Let the next tasks of `rows` arrive after the `previous` ones, (k,)."""
        state, team = self.state, self.team
        keys, ordinals = self.key[rows], state.ordinal[rows]
        tasks = simulate.next_task(team, self.config.arrivals, keys, ordinals, previous)
        state.task[rows], state.task_type[rows] = tasks, team.task_type[tasks]
        state.complexity[rows], state.priority[rows] = team.complexity[tasks], team.priority[tasks]

    def step(self, rows: Ints, actions: NDArray[Any], observations: Float32s) -> None:
        """Carry out a decision in the environments `rows`; the actions are (E,) 0-7."""
        config, keys = self.config, self.key[rows]
        actions, ordinals, tasks = actions[rows], self.state.ordinal[rows], self.state.task[rows]
        agents, before = rules.agent_of(actions), self.state.load_state[rows]
        drifts_in = config.num_tasks if config.arrivals == "drifting" else 0
        drawn = simulate.answer(self.team, keys, ordinals, tasks, actions, drifts_in)
        penalty = rules.load_penalty(self.state.counts[rows], agents)
        self._record(rows, agents)
        columns = {
            "task_type": self.team.task_type[tasks],
            "complexity": self.team.complexity[tasks],
            "load_state": before,
            "next_load_state": self.state.load_state[rows],
            "action": actions,
            "scores": drawn.scores,
            "quality": drawn.quality,
            "cost_usd": drawn.cost_usd,
            "tokens": drawn.input_tokens + drawn.output_tokens,
        }
        row, ordinal = rows.copy(), ordinals  # of the tasks that end: without queues, all
        latency_s, wait_s = drawn.latency_s, np.zeros(len(rows))
        if self.servers is not None:
            shape = self.num_envs, config.num_tasks
            for name, values in columns.items():
                if name not in self._assigned:
                    self._assigned[name] = np.zeros((*shape, *values.shape[1:]), values.dtype)
                self._assigned[name][rows, ordinals] = values
            # Time runs to the next arrival; after the last one, until the last task has ended.
            u = uniform_array(keys, STREAM_ARRIVAL, ordinals)
            gap_s = -np.log(u) * 60.0 / config.arrival_rate_per_min
            last = ordinals + 1 >= config.num_tasks
            until_s = np.where(last, np.inf, self.servers.now_s[rows] + gap_s)
            tokens = drawn.input_tokens, drawn.output_tokens
            ended = self.servers.advance(rows, actions, ordinals, tokens, until_s)
            row, ordinal, latency_s, wait_s = ended
            columns = {name: values[row, ordinal] for name, values in self._assigned.items()}
            penalty = rules.waiting_penalty(wait_s)
        raw = rules.raw_reward(columns["scores"], columns["cost_usd"], latency_s)
        self.last_completed = Completed(
            row=row,
            ordinal=ordinal,
            **columns,
            raw_reward=raw,
            load_penalty=penalty,
            reward=rules.adjusted_reward(raw, penalty),
            latency_s=latency_s,
            wait_s=wait_s,
        )
        self.steps[rows] += 1
        self.sums["mean_imbalance"][rows] += self.imbalance[rows]
        self.sums["hot_share"][rows] += self.state.load_state[rows] != rules.BALANCED
        for name in REPORTED[:4]:
            self.sums[f"mean_{name}"] += self.sum_of(getattr(self.last_completed, name))
        self.state.ordinal[rows] += 1
        self._arrive(rows, tasks)
        self._observe(rows, observations)
        self.rewards = self.sum_of(self.last_completed.reward)
        self.costs = self.sum_of(self.last_completed.cost_usd)
        if config.episode == "run":
            self.truncated = self.state.ordinal >= config.num_tasks
        else:
            self.terminated = np.isin(np.arange(self.num_envs), rows)

    def _record(self, rows: Ints, agents: Ints) -> None:
        """Enter assignments into the windows."""
        window, counts = self.state.window[rows], self.state.counts[rows]
        oldest, place = window[:, 0], np.arange(len(rows))
        counts[place, oldest] -= oldest != EMPTY
        counts[place, agents] += 1
        window[:, :-1] = window[:, 1:].copy()
        window[:, -1] = agents
        self.state.window[rows], self.state.counts[rows] = window, counts
        self.state.load_state[rows] = rules.load_state(counts)
        self.imbalance[rows] = rules.imbalance(counts)

    def _observe(self, rows: Ints, observations: Float32s) -> None:
        """Write the observations of `rows` into `observations`, (E, d)."""
        context = self.contexts(rows)
        if self.config.observation == "tabular":
            observations[rows] = rules.state_index(context.task_type, context.load_state)[:, None]
        else:
            observations[rows] = FLAT[self.config.load].of(context)

    # Results

    def sum_of(self, values: NDArray[Any]) -> Floats:
        """Return sums of a column (k,) of `last_completed` by row, (E,)."""
        weights = values.astype(np.float64)
        return np.asarray(np.bincount(self.last_completed.row, weights, minlength=self.num_envs))

    def _load(self) -> dict[str, Any]:
        return {
            "load_state": self.state.load_state.copy(),
            "utilization": rules.utilization(self.state.counts),
            "imbalance": self.imbalance.copy(),
        }

    def infos(self) -> dict[str, Any]:
        """Return sums over the tasks that ended in the last step, and the load after it."""
        done = self.last_completed
        count = np.bincount(done.row, minlength=self.num_envs)
        sums = {name: self.sum_of(getattr(done, name)) for name in REPORTED}
        return {"completed": count, **sums, **self._load()}

    def reset_info(self) -> dict[str, Any]:
        """Return the load."""
        return _first_row(self._load())

    def info(self) -> dict[str, Any]:
        """Return sums and mean scores of the tasks that ended in the last step, and the load."""
        info = _first_row(self.infos())
        info |= {name: float(info[name]) for name in REPORTED}  # sums of nothing are integers
        info["scores"] = self.last_completed.scores.sum(axis=0) / max(info["completed"], 1)
        return info

    def summaries(self, rows: Ints, *_: Any) -> dict[str, NDArray[Any]]:
        """Return means over the steps of episodes, (k,) each."""
        steps = np.maximum(self.steps[rows], 1)
        return {name: total[rows] / steps for name, total in self.sums.items()}

    def contexts(self, rows: Ints, *, truth: bool = False) -> AssignmentContext:
        """Return the input of a policy; nothing of it is latent."""
        seen, servers = self.state.rows(rows), self.servers
        if servers is not None:
            seen.in_flight, seen.time_s = servers.in_flight(rows), servers.now_s[rows]
        return seen

    def policy_spec(self) -> AssignmentSpec:
        """Return the facts of the run that a policy is reset with."""
        servers = self.servers
        slots = np.ones(NUM_ACTIONS, np.int64) if servers is None else servers.slots.copy()
        return AssignmentSpec(self.config, slots)

    def describe(self, action: NDArray[np.int64]) -> tuple[str, str]:
        """Return agent and provider, and the task."""
        task = self.team.settings.tasks[int(self.state.task[0])]
        return _action_name(int(action)), f"{task.task_type}, complexity {task.complexity:g}"

    def frame(self) -> Frame:
        """Return a table with a row for each agent, and one of the tasks that ended."""
        config, servers, row, done = self.config, self.servers, np.zeros(1, np.int64), []
        hot = int(self.state.load_state[0]) - 1  # agent; -1: none
        calls: list[Bar] = []  # by action; none without queues
        if servers is not None:
            waiting = servers.waiting(row)[0]
            running = servers.in_flight(row)[0] - waiting
            for r, w, slots in zip(running, waiting, servers.slots, strict=True):
                calls.append(Bar(float(r / slots), f"{r}+{w}", WAITING))
        agents: list[tuple[Cell, ...]] = []
        for agent, share in enumerate(rules.utilization(self.state.counts[0]).tolist()):
            bar = Bar(share, f"{share:.1%}", BAD if agent == hot else RUNNING)
            bars = calls[agent * len(PROVIDERS) :][: len(PROVIDERS)]
            agents.append((AGENTS[agent] + ": hot" * (agent == hot), bar, *bars))
        window = " ".join("-" if a == EMPTY else AGENTS[a] for a in self.state.window[0])
        ended = self.last_completed
        for action, task_type, reward, lost in zip(
            ended.action, ended.task_type, ended.reward, ended.load_penalty, strict=True
        ):
            numbers = f"{reward:.3f}", f"{lost:.3f}"
            done.append((_action_name(int(action)), TASK_TYPES[int(task_type)], *numbers))
        task = self.team.settings.tasks[int(self.state.task[0])]
        ordinal = f"task {int(self.state.ordinal[0])} of {config.num_tasks}"
        heads = ("share", *PROVIDERS) if calls else ("share",)
        return Frame(
            "InfraMind Assignment",
            (self.team.settings.name, f"{config.arrivals} arrivals", f"load: {config.load}"),
            ordinal if servers is None else f"{servers.now_s[0]:.1f} s",
            rules.LOAD_STATES[hot + 1].replace("_", " "),
            (
                Table("Agents", heads, agents, f"last assignments: {window}"),
                Table("Ended", ("task", "reward", "load penalty"), done),
            ),
            Headline(f"Task: {task.task_type} ({task.id})", task.description),
            results=f"{ordinal}, imbalance {float(self.imbalance[0]):.3f}",
        )


def _first_row(infos: dict[str, Any]) -> dict[str, Any]:
    return {name: rows[0] if rows.ndim > 1 else rows[0].item() for name, rows in infos.items()}


def _action_name(action: int) -> str:
    return f"{AGENTS[rules.agent_of(action)]} on {PROVIDERS[rules.provider_of(action)]}"


class AssignmentEnv(Env):
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

    `observation="full"`: a Dict; "flat": the same numbers in one Box, in this order, (48,) or with
    queues (56,); "tabular": `Discrete(20)`, 5 x task type + load state, which is all that the
    source's learner sees.

    | full | numbers | |
    |---|---|---|
    | `task_type` | 4 | one-hot |
    | `load_state` | 5 | one-hot |
    | `utilization` | 4 | share of the window |
    | `window` | 8 x 4 | one-hot, oldest first; a row of zeros is an empty place |
    | `fill` | 1 | assignments in the window, over 8 |
    | `complexity`, `priority` | 1, 1 | of the task |
    | `in_flight` | 8 | with queues: tasks in the server of each action, over 8, at most 5 |

    ## Rewards and costs

    The reward of the tasks that ended in the step is max(0, raw - load penalty), where

        raw = clip(mean score - 0.10 min(cost / 0.002 USD, 1) - 0.05 min(latency / 5 s, 1), 0, 1).

    With `load="window"` the penalty follows from the agent's share of the last eight assignments
    (`rules.load_penalty`), and the task is the one that was just assigned. With `load="queue"` it
    is what the call waited in its server's queue, 0.20 for 5 s and more, 0 for none, and a task's
    reward comes in the step in which it ends, as in
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
    * `arrival_rate_per_min`: with queues, rate of the Poisson arrivals.
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    arguments = AssignmentConfig
    simulation: AssignmentSimulation
    simulate = AssignmentSimulation

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step."""
        return self.simulation.last_completed.of(self.simulation.last_completed.row == 0)


class AssignmentVectorEnv(VectorEnv):
    """`InfraMind-Assignment-v0` in a batch (`VectorEnv`); arguments as of `AssignmentEnv`."""

    single = AssignmentEnv
    simulation: AssignmentSimulation

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step, of all rows."""
        return Completed._make(column.copy() for column in self.simulation.last_completed)
