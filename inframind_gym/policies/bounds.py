"""Bounds of the placements and the teams: policies that know what no policy may.

Those of routing are in `inframind_gym.evaluation.bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.assignment import (
    AssignmentContext,
    AssignmentSpec,
    Completed,
    waiting_penalty,
)
from inframind_gym.envs.placement import PlacementContext, PlacementSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import Floats, Ints
from inframind_gym.policies.placement import BasePlacementPolicy
from inframind_gym.policies.teams import (
    BaseAssignmentPolicy,
    BaseTokenBudgetPolicy,
    penalties,
    request,
)
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.placement.config import GpuGroup, build_params
from inframind_gym.simulator.placement.state import EVERYWHERE, ClusterParams
from inframind_gym.teams.assignment import rules, simulate
from inframind_gym.teams.assignment.rules import Arrivals
from inframind_gym.teams.assignment.simulate import Team
from inframind_gym.teams.token_budget import optimum as token_budget
from inframind_gym.teams.token_budget.rules import CUT, STOP, TeamState
from inframind_gym.teams.token_budget.settings import SIZES

_WIDEST = 8  # GPUs of the widest instance: each model's share is a multiple of it


class EverywhereSimulation(PlacementSimulation):
    """The cluster of the bound, with the jobs of the real one."""

    def _build_world(self) -> ClusterParams:
        """Return the constants of the real cluster, its GPUs multiplied."""
        real = super()._build_world()
        share = -(-self.cluster_config.num_gpus // _WIDEST) * _WIDEST
        memory = max(card.active_mem_MB for card in self.cards)
        many = GpuGroup(count=share * len(self.cards), vram_total_MB=memory, alpha=1.0)
        cluster = self.cluster_config.model_copy(update={"gpus": (many,)})
        world = build_params(self.config, cluster, self.cards, self.demand, self.arrivals)
        settings = real.settings.copy()  # rates and norms are those of the real cluster
        settings["initial"] = EVERYWHERE
        settings["foreign_mb"] = 0.0
        return world._replace(settings=settings)


class EverywherePlacement(BasePlacementPolicy):
    """Every model awake on all GPUs, without switching.

    The same jobs meet a cluster in which every model has as many GPUs for itself as the real
    cluster has in all, awake from the beginning. Every call finds at its next tick more free
    servers of its model than any placement could give it, so it waits less and its batch slows it
    less. That is optimistic, and no proof for each single job: the router sends to the server of
    least drain latency, a rule and not an optimum. The proven bound is weaker: no job ends before
    its `ideal_s`, the longest line of its calls, each alone.
    """

    name = "everywhere"
    bound: ClassVar = True
    simulation: ClassVar = EverywhereSimulation

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Leave every GPU alone."""
        return np.zeros(self.spec.num_gpus, np.int64)


DRAWS: Final = 20_000  # of each expected reward
STEADY: Final = 1e-5  # reward a task: a step more that changes the values by no more is the last
FIRST_SERVICE_S: Final = 2.0  # assumed until a server's first call has ended
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
    counts = rules.window_counts(windows)
    agents = [rules.load_penalty(counts, np.full(len(counts), agent)) for agent in range(AGENTS)]
    return np.asarray(np.round(np.stack(agents, axis=1), 12), np.float64)


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


class MyopicAssignment(BaseAssignmentPolicy):
    """The highest expected reward of this task, whatever it does to the next ones.

    With queues the wait is estimated: the calls ahead of the task times the mean time of service
    seen so far, over the server's slots.
    """

    name = "myopic"
    bound = True  # not ranked: it knows the skills

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Look up the expected rewards."""
        super().reset(spec, seeds)
        self._expected = expected_rewards(spec.config.team)
        self._served = np.ones((len(seeds), rules.NUM_ACTIONS))
        self._service_s = np.full((len(seeds), rules.NUM_ACTIONS), FIRST_SERVICE_S)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        levels = np.round(penalties(self.spec, context), 12)
        level = np.searchsorted(self._expected.levels, levels)
        actions = np.arange(rules.NUM_ACTIONS)
        expected = self._expected.reward[context.task[:, None], actions, level]
        if self.spec.config.queues:
            ahead = np.maximum(context.in_flight - self.spec.slots + 1, 0)
            service_s = self._service_s[rows] / self._served[rows]
            expected = expected - waiting_penalty(ahead * service_s / self.spec.slots)
        return np.asarray(expected.argmax(axis=1))

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Note times of service."""
        at = completed.row, completed.action
        np.add.at(self._served, at, 1.0)
        np.add.at(self._service_s, at, completed.latency_s - completed.wait_s)


class OptimalAssignment(BaseAssignmentPolicy):
    """The actions of the exact optimum (`solve`)."""

    name = "optimum"
    bound = True

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Solve the run, or look its solution up.

        Raises:
            ConfigError: the run has queues, drifting agents or no end.
        """
        super().reset(spec, seeds)
        config = spec.config
        if config.queues or config.arrivals == "drifting" or config.episode == "request":
            raise ConfigError(
                "policy 'optimum' is exact where the state is a window and a task: load 'window', "
                "episode 'run', and arrivals other than 'drifting'. Leave it out, or play 'myopic'"
            )
        self._optimum = solve(config.team, config.arrivals, config.num_tasks)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        windows = np.where(context.window >= 0, context.window, 0)  # empty places are the oldest
        number = windows @ AGENTS ** np.arange(rules.WINDOW - 1, -1, -1)
        first, full = self._optimum.first, self._optimum.full
        actions = np.empty(len(rows), np.int64)
        for ordinal in np.unique(context.ordinal).tolist():
            to_go = min(self.spec.config.num_tasks - ordinal, len(full))
            table = first[ordinal] if ordinal < rules.WINDOW else full[to_go - 1]
            same = context.ordinal == ordinal
            actions[same] = table[number[same], context.task[same]]
        return actions


class OptimalBudget(BaseTokenBudgetPolicy):
    """The best action by dynamic programming (`inframind_gym.teams.token_budget.optimum`)."""

    name = "optimum"
    bound = True
    sees_truth = True

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the optimal calls, after a reallocation where an allocation is in their way.

        Raises:
            ConfigError: the run is of an application: there is no latent state.
        """
        truth = context.truth
        if truth is None:
            raise ConfigError(
                "policy 'optimum' knows the latent state of simulated tasks and can play those "
                "alone: InfraMind-TokenBudget-v0"
            )
        spec, best = self.spec, np.full(len(rows), STOP)
        for complexity in np.unique(truth.complexity).tolist():
            same = np.flatnonzero(truth.complexity == complexity)
            task = spec.settings, complexity, spec.max_budget, spec.price
            solved = token_budget.solve(*task, spec.self_eval)
            at = context.remaining[same], truth.state[same]
            best[same] = solved.look_up(solved.action, *at)
        action = np.full(len(rows), STOP)
        for call in range(CUT):
            wanted = request(context, call // len(SIZES), call % len(SIZES))
            action = np.where(best == call, wanted, action)
        return action
