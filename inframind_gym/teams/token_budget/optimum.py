"""The exact optimum of the simulated team, by value iteration over its rules.

The simulation is finite: a state is the plan, the sections, the defects that are hidden and
flagged, and the tokens that are left, a multiple of `token_unit`. The optimum knows all of these,
which no policy does. It ignores allocations, which a reallocation can always lift, and the limit
on steps. So nothing scores more on average, and a policy that plays it scores as much.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product as combinations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.state import Floats, Ints
from inframind_gym.teams.token_budget.rules import CRITIC, CUT, EXECUTOR, STOP
from inframind_gym.teams.token_budget.settings import SIZES, TeamSettings
from inframind_gym.teams.token_budget.simulate import (
    DEFECTS,
    PLANS,
    REVISION,
    SECTIONS,
    Product,
    TaskRules,
)

# Pairs (hidden, flagged) with at most DEFECTS of both; PAIR_AT finds one.
PAIRS: Final = [(h, f) for h in range(DEFECTS + 1) for f in range(DEFECTS + 1 - h)]
PAIR_AT: Final = np.zeros((DEFECTS + 1, DEFECTS + 1), np.int64)
PAIR_AT[tuple(np.transpose(PAIRS))] = np.arange(len(PAIRS))
SHAPE: Final = (PLANS, SECTIONS + 1, len(PAIRS))
STATES: Final = PLANS * (SECTIONS + 1) * len(PAIRS)
_TIE: Final = 1e-12  # of values that rounding alone tells apart; ties go to the first action


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
    settings: TeamSettings, complexity: int, budget: int, price: float, self_eval: int
) -> Optimum:
    """Solve the decision problem of one true complexity for every budget up to `budget`.

    `price` are points of quality that a token costs, `self_eval` tokens of the rating after a call.
    """
    return _solve(settings.model_dump_json(), complexity, budget, price, self_eval)


@cache
def _solve(text: str, complexity: int, budget: int, price: float, self_eval: int) -> Optimum:
    settings = TeamSettings.model_validate_json(text)
    rules, unit = TaskRules(settings), settings.token_unit
    plan, sections, pair = np.unravel_index(np.arange(STATES), SHAPE)
    product = Product(plan, sections, *np.array(PAIRS)[pair].T)
    agents, sizes = np.divmod(np.arange(CUT), len(SIZES))
    kinds = np.where((agents[:, None] == EXECUTOR) & (sections > 0), REVISION, agents[:, None])
    prompt = rules.prompts(product).T[agents]  # (calls, S)
    estimate = rules.prompt_estimates(product).T[agents]
    length = np.moveaxis(rules.lengths[kinds, sizes[:, None]], -1, 1)  # (calls, K, S)
    weights = np.diff(rules.weights, prepend=0.0)
    most = rules.max_tokens.reshape(CUT, 1)
    reviewable = (agents[:, None] != CRITIC) | (sections > 0)
    expect = _expectation(rules, complexity, product, kinds)

    points = rules.points(product)
    gain = expect(points) - points
    levels = budget // unit + 1
    values, actions = np.zeros((levels, STATES)), np.full((levels, STATES), STOP, np.int8)
    # Expected value after a call that leaves a level of tokens, by call, cut off and state.
    after = np.zeros((levels, CUT, 2, STATES))
    call, state = np.arange(CUT)[:, None, None], np.arange(STATES)
    for level in range(levels):
        room = level * unit - self_eval - estimate
        limit = np.minimum(most, room)[:, None, :]
        cut_off = (length > limit).astype(np.int64)
        tokens = prompt[:, None, :] + np.minimum(length, np.maximum(limit, 0)) + self_eval
        left = np.maximum(level - tokens // unit, 0)
        reward = (gain[call, cut_off, state] - price * tokens) / 100.0
        outcome = after[left, call, cut_off, state] + reward
        worth = np.zeros((CUT, STATES))
        for k, weight in enumerate(weights):  # in order: the same bits everywhere
            worth += weight * outcome[:, k]
        worth[~(reviewable & (room >= settings.min_completion_tokens))] = -np.inf
        top = worth.max(axis=0)
        best = (worth > top - _TIE).argmax(axis=0)
        pays = top > _TIE
        values[level], actions[level] = np.where(pays, top, 0.0), np.where(pays, best, STOP)
        after[level] = expect(values[level])
    return Optimum(values, actions, unit)


def _expectation(
    rules: TaskRules, complexity: int, product: Product, kinds: Ints
) -> Callable[[Floats], Floats]:
    """Return the function from values (S,) to their expectations after each call, (calls, 2, S)."""
    transitions = np.zeros((CUT, 2, STATES, STATES))
    for call, cut_off, kind in combinations(range(CUT), range(2), range(REVISION + 1)):
        states = np.flatnonzero(kinds[call] == kind)
        if not len(states):
            continue
        before = Product(*(part[states] for part in product))
        same = np.ones_like(states)
        sums = rules.outcomes(
            kind, complexity * same, before, call % len(SIZES) * same, cut_off * same
        )
        single = [np.diff(chances, axis=1, prepend=0.0) for chances in sums]
        for counts in combinations(*(range(chances.shape[1]) for chances in single)):
            pairs = zip(single, counts, strict=True)
            p = np.prod([chances[:, k] for chances, k in pairs], axis=0)
            at = np.flatnonzero(p)
            likely = Product(*(part[at] for part in before))
            after = rules.after(kind, likely, [np.full(len(at), k) for k in counts])
            transitions[call, cut_off, states[at], state_of(*after)] += p[at]
    table = transitions.reshape(-1, STATES)
    row, to = np.nonzero(table)
    chance, first = table[row, to], np.searchsorted(row, np.arange(row[-1] + 1))
    return lambda values: np.add.reduceat(chance * values[to], first).reshape(CUT, 2, STATES)
