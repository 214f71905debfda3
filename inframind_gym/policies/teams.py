"""Policies of the teams that are rules, and bounds: assignment, token budget, coordination.

A policy may set `sees_truth` if it is a bound that knows the latent state; one of a token budget
sets `strategy`, the mode of the initial allocations that it wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np

from inframind_gym.envs.assignment import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.core import Floats, Ints
from inframind_gym.envs.token_budget import TokenBudgetSpec
from inframind_gym.errors import ConfigError, require_within
from inframind_gym.policies.base import ContextPolicy, place_in
from inframind_gym.teams.assignment import optimum as assignment_optimum
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    ROUTE,
    SYNTHESIZE,
    TRIM,
    VALIDATE,
    CoordinationState,
)
from inframind_gym.teams.coordination.settings import CoordinationSettings
from inframind_gym.teams.token_budget import optimum as token_budget_optimum
from inframind_gym.teams.token_budget.rules import (
    CRITIC,
    CUT,
    EXECUTOR,
    PLANNER,
    REALLOCATE,
    STOP,
    TeamState,
)
from inframind_gym.teams.token_budget.settings import SIZES


class BaseAssignmentPolicy(ContextPolicy[AssignmentSpec, AssignmentContext]):
    """A policy that decides from the contexts alone, by `choose`, and learns in `observe`."""

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Learn from tasks (k,) that ended; `rows` (k,) are theirs, of those given to `reset`."""

    def best(self, values: Floats, rows: Ints, ordinals: Ints, use: int = 99) -> Ints:
        """Return the places of the largest of `values` (n, k), drawn where several are, (n,)."""
        return place_in(values >= values.max(axis=1, keepdims=True), self.draw(rows, ordinals, use))


def penalties(spec: AssignmentSpec, context: AssignmentContext) -> Floats:
    """Return the load penalty of each action, (n, 8); without a window's penalty zeros."""
    if spec.config.queues:
        return np.zeros((len(context.task), rules.NUM_ACTIONS))
    return rules.load_penalties(context.counts)[:, rules.agent_of(np.arange(rules.NUM_ACTIONS))]


def one_a_row(completed: Completed) -> Iterator[Completed]:
    """Split tasks so that no part has two of one row, in the order in which they ended."""
    left = np.ones(len(completed.row), np.bool_)
    while left.any():
        places = np.flatnonzero(left)
        first = places[np.unique(completed.row[places], return_index=True)[1]]
        chosen = np.zeros_like(left)
        chosen[first] = True
        left &= ~chosen
        yield completed.of(chosen)


FIRST_SERVICE_S: Final = 2.0  # assumed until a server's first call has ended
DEFAULT_PROVIDER: Final = rules.PROVIDERS.index("openai")
# The agent whose role has the name of a task's type, by type.
EXPERT: Final = np.array(
    [rules.AGENTS.index(a) for a in ("analyst", "coder", "researcher", "validator")]
)


class RandomAssignment(BaseAssignmentPolicy):
    """Any of the eight actions."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return draws, (n,)."""
        return np.asarray(self.draw(rows, context.ordinal) * rules.NUM_ACTIONS, np.int64)


class RoundRobinAssignment(BaseAssignmentPolicy):
    """The agents in turn, on the default provider."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the turns."""
        return np.asarray(rules.action_index(context.ordinal % len(rules.AGENTS), DEFAULT_PROVIDER))


class LeastLoadedAssignment(BaseAssignmentPolicy):
    """The agent with least to do on the default provider; one of them is drawn if there are more.

    With queues that is the agent with the fewest tasks in flight, without queues the one with the
    smallest share of the window.
    """

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        load = context.counts
        if self.spec.config.queues:
            shape = (len(rows), len(rules.AGENTS), len(rules.PROVIDERS))
            load = context.in_flight.reshape(shape).sum(axis=2)
        agent = self.best(-load.astype(np.float64), rows, context.ordinal)
        return np.asarray(rules.action_index(agent, DEFAULT_PROVIDER))


