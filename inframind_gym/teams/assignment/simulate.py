"""The simulated team: tasks that arrive, answers of agents, scores of the judge.

Every number is a function of the run's key and its place in the run
(`inframind_gym.simulator.rng`): task number i of two runs with the same key is the same, and so is
the answer of an agent on a provider to it, whatever was decided before. The environment draws for
many teams at once, the simulated provider of the application for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator import rng
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.rng import normal
from inframind_gym.teams.assignment.names import ARRIVALS, Arrivals
from inframind_gym.teams.assignment.rules import (
    AGENTS,
    CRITERIA,
    PROVIDERS,
    TASK_TYPES,
    agent_of,
    provider_of,
)
from inframind_gym.teams.assignment.settings import DEFAULT_TEAM, AssignmentSettings, load_team
from inframind_gym.teams.llm.prices import shipped_prices

NO_TASK: Final = -1
_CHARS_PER_TOKEN: Final = 4.0
JUDGED_CHARS: Final = 2000  # of an answer that the judge reads

STREAM_TASK_TYPE: Final = 201
STREAM_TASK: Final = 202
STREAM_DIFFICULTY: Final = 203
STREAM_ANSWER: Final = 204
STREAM_LENGTH: Final = 205
STREAM_LATENCY: Final = 206
STREAM_SCORE: Final = 207
STREAM_JUDGE: Final = 208
STREAM_DRIFT: Final = 209

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]


class Team(NamedTuple):
    """The constants as arrays: N agents, P providers, T types, K tasks of the bank."""

    settings: AssignmentSettings
    skill: Floats  # (N, T)
    match: Floats  # (N, T) mean score of agent_match
    gain: Floats  # (P, T)
    usd_input: Floats  # (P,) per token
    usd_output: Floats  # (P,) per token
    length: Floats  # (P,) median of output tokens
    overhead_s: Floats  # (P,)
    per_token_s: Floats  # (P,)
    task_type: Ints  # (K,)
    complexity: Floats  # (K,)
    priority: Floats  # (K,)
    prompt_tokens: Ints  # (K,) of the agent's call
    of_type: tuple[Ints, ...]  # for each type its tasks
    bank: Ints  # (T, most) the same as a table; NO_TASK where a type has fewer
    sizes: Ints  # (T,) tasks of each type
    chances: Mapping[Arrivals, Floats]  # (T + 1, T) of each type after each, and at the start


class Answers(NamedTuple):
    """Answers of agents, arrays of the same shape."""

    quality: Floats  # the true one, which nobody sees
    scores: Floats  # (..., 4) of the judge, in the order of CRITERIA
    input_tokens: Ints
    output_tokens: Ints
    latency_s: Floats  # of a provider that has no queue
    cost_usd: Floats


class JudgeCalls(NamedTuple):
    """Calls of the judge, arrays of the same shape."""

    input_tokens: Ints
    output_tokens: Ints
    latency_s: Floats
    cost_usd: Floats


@cache
def team(name_or_path: str | Path = DEFAULT_TEAM) -> Team:
    """Return a simulated team by the name or the path of its constants.

    Raises:
        ConfigError: There is no such file, or it is wrong, or a model has no price.
    """
    settings = load_team(name_or_path)
    providers = [getattr(settings.providers, name) for name in PROVIDERS]
    prices = [shipped_prices().of(provider.model) for provider in providers]
    skill = np.array([getattr(settings.skill, agent).row() for agent in AGENTS])
    expert = skill == skill.max(axis=0, keepdims=True)
    task_type = np.array([TASK_TYPES.index(task.task_type) for task in settings.tasks])
    share = np.bincount(task_type, minlength=len(TASK_TYPES)) / len(task_type)
    of_type = tuple(np.flatnonzero(task_type == t) for t in range(len(TASK_TYPES)))
    sizes = np.array([len(tasks) for tasks in of_type])
    bank = np.full((len(sizes), sizes.max()), NO_TASK)
    for row, tasks in zip(bank, of_type, strict=True):
        row[: len(tasks)] = tasks
    system = settings.calls.system_prompt_tokens
    return Team(
        settings=settings,
        skill=skill,
        match=np.where(expert, settings.judge.match_expert, settings.judge.match_other),
        gain=np.array([provider.gain.row() for provider in providers]),
        usd_input=np.array([price.input_usd_per_mtok for price in prices]) / 1e6,
        usd_output=np.array([price.output_usd_per_mtok for price in prices]) / 1e6,
        length=np.array([p.output_tokens_median for p in providers]),
        overhead_s=np.array([p.overhead_s for p in providers]),
        per_token_s=np.array([p.per_token_s for p in providers]),
        task_type=task_type,
        complexity=np.array([task.complexity for task in settings.tasks]),
        priority=np.array([task.priority for task in settings.tasks]),
        prompt_tokens=np.array([task.tokens + system for task in settings.tasks]),
        of_type=of_type,
        bank=bank,
        sizes=sizes,
        chances={arrivals: _chances(settings, share, arrivals) for arrivals in ARRIVALS},
    )


def key_of(seed: int) -> Keys:
    """Return the key (1,) of a run with this seed, as the environment draws it at its reset."""
    return draw_key(np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))))


def draw_key(generator: np.random.Generator) -> Keys:
    """Draw the key (1,) of a run."""
    return generator.integers(0, 2**64, 1, np.uint64)


def _chances(settings: AssignmentSettings, share: Floats, arrivals: Arrivals) -> Floats:
    """Return (T + 1, T): chance of each type after each type, and (last row) at the start.

    Args:
        settings: Constants.
        share: (T,) of the bank's tasks.
        arrivals: order in which tasks arrive.
    """
    types, of = len(TASK_TYPES), settings.arrivals
    if arrivals == "skewed":
        shares = np.full(types, (1.0 - of.skewed_share) / (types - 1))
        shares[TASK_TYPES.index(of.skewed_type)] = of.skewed_share
        return np.tile(shares, (types + 1, 1))
    if arrivals == "bursty":
        table = np.full((types + 1, types), (1.0 - of.bursty_stay) / (types - 1))
        np.fill_diagonal(table, of.bursty_stay)
        table[types] = 1.0 / types
        return table
    return np.tile(share, (types + 1, 1))


def next_task(
    team: Team, arrivals: Arrivals, keys: Keys, ordinals: Ints, previous: Ints
) -> NDArray[np.int64]:
    """Return the tasks that arrive, as places in the bank.

    Args:
        team: Constants.
        arrivals: Order in which tasks arrive.
        keys: (n,) of the runs.
        ordinals: (n,) of the tasks, from 0 on.
        previous: (n,) the tasks before them; NO_TASK at the start.

    Returns:
        (n,).
    """
    before = np.where(previous == NO_TASK, len(TASK_TYPES), team.task_type[previous])
    cumulative = team.chances[arrivals].cumsum(axis=1)[before, :-1]
    u = rng.uniform_array(keys, STREAM_TASK_TYPE, ordinals)
    task_types = (u[:, None] >= cumulative).sum(axis=1)
    place = rng.uniform_array(keys, STREAM_TASK, ordinals) * team.sizes[task_types]
    return np.asarray(team.bank[task_types, place.astype(np.int64)])


def drift(team: Team, keys: Keys, ordinals: Ints, num_tasks: int, agents: Ints) -> Floats:
    """Return (n, T): what agents' quality has changed by at task `ordinals` of `num_tasks`.

    In every run one agent, from one task on, loses `drift_drop` in the type that it knows best.
    """
    settings, first = team.settings.arrivals, np.zeros_like(ordinals)
    loser = (rng.uniform_array(keys, STREAM_DRIFT, first) * len(AGENTS)).astype(np.int64)
    span = settings.drift_latest - settings.drift_earliest
    u = rng.uniform_array(keys, STREAM_DRIFT, first, 1)
    begins = (settings.drift_earliest + span * u) * num_tasks
    change = np.zeros((len(keys), len(TASK_TYPES)))
    lost = np.flatnonzero((agents == loser) & (ordinals >= begins))
    change[lost, team.skill[loser[lost]].argmax(axis=1)] = -settings.drift_drop
    return change


def answer(
    team: Team, keys: Keys, ordinals: Ints, tasks: Ints, actions: Ints, change: Floats | None = None
) -> Answers:
    """Draw the answers to tasks, and the judge's scores of them.

    Args:
        team: Constants.
        keys: (n,) of the runs.
        ordinals: (n,) of the tasks in their runs.
        tasks: (n,) places in the bank.
        actions: (n,) agent and provider (`rules.action_index`).
        change: (n, T) added to the agents' quality, see `drift`.
    """
    of, judge, calls = team.settings.quality, team.settings.judge, team.settings.calls
    agents, providers = agent_of(actions), provider_of(actions)
    task_types, complexity = team.task_type[tasks], team.complexity[tasks]
    mean = team.skill[agents, task_types] + team.gain[providers, task_types]
    mean -= of.complexity_slope * (complexity - 0.5)
    if change is not None:
        mean += change[np.arange(len(keys)), task_types]
    quality = mean + of.task_sd * normals(keys, STREAM_DIFFICULTY, ordinals, 0)
    quality = np.clip(
        quality + of.answer_sd * normals(keys, STREAM_ANSWER, ordinals, actions), 0, 1
    )
    scores = np.empty((len(keys), len(CRITERIA)))
    for i in range(len(CRITERIA)):
        place = actions * len(CRITERIA) + i
        scores[:, i] = judge.noise_sd * normals(keys, STREAM_SCORE, ordinals, place)
    scores[:, :-1] += quality[:, None] + judge.bias
    scores[:, -1] += team.match[agents, task_types]
    output = _lengths(
        team.length[providers] * (1.0 + calls.complexity_length * (complexity - 0.5)),
        calls.length_sd * normals(keys, STREAM_LENGTH, ordinals, actions),
        calls.max_tokens,
    )
    noise = calls.latency_sd * normals(keys, STREAM_LATENCY, ordinals, actions)
    seconds = team.overhead_s[providers] + team.per_token_s[providers] * output
    return Answers(
        quality=quality,
        scores=np.clip(scores, 0.0, 1.0),
        input_tokens=team.prompt_tokens[tasks],
        output_tokens=output,
        latency_s=seconds * np.exp(noise),
        cost_usd=_usd(team, providers, team.prompt_tokens[tasks], output),
    )


def judge_call(team: Team, keys: Keys, ordinals: Ints, output_tokens: Ints) -> JudgeCalls:
    """Draw the judge's calls about answers of `output_tokens` (n,)."""
    judge, calls = team.settings.judge, team.settings.calls
    providers = np.full(len(keys), PROVIDERS.index(judge.provider))
    read = np.minimum(output_tokens, round(JUDGED_CHARS / _CHARS_PER_TOKEN))
    prompt = read + judge.prompt_tokens
    output = _lengths(
        np.full(len(keys), judge.output_tokens_median),
        calls.length_sd * normals(keys, STREAM_JUDGE, ordinals, 0),
        calls.max_tokens,
    )
    noise = calls.latency_sd * normals(keys, STREAM_JUDGE, ordinals, 1)
    seconds = team.overhead_s[providers] + team.per_token_s[providers] * output
    cost_usd = _usd(team, providers, prompt, output)
    return JudgeCalls(prompt, output, seconds * np.exp(noise), cost_usd)


def _lengths(median: Floats, log_noise: Floats, max_tokens: int) -> Ints:
    """Return whole numbers of tokens, log-normal around a median and cut."""
    return np.clip(np.rint(median * np.exp(log_noise)), 1, max_tokens).astype(np.int64)


def _usd(team: Team, providers: Ints, input_tokens: Ints, output_tokens: Ints) -> Floats:
    price_in, price_out = team.usd_input[providers], team.usd_output[providers]
    return np.asarray(price_in * input_tokens + price_out * output_tokens)


def normals(keys: Keys, stream: int, a: Ints, b: Ints | int) -> Floats:
    """Return standard normal numbers (n,) that belong to (key, stream, a, b)."""
    out = np.empty(len(keys))
    second = np.full(len(keys), b) if isinstance(b, int) else b
    _write_normals(keys, stream, np.ascontiguousarray(a), np.ascontiguousarray(second), out)
    return out


@make_jit(Path(rng.__file__), Path(__file__))
def _write_normals(keys: Keys, stream: int, a: Ints, b: Ints, out: Floats) -> None:
    for i in range(out.shape[0]):
        out[i] = normal(keys[i], stream, a[i], b[i])
