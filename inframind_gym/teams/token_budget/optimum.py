"""The exact optimum of the simulated team, by dynamic programming.

The simulation is finite: a state is the plan, the sections, the defects that are hidden and
flagged, and the tokens that are left, a multiple of `token_unit`. The optimum knows all of these,
which no policy does. It ignores allocations, which a reallocation can always lift, and the limit
on steps. So nothing scores more on average, and a policy that plays it scores as much.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.token_budget.chances import (
    DEFECTS,
    PLANS,
    REVISION,
    SECTIONS,
    Tables,
    single_chances,
    tables,
)
from inframind_gym.teams.token_budget.rules import CRITIC, CUT, EXECUTOR, PLANNER, STOP
from inframind_gym.teams.token_budget.settings import AGENTS, SIZES, TeamSettings
from inframind_gym.teams.token_budget.simulate import max_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Pairs (hidden, flagged) with at most DEFECTS of both; PAIR_AT finds one.
PAIRS: Final = [(h, f) for h in range(DEFECTS + 1) for f in range(DEFECTS + 1 - h)]
PAIR_AT: Final = np.zeros((DEFECTS + 1, DEFECTS + 1), np.int64)
for _i, (_h, _f) in enumerate(PAIRS):
    PAIR_AT[_h, _f] = _i
SHAPE: Final = (PLANS, SECTIONS + 1, len(PAIRS))
STATES: Final = PLANS * (SECTIONS + 1) * len(PAIRS)


class Optimum(NamedTuple):
    """Values and actions of one complexity, by what remains (in units) and state.

    Attributes:
        value: (R, S) expected rewards to come under the best actions.
        action: (R, S) int8 best action; STOP where nothing more pays.
        unit: tokens of a unit.
    """

    value: Floats
    action: NDArray[np.int8]
    unit: int

    def look_up(self, table: Floats | NDArray[np.int8], remaining: Ints, states: Ints) -> Ints:
        """Return the entries of `value` or `action` for tokens (k,) and states (k,)."""
        at = np.clip(remaining // self.unit, 0, len(table) - 1)
        return np.asarray(table[at, states])


def state_of(plan: Ints, sections: Ints, hidden: Ints, flagged: Ints) -> Ints:
    """Return the states (k,) of products."""
    pair = PAIR_AT[hidden, flagged]
    return np.asarray((plan * (SECTIONS + 1) + sections) * len(PAIRS) + pair)


def solve(
    settings: TeamSettings,
    complexity: int,
    budget: int,
    price: float,
    value: float,
    self_eval: int,
) -> Optimum:
    """Solve the decision problem of one complexity for every budget up to `budget`.

    Args:
        settings: constants of the team.
        complexity: true one, 0-2.
        budget: tokens.
        price: points of quality that a token costs.
        value: of the quality, below 1 where the task was narrowed.
        self_eval: tokens of the self-evaluation after each call.
    """
    return _solve(settings.model_dump_json(), complexity, budget, price, value, self_eval)


@cache
def _solve(
    text: str, complexity: int, budget: int, price: float, value: float, self_eval: int
) -> Optimum:
    settings = TeamSettings.model_validate_json(text)
    problem = _Problem(settings, complexity, self_eval)
    points = value * problem.quality
    levels = budget // settings.token_unit + 1
    calls, count = CUT, len(problem.weights)
    values, actions = np.zeros((levels, STATES)), np.full((levels, STATES), STOP, np.int8)
    # Expected value after a call that leaves a level of tokens, by call, cut off and state.
    after = np.zeros((levels, calls, 2, STATES))
    gain = problem.expect(points) - points
    call, state = np.arange(calls)[:, None, None], np.arange(STATES)
    for level in range(levels):
        tokens, cut_off, allowed = problem.outcomes(level * settings.token_unit)
        left = np.maximum(level - tokens // settings.token_unit, 0)
        outcome = (
            after[left, call, cut_off, state]
            + (gain[call, cut_off, state] - price * tokens) / 100.0
        )
        worth = np.zeros((calls, STATES))
        for k in range(count):  # in order: the same bits everywhere
            worth += problem.weights[k] * outcome[:, k]
        worth[~allowed] = -np.inf
        best = worth.argmax(axis=0)
        top = worth[best, np.arange(STATES)]
        pays = top > 1e-12
        values[level], actions[level] = np.where(pays, top, 0.0), np.where(pays, best, STOP)
        after[level] = problem.expect(values[level])
    return Optimum(values, actions, settings.token_unit)


class _Problem:
    """Tokens and transitions of the calls of one complexity."""

    def __init__(self, settings: TeamSettings, complexity: int, self_eval: int) -> None:
        simulation, unit = settings.simulation, settings.token_unit
        self._found = tables(simulation, unit)
        self._self_eval, self._least = self_eval, settings.min_completion_tokens
        self.weights = np.diff(self._found.weights, prepend=0.0)
        plan, sections, pair = np.unravel_index(np.arange(STATES), SHAPE)
        hidden, flagged = np.array(PAIRS)[pair].T
        lost = simulation.quality.per_defect * (hidden + flagged)
        draft = np.array(simulation.quality.sections)[sections] - lost
        alone = np.array(simulation.quality.plan)[plan]
        self.quality = np.maximum(np.where(sections > 0, draft, alone), 0.0)
        size = simulation.prompt_tokens
        reviewed = size.task + size.draft * (sections > 0)
        revised = reviewed + size.plan * (plan > 0) + size.per_flag * flagged
        prompts = np.stack([np.full(STATES, size.task), revised, reviewed])
        self._prompt = np.repeat(prompts, len(SIZES), axis=0)  # (calls, S)
        estimate = np.floor(settings.prompt_estimate * self._prompt / unit)
        self._estimate = (unit * estimate).astype(np.int64)
        lengths = self._found.lengths
        self._length = np.repeat(lengths[: len(AGENTS), :, :, None], STATES, axis=3)
        self._length[EXECUTOR] = np.where(
            sections > 0, lengths[REVISION, :, :, None], lengths[EXECUTOR, :, :, None]
        )
        self._length = self._length.reshape(CUT, -1, STATES)
        self._most = max_tokens(settings).reshape(CUT, 1)
        self._reviewable = np.ones((CUT, STATES), np.bool_)
        self._reviewable[CRITIC * len(SIZES) :] = sections > 0
        self._steps = _Transitions(self._found, complexity, simulation.new_defect)

    def outcomes(self, remaining: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Return (calls, K, S) tokens and whether cut off, and (calls, S) which calls are open."""
        room = remaining - self._self_eval - self._estimate
        limit = np.minimum(self._most, room)[:, None, :]
        allowed = self._reviewable & (room >= self._least)
        completion = np.minimum(self._length, np.maximum(limit, 0))
        tokens = self._prompt[:, None, :] + completion + self._self_eval
        return tokens, (self._length > limit).astype(np.int64), allowed

    def expect(self, values: Floats) -> Floats:
        """Return (calls, 2, S) expectations of `values` (S,) after each call, whole and cut off."""
        cube = values.reshape(SHAPE)
        found = np.empty((CUT, 2, *SHAPE))
        for size in range(len(SIZES)):
            for x in range(2):
                for agent in (PLANNER, EXECUTOR, CRITIC):
                    target = found[agent * len(SIZES) + size, x]
                    self._steps.expect(agent, size, x, cube, target)
        return found.reshape(CUT, 2, STATES)