class LeastBusyAssignment(BaseAssignmentPolicy):
    """The deployment with fewest requests in flight, the first of equals.

    That is the rule of LiteLLM's router strategy "least-busy": it goes through the deployments and
    keeps one that has strictly fewer. Where tasks come one at a time, nothing is in flight when one
    arrives, and all of them go to the first deployment.
    """

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(context.in_flight.argmin(axis=1))


class StaticExpertAssignment(BaseAssignmentPolicy):
    """The agent whose role has the name of the task's type, on the default provider."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(rules.action_index(EXPERT[context.task_type], DEFAULT_PROVIDER))


class MyopicAssignment(BaseAssignmentPolicy):
    """The highest expected reward of this task, whatever it does to the next ones.

    With queues the wait is estimated: the calls ahead of the task times the mean time of service
    seen so far, over the server's slots.
    """

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Look up the expected rewards."""
        super().reset(spec, seeds)
        self._expected = assignment_optimum.expected_rewards(spec.config.team)
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
            expected = expected - rules.waiting_penalty(ahead * service_s / self.spec.slots)
        return np.asarray(expected.argmax(axis=1))

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Note times of service."""
        at = completed.row, completed.action
        np.add.at(self._served, at, 1.0)
        np.add.at(self._service_s, at, completed.latency_s - completed.wait_s)


class OptimalAssignment(BaseAssignmentPolicy):
    """The actions of the exact optimum (`inframind_gym.teams.assignment.optimum`)."""

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
        self._optimum = assignment_optimum.solve(config.team, config.arrivals, config.num_tasks)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        windows = np.where(context.window >= 0, context.window, 0)  # empty places are the oldest
        number = windows @ len(rules.AGENTS) ** np.arange(rules.WINDOW - 1, -1, -1)
        first, full = self._optimum.first, self._optimum.full
        actions = np.empty(len(rows), np.int64)
        for ordinal in np.unique(context.ordinal).tolist():
            to_go = min(self.spec.config.num_tasks - ordinal, len(full))
            table = first[ordinal] if ordinal < rules.WINDOW else full[to_go - 1]
            same = context.ordinal == ordinal
            actions[same] = table[number[same], context.task[same]]
        return actions


S, M, L = range(len(SIZES))


class BaseTokenBudgetPolicy(ContextPolicy[TokenBudgetSpec, TeamState]):
    """A policy without memory: `choose` is a function of the contexts."""

    strategy: ClassVar[str] = "adaptive"


def request(context: TeamState, agent: int, size: int) -> Ints:
    """Return (n,) calls of an agent, after a reallocation where its allocation is short.

    Where neither allocation nor budget pays, the action is STOP.
    """
    limit, most = context.limits[:, agent, size], context.max_tokens[agent, size]
    room = context.remaining - context.estimates[:, agent]
    short = limit < np.minimum(most, room)
    own = context.left[:, agent] + context.free - context.estimates[:, agent]
    # Where its own tokens reach `room` the ceiling, not the allocation, limits the call.
    helps = short & context.mask[:, REALLOCATE + agent] & (own < room)
    call = np.where(context.mask[:, agent * len(SIZES) + size], agent * len(SIZES) + size, STOP)
    return np.where(helps, REALLOCATE + agent, call)


class _FixedMode(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise in turn while the allocations pay; no reallocation."""

    plans: ClassVar[int]
    sizes: ClassVar[tuple[int, int, int]]  # of planner, executor, critic

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the next call of the schedule, or STOP where its agent's allocation is spent."""
        calls = context.calls
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
        agent = np.where(reviewed, EXECUTOR, CRITIC)
        planned = calls[:, PLANNER] >= self.plans
        agent = np.where(planned | (context.limits[:, PLANNER, S] <= 0), agent, PLANNER)
        action = agent * len(SIZES) + np.array(self.sizes)[agent]
        return np.where(context.mask[np.arange(len(rows)), action], action, STOP)


class FrontloadBudget(_FixedMode):
    """Two long plans, a long draft, and what little review the rest allows."""

    strategy = "frontload"
    plans = 2
    sizes = (L, L, S)


