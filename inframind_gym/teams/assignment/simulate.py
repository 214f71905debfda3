"""The simulated team: its constants, tasks that arrive, answers of agents, scores of the judge.

Every number is a function of the run's key and its place in the run (`simulator.rng`): two runs
with the same key meet the same tasks, and an agent answers a task in the same way, whatever was
decided before. The environment draws for many teams at once, `DrawnAnswers` for one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator import rng
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.rng import normal
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.faults import STRETCH_ENDS, next_event
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import NEVER_S, Cluster, allocate, cards
from inframind_gym.teams import llm
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.state import Floats, Ints, Keys, key_of

DEFAULT_TEAM: Final = "assignment"
NO_TASK: Final = -1
JUDGED_CHARS: Final = 2000  # of an answer that the judge reads
MARK: Final = "[simulated]"
POOL: Final = "team-4gpu"  # eight models, in the order of the actions
MOST_IN_FLIGHT: Final = 2_000_000  # tasks of all environments of a batch
# Streams of random numbers, apart from those of `simulator.rng`.
STREAM_TASK_TYPE, STREAM_TASK, STREAM_DIFFICULTY, STREAM_ANSWER, STREAM_LENGTH = range(201, 206)
STREAM_LATENCY, STREAM_SCORE, STREAM_JUDGE, STREAM_DRIFT = range(206, 210)

ByType = Annotated[dict[rules.TaskType, Number], Field(min_length=len(rules.TASK_TYPES))]


# Constants, `envs_configs/teams/assignment.yaml`


class _Quality(StrictModel):  # variation of the true quality of an answer
    complexity_slope: NonNegative
    task_sd: NonNegative
    answer_sd: NonNegative


class _Provider(StrictModel):  # quality and speed of a provider's model; prices.yaml has its price
    model: str
    gain: ByType
    output_tokens_median: Positive
    overhead_s: NonNegative
    per_token_s: NonNegative

    @field_validator("model")
    @classmethod
    def _has_price(cls, model: str) -> str:
        if model not in (prices := llm.shipped_prices().models):
            raise ValueError(unknown("model with a price", model, prices))
        return model


class _Calls(StrictModel):  # length and latency of the agents' calls
    max_tokens: PositiveInt
    system_prompt_tokens: NonNegativeInt
    complexity_length: Fraction
    length_sd: NonNegative
    latency_sd: NonNegative


class _Judge(StrictModel):  # scores and calls of the judge
    provider: rules.Provider
    bias: Number
    noise_sd: NonNegative
    match_expert: Fraction
    match_other: Fraction
    prompt_tokens: NonNegativeInt
    output_tokens_median: Positive


class _Arrivals(StrictModel):  # order in which tasks arrive
    skewed_type: rules.TaskType
    skewed_share: Fraction
    bursty_stay: Fraction
    drift_drop: Fraction
    drift_earliest: Fraction
    drift_latest: Fraction


class BankTask(StrictModel):
    """A task of the bank; `tokens` of its description, system prompt not counted."""

    id: Name
    task_type: rules.TaskType
    complexity: Fraction
    priority: Fraction
    tokens: PositiveInt
    description: Annotated[str, Field(min_length=1)]


class AssignmentSettings(StrictModel):
    """The whole file; `skill` is the mean true quality of each agent's answers by type."""

    name: Name
    description: str = ""
    skill: Annotated[dict[rules.Agent, ByType], Field(min_length=len(rules.AGENTS))]
    quality: _Quality
    providers: Annotated[dict[rules.Provider, _Provider], Field(min_length=len(rules.PROVIDERS))]
    calls: _Calls
    judge: _Judge
    arrivals: _Arrivals
    tasks: tuple[BankTask, ...] = Field(min_length=1, max_length=1000)

    @field_validator("tasks")
    @classmethod
    def _every_type(cls, tasks: tuple[BankTask, ...]) -> tuple[BankTask, ...]:
        if missing := set(rules.TASK_TYPES) - {task.task_type for task in tasks}:
            raise ValueError(f"none is of type {', '.join(sorted(missing))}; add one")
        return tasks


