"""The exact optimum by dynamic programming.

Without queues the state at a decision is the window of the last eight assignments and the task: at
most 4^8 = 65,536 windows times the tasks of the bank. Rewards depend on the window through the
load penalty alone, so that of the two providers the better one is known beforehand. Backward
induction over the tasks of a run gives the highest expected return and the actions that earn it.

Expected rewards are means over simulated answers; their standard error is below 0.001.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import make_jit
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.simulate import Team

DRAWS: Final = 20_000  # of each expected reward
STEADY: Final = 1e-5  # reward a task: a step more that changes the values by no more is the last
_KEYS_SEED: Final = 20_260_101  # a constant; the keys of no episode
AGENTS: Final = len(rules.AGENTS)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ExpectedRewards(NamedTuple):
    """Expected rewards of K tasks by action and load penalty.

    Attributes:
        levels: (L,) penalties that windows can give, in order.
        reward: (K, 8, L) mean of max(0, raw - penalty).
    """

    levels: Floats
    reward: Floats


class Optimum(NamedTuple):
    """The optimum of a run.

    Attributes:
        value: expected return of a run from its start.
        first: for each of the first tasks, while the window fills, the best actions (windows, K).
        full: with a full window, for each number of tasks to go, from 1 on, the best actions
            (65,536, K); the last of them holds for more tasks to go, too.
    """

    value: float
    first: tuple[NDArray[np.int8], ...]
    full: tuple[NDArray[np.int8], ...]

    def look_up(self, windows: Ints, tasks: Ints, ordinals: Ints, num_tasks: int) -> Ints:
        """Return the best actions, (n,).

        Args:
            windows: (n, 8) agents, oldest first, -1 where empty.
            tasks: (n,) places in the bank.
            ordinals: (n,) of the tasks in their runs.
            num_tasks: of a run.
        """
        filled = np.where(windows >= 0, windows, 0)  # empty places are the oldest
        number = filled @ AGENTS ** np.arange(rules.WINDOW - 1, -1, -1)
        found = np.empty(len(tasks), np.int64)
        for ordinal in np.unique(ordinals).tolist():
            if ordinal < rules.WINDOW:
                table = self.first[ordinal]
            else:
                table = self.full[min(num_tasks - ordinal, len(self.full)) - 1]
            these = ordinals == ordinal
            found[these] = table[number[these], tasks[these]]
        return found


@cache
def expected_rewards(team_name: str) -> ExpectedRewards:
    """Return the expected rewards of a team's tasks; a second of computing, kept."""
    team = simulate.team(team_name)
    tasks = len(team.task_type)
    keys = np.random.default_rng(_KEYS_SEED).integers(0, 2**64, DRAWS, np.uint64)
    levels = np.unique(np.concatenate([_penalties(size).ravel() for size in range(9)]))
    reward = np.empty((tasks, rules.NUM_ACTIONS, len(levels)))
    first = np.zeros(DRAWS, np.int64)
    for task in range(tasks):
        for action in range(rules.NUM_ACTIONS):
            drawn = simulate.answer(team, keys, first, first + task, first + action)
            raw = rules.raw_reward(drawn.scores, drawn.cost_usd, drawn.latency_s)
            for i, level in enumerate(levels.tolist()):
                reward[task, action, i] = rules.adjusted_reward(raw, level).mean()
    return ExpectedRewards(levels, reward)


@cache
def solve(team_name: str, arrivals: Arrivals, num_tasks: int) -> Optimum:
    """Return the optimum of runs of `num_tasks` tasks; a second or two, kept.

    Args:
        team_name: name or path of the team's constants.
        arrivals: order of arrival; not "drifting", whose state holds more.
        num_tasks: tasks of a run.
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
    digits = [numbers // AGENTS**place % AGENTS for place in range(size)]
    windows = np.stack(digits, axis=1) if digits else np.zeros((1, 0), np.int64)
    counts = rules.window_counts(windows)
    agents = [rules.load_penalty(counts, np.full(len(counts), agent)) for agent in range(AGENTS)]
    return np.asarray(np.round(np.stack(agents, axis=1), 12), np.float64)


@make_jit(Path(__file__))
def _back_up(
    reward: Floats,
    provider: Any,
    level: Any,
    task_type: Any,
    ahead: Floats,
    value: Floats,
    action: Any,
) -> None:
    """Write the value and the best action of every window and task.

    Args:
        reward: (K, 4, L) with the better provider.
        provider: (K, 4, L) the better one.
        level: (windows, 4) place of each agent's penalty.
        task_type: (K,)
        ahead: (next windows, T) expected value after a task of a type.
        value: (windows, K), written.
        action: (windows, K), written.
    """
    windows, agents = level.shape
    most = ahead.shape[0] // agents  # windows without their oldest agent, once they are full
    for w in range(windows):
        for k in range(task_type.shape[0]):
            best = -1.0
            for agent in range(agents):
                found = reward[k, agent, level[w, agent]]
                found += ahead[w % most * agents + agent, task_type[k]]
                if found > best:
                    best = found
                    action[w, k] = agent * 2 + provider[k, agent, level[w, agent]]
            value[w, k] = best