class CritiqueHeavyBudget(_FixedMode):
    """A short plan, a draft, then reviews and revisions until an allocation is spent."""

    strategy = "critique_heavy"
    plans = 1
    sizes = (S, M, L)


class SpendAllBudget(BaseTokenBudgetPolicy):
    """Long calls until no call can be paid: the limit of tokens is the only stop."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, … , or whatever call is still open."""
        action = _in_turn(context, L)
        any_call = context.mask[:, :CUT]
        fallback = np.where(any_call.any(axis=1), any_call.argmax(axis=1), STOP)
        return np.where(action == STOP, fallback, action)


class SingleShotBudget(BaseTokenBudgetPolicy):
    """One long call of the executor."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the executor's call, then STOP."""
        return np.where(context.has_draft, STOP, request(context, EXECUTOR, L))


class FixedCallsBudget(BaseTokenBudgetPolicy):
    """As many calls as a limit of turns allows, as agent frameworks count them.

    Args:
        k: number of calls.

    Raises:
        ConfigError: `k` is no number from 1 to 1000.
    """

    def __init__(self, k: int = 6) -> None:
        self.k = int(require_within(k, 1, 1000, "fixed_k: k (calls)"))
        self.name = "fixed_k" if self.k == 6 else f"fixed_k:{self.k}"

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, …, then STOP."""
        done = context.calls.sum(axis=1) >= self.k
        return np.where(done, STOP, _in_turn(context, M))


class RandomBudget(BaseTokenBudgetPolicy):
    """Any action that is open, all equally likely."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return (n,) draws of the rows' seeds and their numbers of decisions."""
        return place_in(context.mask, self.draw(rows, context.steps))


def _in_turn(context: TeamState, size: int) -> Ints:
    """Return (n,) the next of plan, draft, review, revision, review, … at one size."""
    calls = context.calls
    reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
    again = np.where(reviewed, request(context, EXECUTOR, size), request(context, CRITIC, size))
    return np.where(calls[:, PLANNER] > 0, again, request(context, PLANNER, size))


class AdaptiveRoiBudget(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise; the critic is cut when its ROI falls below a threshold.

    After each round of review and revision, what the others have not spent goes to the agent of the
    higher ROI; the planner has no further call, and so no part in it. An agent whose turn it is and
    whose allocation is short gets the tokens back. The cut returns the critic's allocation, and one
    closing revision follows. The threshold is not applied to the executor: in the worked example of
    the design the executor falls below it at its first call and goes on. `adaptive_roi_strict`
    applies it to all.
    """

    strict: ClassVar[bool] = False

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        """Forget the rounds after which tokens were moved."""
        super().reset(spec, seeds)
        self._moved_after = np.zeros(len(seeds), np.int64)  # calls at the last move

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the next call, a reallocation, a cut, or STOP, (n,)."""
        calls, is_cut, last_roi = context.calls, context.cut, context.last_roi
        # (n, 3) agents whose last call fell below
        low = (calls > 0) & (last_roi < self.spec.settings.roi_threshold)
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]  # the executor's turn
        revise, review = request(context, EXECUTOR, M), request(context, CRITIC, M)
        goes_on = reviewed | (self.strict & ~low[:, EXECUTOR])  # without a critic
        after_cut = np.where(goes_on, revise, STOP)
        action = np.where(is_cut[:, CRITIC], after_cut, np.where(reviewed, revise, review))
        action = np.where(low[:, CRITIC] & ~is_cut[:, CRITIC], CUT + CRITIC, action)
        if self.strict:
            cut_or_stop = np.where(is_cut[:, EXECUTOR], STOP, CUT + EXECUTOR)
            action = np.where(low[:, EXECUTOR], cut_or_stop, action)
        action = np.where(calls[:, PLANNER] == 0, request(context, PLANNER, M), action)
        # Where a round has ended, a reallocation to the higher ROI comes first.
        number = calls.sum(axis=1)
        best = np.where(last_roi[:, EXECUTOR] > last_roi[:, CRITIC], EXECUTOR, CRITIC)
        move = REALLOCATE + best
        ended = (calls[:, CRITIC] > 0) & (calls[:, EXECUTOR] > calls[:, CRITIC])
        ended &= ~is_cut.any(axis=1) & ((action < CUT) | (action >= REALLOCATE))
        ended &= (action != STOP) & (self._moved_after[rows] < number)
        ended &= context.mask[np.arange(len(rows)), move]
        self._moved_after[rows] = np.where(ended, number, self._moved_after[rows])
        return np.where(ended, move, action)