class Team:
    """The constants as arrays: N agents, P providers, T types, K tasks of the bank."""

    def __init__(self, settings: AssignmentSettings) -> None:
        self.settings, judge, tasks = settings, settings.judge, settings.tasks
        providers = [settings.providers[name] for name in rules.PROVIDERS]
        prices = [llm.shipped_prices().models[provider.model] for provider in providers]
        self.skill = np.array(  # (N, T)
            [[settings.skill[agent][kind] for kind in rules.TASK_TYPES] for agent in rules.AGENTS]
        )
        expert = self.skill == self.skill.max(axis=0, keepdims=True)
        self.match = np.where(expert, judge.match_expert, judge.match_other)  # (N, T) mean score
        self.gain = np.array([[p.gain[kind] for kind in rules.TASK_TYPES] for p in providers])
        # (P,) of each provider: USD a token, median of output tokens, seconds
        self.usd_input = np.array([price.input_usd_per_mtok for price in prices]) / 1e6
        self.usd_output = np.array([price.output_usd_per_mtok for price in prices]) / 1e6
        self.length = np.array([p.output_tokens_median for p in providers])
        self.overhead_s = np.array([p.overhead_s for p in providers])
        self.per_token_s: Floats = np.array([p.per_token_s for p in providers])
        # (K,) of each task; tokens of the agent's prompt
        self.task_type = np.array([rules.TASK_TYPES.index(task.task_type) for task in tasks])
        self.complexity = np.array([task.complexity for task in tasks])
        self.priority = np.array([task.priority for task in tasks])
        tokens = np.array([task.tokens for task in tasks])
        self.prompt_tokens = tokens + settings.calls.system_prompt_tokens
        types, arrivals = len(rules.TASK_TYPES), settings.arrivals
        self.of_type = [np.flatnonzero(self.task_type == t) for t in range(types)]  # its tasks
        # (T + 1, T) chances of each type after each, and at the start
        bank = np.tile(np.bincount(self.task_type, minlength=types) / len(tasks), (types + 1, 1))
        skewed = np.full_like(bank, (1.0 - arrivals.skewed_share) / (types - 1))
        skewed[:, rules.TASK_TYPES.index(arrivals.skewed_type)] = arrivals.skewed_share
        bursty = np.full_like(bank, (1.0 - arrivals.bursty_stay) / (types - 1))
        np.fill_diagonal(bursty, arrivals.bursty_stay)
        bursty[types] = 1.0 / types
        self.chances = dict(zip(rules.ARRIVALS, (bank, skewed, bursty, bank), strict=True))


@cache
def team(name_or_path: str | Path = DEFAULT_TEAM) -> Team:
    """Return a simulated team by the name or the path of its constants."""
    return Team(load_yaml_model(find_config("teams", name_or_path), AssignmentSettings))


class Answers(NamedTuple):
    """Answers of agents with the facts of their calls, arrays of the same shape."""

    quality: Floats  # true quality, which no policy sees
    scores: Floats  # (..., 4) of the judge, in the order of CRITERIA
    input_tokens: Ints
    output_tokens: Ints
    latency_s: Floats  # of a provider that has no queue
    cost_usd: Floats


def next_task(
    team: Team, arrivals: rules.Arrivals, keys: Keys, ordinals: Ints, previous: Ints
) -> Ints:
    """Return the tasks that arrive (n,), as places in the bank.

    Runs have `keys` (n,), `ordinals` (n,) count their tasks from 0 on; `previous` (n,) are the
    tasks before them, NO_TASK at the start.
    """
    before = np.where(previous == NO_TASK, len(rules.TASK_TYPES), team.task_type[previous])
    cumulative = team.chances[arrivals].cumsum(axis=1)[before, :-1]
    u = rng.uniform_array(keys, STREAM_TASK_TYPE, ordinals)
    task_types = (u[:, None] >= cumulative).sum(axis=1)
    tasks = np.zeros(len(keys), np.int64)
    u = rng.uniform_array(keys, STREAM_TASK, ordinals)
    for i, of_type in enumerate(team.of_type):
        rows = task_types == i
        tasks[rows] = of_type[(u[rows] * len(of_type)).astype(np.int64)]
    return tasks


def drift(team: Team, keys: Keys, ordinals: Ints, num_tasks: int, agents: Ints) -> Floats:
    """Return (n, T): the change of agents' quality at task `ordinals` of `num_tasks`.

    In every run one agent, from one task on, loses `drift_drop` in the type that it knows best.
    """
    settings, first = team.settings.arrivals, np.zeros_like(ordinals)
    loser = (rng.uniform_array(keys, STREAM_DRIFT, first) * len(rules.AGENTS)).astype(np.int64)
    span = settings.drift_latest - settings.drift_earliest
    begins = settings.drift_earliest + span * rng.uniform_array(keys, STREAM_DRIFT, first, 1)
    change = np.zeros((len(keys), len(rules.TASK_TYPES)))
    lost = np.flatnonzero((agents == loser) & (ordinals >= begins * num_tasks))
    change[lost, team.skill[loser[lost]].argmax(axis=1)] = -settings.drift_drop
    return change


