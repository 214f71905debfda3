"""The exact optimum of the simulated team without queues, by dynamic programming.

It knows the true skills of the agents, which no policy does. Rewards of a task depend on earlier
ones through the window of assignments alone; with queues there is no optimum here.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.rules import Arrivals
from inframind_gym.teams.assignment.simulate import Team
from inframind_gym.teams.state import Floats

DRAWS: Final = 20_000  # of each expected reward
STEADY: Final = 1e-5  # reward a task: a step more that changes the values by no more is the last
_KEYS_SEED: Final = 20_260_101  # a constant; the keys of no episode
AGENTS: Final = len(rules.AGENTS)


class ExpectedRewards(NamedTuple):
    """Expected rewards of K tasks by action and load penalty."""

    levels: Floats  # (L,) penalties that windows can give, in order
    reward: Floats  # (K, 8, L) mean of max(0, raw - penalty)


class Optimum(NamedTuple):
    """The optimum of a run: best actions by window and task."""

    value: float  # expected return of a run from its start
    first: tuple[NDArray[np.int8], ...]  # (windows, K) of each task while the window fills
    # (65,536, K) by the tasks to go, from 1 on; the last one holds for more tasks to go, too
    full: tuple[NDArray[np.int8], ...]


@cache
def expected_rewards(team_name: str) -> ExpectedRewards:
    """Return the expected rewards of a team's tasks; a second of computing, kept."""
    team = simulate.team(team_name)
    keys = np.random.default_rng(_KEYS_SEED).integers(0, 2**64, DRAWS, np.uint64)
    levels = np.unique(np.concatenate([_penalties(size).ravel() for size in range(9)]))
    reward = np.empty((len(team.task_type), rules.NUM_ACTIONS, len(levels)))
    first = np.zeros(DRAWS, np.int64)
    for task, action in np.ndindex(reward.shape[:2]):
        drawn = simulate.answer(team, keys, first, first + task, first + action)
        raw = rules.raw_reward(drawn.scores, drawn.cost_usd, drawn.latency_s)
        for i, level in enumerate(levels.tolist()):
            reward[task, action, i] = rules.adjusted_reward(raw, level).mean()
    return ExpectedRewards(levels, reward)


@cache
def solve(team_name: str, arrivals: Arrivals, num_tasks: int) -> Optimum:
    """Return the optimum of runs of `num_tasks` tasks by dynamic programming; kept.

    Without queues the state at a decision is the window of the last eight assignments and the task:
    at most 4^8 = 65,536 windows times the tasks of the bank. Rewards depend on the window through
    the load penalty alone, so that of the two providers the better one is known beforehand.
    Expected rewards are means over simulated answers; their standard error is below 0.001. The
    state of "drifting" arrivals holds more: there is no optimum for them.
    """
    team, expected = simulate.team(team_name), expected_rewards(team_name)
    by_agent = expected.reward.reshape(len(team.task_type), AGENTS, len(rules.PROVIDERS), -1)
    provider, reward = by_agent.argmax(axis=2), np.ascontiguousarray(by_agent.max(axis=2))
    after, start = next_task_chances(team, arrivals)
    ahead = np.zeros((AGENTS**rules.WINDOW, len(rules.TASK_TYPES)))
    first: list[NDArray[np.int8]] = []
    full: list[NDArray[np.int8]] = []
    value, steady = np.zeros((1, len(start))), False
    for ordinal in range(num_tasks - 1, -1, -1):
        size, later = min(ordinal, rules.WINDOW), value
        level = np.searchsorted(expected.levels, _penalties(size))
        value = np.empty((AGENTS**size, len(start)))
        action = np.empty(value.shape, np.int8)
        _back_up(reward, provider, level, team.task_type, ahead, value, action)
        ahead = value @ after.T
        if size < rules.WINDOW:
            first.insert(0, action)
        elif not steady:
            full.append(action)
            steady = value.shape == later.shape and float(np.ptp(value - later)) < STEADY
    return Optimum(float(value[0] @ start), tuple(first), tuple(full))


def next_task_chances(team: Team, arrivals: Arrivals) -> tuple[Floats, Floats]:
    """Return the chance of each task after each type, (T, K), and at the start, (K,)."""
    sizes = np.bincount(team.task_type, minlength=len(rules.TASK_TYPES))
    chances = team.chances[arrivals][:, team.task_type] / sizes[team.task_type]
    return chances[:-1], chances[-1]


@cache
def _penalties(size: int) -> Floats:
    """Return the load penalty of each agent after each window of `size` agents, (4^size, 4)."""
    numbers = np.arange(AGENTS**size)
    windows = numbers[:, None] // AGENTS ** np.arange(size) % AGENTS
    return np.round(rules.load_penalties(rules.window_counts(windows)), 12)


@jit
def _back_up(
    reward: Floats,  # (K, 4, L) with the better provider
    provider: Any,  # (K, 4, L) the better one
    level: Any,  # (windows, 4) place of each agent's penalty
    task_type: Any,  # (K,)
    ahead: Floats,  # (next windows, T) expected value after a task of a type
    value: Floats,  # (windows, K), written
    action: Any,  # (windows, K), written
) -> None:
    """Write the value and the best action of every window and task."""
    windows, agents = level.shape
    most = ahead.shape[0] // agents  # windows without their oldest agent, once they are full
    for w in range(windows):
        for k in range(task_type.shape[0]):
            best = -1.0
            for agent in range(agents):
                total = reward[k, agent, level[w, agent]]
                total += ahead[w % most * agents + agent, task_type[k]]
                if total > best:
                    best = total
                    action[w, k] = agent * 2 + provider[k, agent, level[w, agent]]
            value[w, k] = best