class AdaptiveRoiStrictBudget(AdaptiveRoiBudget):
    """Every agent is cut when its ROI falls below the threshold; without executor the team stops.

    With a threshold that is the price of a token, this is greedy by one step.
    """

    strict = True


class OptimalBudget(BaseTokenBudgetPolicy):
    """The best action by dynamic programming (`inframind_gym.teams.token_budget.optimum`)."""

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
            solved = token_budget_optimum.solve(*task, spec.self_eval)
            at = context.remaining[same], truth.state[same]
            best[same] = solved.look_up(solved.action, *at)
        action = np.full(len(rows), STOP)
        for call in range(CUT):
            wanted = request(context, call // len(SIZES), call % len(SIZES))
            action = np.where(best == call, wanted, action)
        return action


class BaseCoordinationPolicy(ContextPolicy[CoordinationSettings, CoordinationState]):
    """A policy without memory: `choose` is a function of the contexts."""


class SeedSupervisor(BaseCoordinationPolicy):
    """The design's order of the agents.

    Route; plan where the router asks for it; rewrite; search for all sub-tasks at once; merge where
    there were several searches; validate; write again once where the validation finds an issue;
    answer. A conversation is trimmed when it exceeds its limit, and an agent that fails or is late
    is answered with the fallback.
    """

    parallel: ClassVar[bool] = True
    validates: ClassVar[bool] = True
    always_plans: ClassVar[bool] = False

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return the first step of the order that is to be done, (n,)."""
        c, strategy = context, np.maximum(context.strategy, 0)
        limit = self.spec.context.trim_above_tokens
        plans = c.needs_planning | self.always_plans
        search = np.where((c.pending > 1) & self.parallel, PARALLEL, RETRIEVE) + strategy
        action = np.select(
            [
                c.failed.any(axis=1),
                (c.context > limit) & ~c.trimmed,
                ~c.routed,
                plans & ~c.planned,
                ~c.rewritten,
                c.pending > 0,
                (c.searches > 1) & ~c.merged,
                ~c.judged & self.validates,
                c.judged & ~c.valid & (c.regenerations == 0),
            ],
            [np.full(len(rows), one) for one in (FALLBACK, TRIM, ROUTE, PLAN, REWRITE)]
            + [search]
            + [np.full(len(rows), one) for one in (SYNTHESIZE, VALIDATE, REGENERATE)],
            ANSWER,
        )
        return np.where(c.mask[np.arange(len(rows)), action], action, FALLBACK)


class SequentialSupervisor(SeedSupervisor):
    """The same, one search after the other."""

    parallel = False


class AlwaysPlan(SeedSupervisor):
    """The same with a plan for every question."""

    always_plans = True


class NoValidate(SeedSupervisor):
    """The same without validation."""

    validates = False


class BasicRag(BaseCoordinationPolicy):
    """One vector search for the whole question, then the answer."""

    search: ClassVar[int] = RETRIEVE
    validates: ClassVar[bool] = False

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return the search, then the answer; the fallback where one of them fails, (n,)."""
        answer = np.where(~context.judged & self.validates, VALIDATE, ANSWER)
        action = np.where(context.docs > 0, answer, self.search)
        open_ = context.mask[np.arange(len(rows)), action] & ~context.failed.any(axis=1)
        return np.where(open_, action, FALLBACK)


class CheckedRag(BasicRag):
    """One hybrid search for the whole question, a validation, then the answer."""

    search = RETRIEVE + 1
    validates = True


class RandomSupervisor(BaseCoordinationPolicy):
    """Any action that is open, all equally likely."""

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return draws of the rows' seeds and their numbers of decisions, (n,)."""
        return place_in(context.mask, self.draw(rows, context.iteration))
