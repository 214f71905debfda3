"""State of teams as policies see it, in tokens and points."""

from __future__ import annotations

from typing import NamedTuple

from inframind_gym.teams.token_budget.rules import Bools, Floats, Ints
from inframind_gym.teams.token_budget.settings import TeamSettings
from inframind_gym.teams.token_budget.state import TeamState


class TokenBudgetSpec(NamedTuple):
    """Facts of a run that a policy is reset with.

    Attributes:
        settings: constants of the team.
        price: points of quality that a token costs.
        max_budget: largest budget of a team, in tokens.
        max_steps: decisions of an episode.
        self_eval: tokens of the rating after each call.
    """

    settings: TeamSettings
    price: float
    max_budget: int
    max_steps: int
    self_eval: int


class Truth(NamedTuple):
    """Latent state of k simulated tasks, for the optimum alone.

    Attributes:
        complexity: (k,) true one.
        value: (k,) of the quality.
        state: (k,) of the product (`teams.token_budget.optimum`).
    """

    complexity: Ints
    value: Floats
    state: Ints


class TokenBudgetContext(NamedTuple):
    """Input of a policy; arrays with a first axis of k teams.

    Attributes:
        budget, remaining, free: (k,) tokens: the ceiling, what is left, what cut agents returned.
        left, used: (k, 3) tokens of each agent.
        cut: (k, 3) agents that were cut.
        limits: (k, 3, 3) tokens of an answer, by agent and size; 0 where a call is refused.
        max_tokens: (3, 3) the same without a budget.
        estimates: (k, 3) estimated tokens of the next prompts.
        mask: (k, 16) actions that are open.
        calls: (k, 3) calls of each agent.
        last_tokens, last_delta, last_roi: (k, 3) of each agent's last call.
        score: (k,) quality by the proxies.
        flags_open, flags_resolved: (k,) flags of the critic.
        seen: (k,) complexity by the pre-flight.
        has_draft: (k,) whether the executor has written something.
        steps: (k,) decisions so far.
        truth: latent state, for policies with `sees_truth` alone.
    """

    budget: Ints
    remaining: Ints
    free: Ints
    left: Ints
    used: Ints
    cut: Bools
    limits: Ints
    max_tokens: Ints
    estimates: Ints
    mask: Bools
    calls: Ints
    last_tokens: Ints
    last_delta: Floats
    last_roi: Floats
    score: Floats
    flags_open: Ints
    flags_resolved: Ints
    seen: Ints
    has_draft: Bools
    steps: Ints
    truth: Truth | None


def contexts(state: TeamState, rows: Ints, truth: Truth | None = None) -> TokenBudgetContext:
    """Return the state of `rows` (k,) at the decisions that they wait for."""
    ledger, progress = state.ledger, state.progress
    return TokenBudgetContext(
        budget=ledger.budget[rows],
        remaining=ledger.remaining[rows],
        free=ledger.free[rows],
        left=ledger.left[rows],
        used=ledger.used[rows],
        cut=ledger.cut[rows],
        limits=state.limits[rows],
        max_tokens=state.max_tokens.copy(),
        estimates=state.estimates[rows],
        mask=state.mask[rows],
        calls=progress.calls[rows],
        last_tokens=progress.last_tokens[rows],
        last_delta=progress.last_delta[rows],
        last_roi=progress.last_roi[rows],
        score=progress.score[rows],
        flags_open=progress.flags_open[rows],
        flags_resolved=progress.flags_resolved[rows],
        seen=state.seen[rows],
        has_draft=state.has_draft[rows],
        steps=state.steps[rows],
        truth=truth,
    )
