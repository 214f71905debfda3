"""Recipes played over many queries: what they are worth at a given pace of the servers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.oracle.compiled import jit
from inframind_gym.policies.oracle.recipe import idle_pace, play
from inframind_gym.simulator.workflow.params import EnvParams


@jit
def tally(
    params: EnvParams,
    card: NDArray[Any],
    pace: NDArray[Any],
    keys: NDArray[np.uint64],
    tasks: NDArray[np.int64],
    length_z: NDArray[np.float32],
    group: NDArray[np.int64],
    budgets_s: NDArray[np.float64],
    recipes: NDArray[Any],
    scratch: NDArray[np.float64],
    scratch_work_s: NDArray[np.float64],
    outcome: NDArray[Any],
    good: NDArray[np.float64],
    solved: NDArray[np.float64],
    work_s: NDArray[np.float64],
    latency_s: NDArray[np.float64],
) -> None:
    """Add up the outcomes of recipes over queries, by group; query q is the ordinal q of its key.

    Args:
        group: (n,) of each query, in 0..G-1.
        budgets_s: (B,).
        scratch: (2, MAX_NODES); `scratch_work_s` (M,), `outcome` (1,) OUTCOME likewise.
        good: (r, G, B) solved within each budget at the given pace.
        solved: (r, G).
        work_s: (r, G, M).
        latency_s: (r, G).
    """
    for i in range(recipes.shape[0]):
        for q in range(keys.shape[0]):
            play(
                params, card, pace, keys[q], q, tasks[q], length_z[q], recipes[i],
                scratch, scratch_work_s, outcome[0],
            )  # fmt: skip
            g = group[q]
            for m in range(scratch_work_s.shape[0]):
                work_s[i, g, m] += scratch_work_s[m]
            latency_s[i, g] += outcome[0].latency_s
            if outcome[0].solved:
                solved[i, g] += 1.0
                for b in range(budgets_s.shape[0]):
                    if outcome[0].latency_s <= budgets_s[b]:
                        good[i, g, b] += 1.0


@jit
def set_idle_pace(card: NDArray[Any], pace: NDArray[Any]) -> None:
    """`idle_pace` of every server: card (M,) CARD, pace (M,) PACE, written."""
    for m in range(card.shape[0]):
        idle_pace(card[m], pace[m])
