"""Chances of the simulated team as tables: what is drawn from, and what the exact optimum sums."""

from __future__ import annotations

from math import comb
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER
from inframind_gym.teams.token_budget.settings import Chance, SimulationSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PLANS: Final = 3  # levels
SECTIONS: Final = 4
DEFECTS: Final = 5  # at most, flagged or not
LIKELIEST: Final = 0.98  # no chance is larger


class Tables(NamedTuple):
    """Chances by complexity c, plan p, size s, and whether the answer was cut off (x).

    The tables of sums hold distribution functions: `table[..., n, k]` is the chance that at most k
    of n happen.

    Attributes:
        plan: (c, s, x) that a plan is of level 2.
        section: (c, p, s, x, 4, 4) sections after the first; n is always 3.
        defect: (c, p, 6, 6) defects of a first draft; n is always 5.
        fill: (s, x, 5, 5) missing sections that a revision adds.
        resolve: (s, x, 6, 6) flagged defects that it resolves.
        find_alone: (6, 6) hidden defects that it resolves.
        flag: (c, s, x, 6, 6) hidden defects that a critic flags.
        lengths: (4, 3, K) tokens of an answer: planner, executor, critic, revision; size; factor.
        weights: (K,) distribution function of the factors.
    """

    plan: Floats
    section: Floats
    defect: Floats
    fill: Floats
    resolve: Floats
    find_alone: Floats
    flag: Floats
    lengths: Ints
    weights: Floats


REVISION: Final = 3  # row of `lengths`, after the three agents


def tables(settings: SimulationSettings, unit: int) -> Tables:
    """Make the tables; lengths are rounded to multiples of `unit` tokens."""
    lengths = settings.lengths
    mean = np.zeros((4, 3, 1))
    mean[PLANNER, :, 0], mean[EXECUTOR, :, 0] = lengths.planner, lengths.executor
    mean[CRITIC, :, 0], mean[REVISION, :, 0] = lengths.critic, lengths.revision
    units = np.maximum(np.rint(mean * np.array(lengths.factors) / unit), 1)
    weights = np.cumsum(lengths.weights)
    weights[-1] = 1.0
    return Tables(
        plan=_chances(settings.planner)[:, 0],
        section=_sums(_chances(settings.section), SECTIONS - 1),
        defect=_sums(_chances(settings.defect)[:, :, 0, 0], DEFECTS),
        fill=_sums(_chances(settings.fill)[0, 0], SECTIONS),
        resolve=_sums(_chances(settings.resolve)[0, 0], DEFECTS),
        find_alone=_sums(np.array(settings.find_alone), DEFECTS),
        flag=_sums(_chances(settings.flag)[:, 0], DEFECTS),
        lengths=(units * unit).astype(np.int64),
        weights=weights,
    )


def _chances(chance: Chance) -> Floats:
    """Return (c, p, s, x) products of the factors."""
    found = (
        np.array(chance.by_complexity)[:, None, None, None]
        * np.array(chance.by_plan)[:, None, None]
        * np.array(chance.by_size)[:, None]
        * np.array([1.0, chance.cut])
    )
    return np.asarray(np.minimum(found, LIKELIEST))


def _sums(chance: Floats, most: int) -> Floats:
    """Return (..., most + 1, most + 1): chance that at most k of n happen."""
    table = np.ones((*chance.shape, most + 1, most + 1))
    for n in range(most + 1):
        single = [comb(n, k) * chance**k * (1.0 - chance) ** (n - k) for k in range(n)]
        if n:
            table[..., n, :n] = np.cumsum(np.stack(single, axis=-1), axis=-1)
    return table


def single_chances(table: Floats) -> Floats:
    """Return the chances of exactly k from those of at most k, over the last axis."""
    return np.diff(table, axis=-1, prepend=0.0)
