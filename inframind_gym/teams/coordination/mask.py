"""Masks: the actions that are open to questions, by what is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.rules import (
    AGENT_OF,
    ANSWER,
    FALLBACK,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    ROUTE,
    SYNTHESIS,
    SYNTHESIZE,
    TRIM,
    VALIDATE,
    Bools,
    Ints,
)

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.state import CoordinationState


def open_actions(state: CoordinationState, rows: Ints) -> Bools:
    """Return the mask of some questions (k,), (k, 15)."""
    limits, mask = state.settings.limits, np.zeros((len(rows), rules.NUM_ACTIONS), np.bool_)
    pending, planned = state.pending[rows], state.planned[rows]
    grounded = (state.docs[rows] > 0) | state.refers[rows]
    mask[:, ROUTE] = ~state.routed[rows]
    mask[:, PLAN] = ~planned
    again = ~state.searched[rows]
    mask[:, RETRIEVE:PARALLEL] = (planned & (pending > 0))[:, None] | again
    mask[:, PARALLEL:REWRITE] = (pending > 1)[:, None]
    mask[:, REWRITE] = ~state.rewritten[rows]
    mask[:, SYNTHESIZE] = (state.searches[rows] > 1) & ~state.merged[rows]
    mask[:, VALIDATE] = grounded & ~state.judged[rows]
    mask[:, TRIM] = state.context[rows] > state.settings.context.trim_to_tokens
    mask[:, TRIM] &= ~state.trimmed[rows]
    mask[:, ANSWER] = grounded
    few = state.regenerations[rows] < rules.MOST_REGENERATIONS
    mask[:, REGENERATE] = state.drafted[rows] & few
    spent = state.retries[rows] >= limits.max_retries
    broken = state.failed[rows] & spent[:, None]
    mask &= ~np.where(AGENT_OF < 0, False, broken[:, AGENT_OF])
    mask[:, VALIDATE] &= state.drafted[rows] | ~broken[:, SYNTHESIS]
    forward = state.drafted[rows]  # a draft is passed on without a call
    mask[:, ANSWER] |= grounded & forward
    mask[:, FALLBACK] = True
    return mask