def answer(
    team: Team, keys: Keys, ordinals: Ints, tasks: Ints, actions: Ints, drifts_in: int = 0
) -> Answers:
    """Draw the answers to tasks (n,) of the bank, and the judge's scores of them.

    Runs have `keys` (n,), `ordinals` (n,) are the tasks' places in them, `actions` (n,) agent and
    provider. With arrivals "drifting" `drifts_in` is the number of tasks of a run, else 0.
    """
    variation, judge, calls = team.settings.quality, team.settings.judge, team.settings.calls
    agents, providers = rules.agent_of(actions), rules.provider_of(actions)
    task_types, complexity = team.task_type[tasks], team.complexity[tasks]
    mean = team.skill[agents, task_types] + team.gain[providers, task_types]
    mean -= variation.complexity_slope * (complexity - 0.5)
    if drifts_in:
        change = drift(team, keys, ordinals, drifts_in, agents)
        mean += change[np.arange(len(keys)), task_types]
    quality = mean + variation.task_sd * normals(keys, STREAM_DIFFICULTY, ordinals, 0)
    quality += variation.answer_sd * normals(keys, STREAM_ANSWER, ordinals, actions)
    quality = np.clip(quality, 0, 1)
    scores = np.empty((len(keys), len(rules.CRITERIA)))
    for i in range(len(rules.CRITERIA)):
        place = actions * len(rules.CRITERIA) + i
        scores[:, i] = judge.noise_sd * normals(keys, STREAM_SCORE, ordinals, place)
    scores[:, :-1] += quality[:, None] + judge.bias
    scores[:, -1] += team.match[agents, task_types]
    median = team.length[providers] * (1.0 + calls.complexity_length * (complexity - 0.5))
    prompt, length = team.prompt_tokens[tasks], normals(keys, STREAM_LENGTH, ordinals, actions)
    latency = normals(keys, STREAM_LATENCY, ordinals, actions)
    call = _call(team, providers, prompt, median, length, latency)
    return Answers(quality, np.clip(scores, 0.0, 1.0), *call)