class _Transitions:
    """Chances of the states after a call."""

    def __init__(self, found: Tables, complexity: int, new_defect: float) -> None:
        c = complexity
        self._up = found.plan[c]  # (s, x)
        self._first = single_chances(found.section[c, :, :, :, SECTIONS - 1])  # (p, s, x, 4)
        self._defects = single_chances(found.defect[c, :, DEFECTS])  # (p, 6)
        fill, resolve = single_chances(found.fill), single_chances(found.resolve)
        alone, flag = single_chances(found.find_alone), single_chances(found.flag[c])
        pairs = len(PAIRS)
        self._fill = np.zeros((3, 2, SECTIONS + 1, SECTIONS + 1))
        self._revise = np.zeros((3, 2, pairs, pairs))
        self._flag = np.zeros((3, 2, pairs, pairs))
        for sections in range(1, SECTIONS + 1):
            missing = SECTIONS - sections
            self._fill[:, :, sections, sections:] = fill[:, :, missing, : missing + 1]
        for at, (h, f) in enumerate(PAIRS):
            for k in range(h + 1):
                self._flag[:, :, at, PAIR_AT[h - k, f + k]] += flag[:, :, h, k]
                for j in range(f + 1):
                    chance = resolve[:, :, f, j] * alone[h, k]
                    after = h - k, f - j
                    new = new_defect if sum(after) < DEFECTS else 0.0
                    self._revise[:, :, at, PAIR_AT[after]] += (1.0 - new) * chance
                    if new:
                        self._revise[:, :, at, PAIR_AT[after[0] + 1, after[1]]] += new * chance

    def expect(self, agent: int, size: int, x: int, cube: Floats, target: Floats) -> None:
        """Write the expectation of `cube` (p, sections, pairs) after a call into `target`."""
        if agent == PLANNER:
            up = self._up[size, x]
            target[0] = up * cube[2] + (1.0 - up) * cube[1]
            target[1] = up * cube[2] + (1.0 - up) * cube[1]
            target[2] = cube[2]
        elif agent == CRITIC:
            target[:] = cube @ self._flag[size, x].T
        else:
            revised = cube @ self._revise[size, x].T
            target[:] = np.einsum("gh,phd->pgd", self._fill[size, x], revised)
            fresh = cube[:, 1:, PAIR_AT[:, 0]]  # (p, 4, 6): sections, hidden
            chances = self._first[:, size, x, :, None] * self._defects[:, None, :]
            target[:, 0] = (fresh * chances).sum(axis=(1, 2))[:, None]