def judge_call(
    team: Team, keys: Keys, ordinals: Ints, output_tokens: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Draw the judge's calls about answers of `output_tokens` (n,), see `_call`."""
    judge, n = team.settings.judge, len(keys)
    most_read = round(JUDGED_CHARS / llm.CHARS_PER_TOKEN)
    read = np.minimum(output_tokens, most_read) + judge.prompt_tokens
    providers = np.full(n, rules.PROVIDERS.index(judge.provider))
    length, latency = (normals(keys, STREAM_JUDGE, ordinals, place) for place in (0, 1))
    return _call(team, providers, read, np.full(n, judge.output_tokens_median), length, latency)


def _call(
    team: Team, providers: Ints, prompt: Ints, median: Floats, length: Floats, latency: Floats
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return prompts, answers of log-normal length, cut, their seconds and USD, (n,) each."""
    calls = team.settings.calls
    wanted = np.rint(median * np.exp(calls.length_sd * length))
    output = np.clip(wanted, 1, calls.max_tokens).astype(np.int64)
    seconds = team.overhead_s[providers] + team.per_token_s[providers] * output
    cost_usd = team.usd_input[providers] * prompt + team.usd_output[providers] * output
    return prompt, output, seconds * np.exp(calls.latency_sd * latency), cost_usd


def normals(keys: Keys, stream: int, a: Ints, b: Ints | int) -> Floats:
    """Return standard normal numbers (n,) that belong to (key, stream, a, b)."""
    out = np.empty(len(keys))
    second = np.full(len(keys), b) if isinstance(b, int) else b
    _write_normals(keys, stream, np.ascontiguousarray(a), np.ascontiguousarray(second), out)
    return out


@jit
def _write_normals(keys: Keys, stream: int, a: Ints, b: Ints, out: Floats) -> None:
    for i in range(out.shape[0]):
        out[i] = normal(keys[i], stream, a[i], b[i])


# The servers of the environment with queues


def agent_pool() -> PoolConfig:
    """Return the pool whose models answer the agents' calls."""
    return load_pool(find_config("teams/pools", POOL))


class AgentServers:
    """The servers of E environments with queues, those of `inframind_gym.simulator.server`.

    Continuous batching, a queue where all slots are taken, and two models on each agent's GPU that
    slow each other.

    Args:
        num_envs: E.
        num_tasks: of an episode; so many can be in flight.

    Attributes:
        slots: (8,) calls that a server runs at once.
        now_s: (E,) virtual time.

    Raises:
        ConfigError: there are too many tasks.
    """

    def __init__(self, num_envs: int, num_tasks: int) -> None:
        config = agent_pool()
        if num_envs * num_tasks > MOST_IN_FLIGHT:
            raise ConfigError(
                f"num_tasks {num_tasks} in {num_envs} environments are too many for load 'queue'; "
                f"{MOST_IN_FLIGHT // num_envs} at most"
            )
        self.slots = np.array([model.server.max_num_seqs for model in config.models])
        self.cluster: Cluster = allocate(cards(config), num_envs, num_tasks)
        self.now_s = np.zeros(num_envs)
        self._ended = np.empty((2, num_envs * num_tasks), np.int64)
        self._times_s = np.empty((2, num_envs * num_tasks))

    def start(self, rows: Ints) -> None:
        """Empty the servers of some environments, at time 0."""
        self.now_s[rows] = 0.0
        _reset(self.cluster, rows)

    def advance(
        self, rows: Ints, actions: Ints, ordinals: Ints, tokens: tuple[Ints, Ints], until_s: Floats
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """Submit a call in each of `rows` and let time run, (k,) each.

        Args:
            rows: environments.
            actions: servers that take the calls.
            ordinals: of the tasks.
            tokens: of prompts and of answers.
            until_s: time up to which the servers run; infinity: until all calls have ended.

        Returns:
            Row, ordinal, latency and wait of the calls that ended, (k,) each, row by row in the
            order in which they ended.
        """
        calls = (rows, actions, ordinals, *tokens, until_s)
        count = _advance(self.cluster, self.now_s, *calls, self._ended, self._times_s)
        (row, ordinal), (latency_s, wait_s) = self._ended[:, :count], self._times_s[:, :count]
        return row.copy(), ordinal.copy(), latency_s.copy(), wait_s.copy()

    def in_flight(self, rows: Ints) -> Ints:
        """Return the calls in each server, running and waiting, (k, 8)."""
        server = self.cluster.server
        return np.asarray(server["running"][rows] + server["waiting"][rows], np.int64)

    def waiting(self, rows: Ints) -> Ints:
        """Return the calls in each server's queue, (k, 8)."""
        return self.cluster.server["waiting"][rows].astype(np.int64)


@jit
def _reset(cluster: Cluster, rows: Ints) -> None:
    for i in range(rows.shape[0]):
        reset_cluster(cluster, rows[i])


@jit
def _advance(
    cluster: Cluster,
    now_s: Floats,
    rows: Ints,
    actions: Ints,
    ordinals: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    until_s: Floats,
    ended: Ints,
    times_s: Floats,
) -> int:
    """Carry out `AgentServers.advance`, write `ended` and `times_s`, (2, most); return how many."""
    count = 0
    for i in range(rows.shape[0]):
        e = rows[i]
        identity = submit(cluster, e, actions[i], now_s[e], 0.0, prompt_tokens[i], output_tokens[i])
        cluster.request[e, identity].query = ordinals[i]
        while True:
            kind, next_s, m = next_event(cluster, e, now_s[e], until_s[i], NEVER_S, NEVER_S)
            if next_s == NEVER_S:
                break
            now_s[e] = next_s
            if kind != STRETCH_ENDS:
                break
            for k in range(finish_stretch(cluster, e, m, next_s)):
                done = int(cluster.done[k])
                request = cluster.request[e, done]
                ended[0, count] = e
                ended[1, count] = request.query
                times_s[0, count] = next_s - request.submit_s
                times_s[1, count] = request.admitted_s - request.submit_s
                count += 1
                release_request(cluster, e, done)
    return count


# The application


class DrawnAnswers(llm.Provider):
    """A provider's answers in one run, as the environment of the same seed draws them.

    Numbers belong to the place in a call's context: `ordinal` of the task, `task` in the bank,
    `action`. Arrivals "drifting" also change an agent, timed by `num_tasks` of the run.
    """

    is_simulated = True

    def __init__(
        self, team: Team, model: str, seed: int, arrivals: rules.Arrivals, num_tasks: int
    ) -> None:
        self._team, self.model, self._key = team, model, key_of(seed)
        self._drifts_in = num_tasks if arrivals == "drifting" else 0

    async def complete(self, request: llm.LLMRequest) -> llm.LLMResponse:
        """Return the completion of a request, cut at the limit of its answer."""
        team, key, place = self._team, self._key, request.context
        ordinal, task, action = (np.array([place[k]]) for k in ("ordinal", "task", "action"))
        drawn = answer(team, key, ordinal, task, action, self._drifts_in)
        if place["call"] == "agent":
            prompt, length, latency_s = drawn.input_tokens, drawn.output_tokens, drawn.latency_s
            description = team.settings.tasks[place["task"]].description
            text = (
                f"{MARK} The {rules.AGENTS[rules.agent_of(action[0])]}'s answer to: {description}"
            )
        else:
            prompt, length, latency_s, _ = judge_call(team, key, ordinal, drawn.output_tokens)
            scores = dict(zip(rules.CRITERIA, drawn.scores[0].tolist(), strict=True))
            text = json.dumps({**scores, "reasoning": MARK})
        output = min(int(length[0]), request.max_tokens)
        reason = "stop" if output == length[0] else "length"
        seconds = float(latency_s[0]) * (output / int(length[0]))
        return llm.LLMResponse(text, int(prompt[0]), output, reason, seconds)
