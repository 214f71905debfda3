"""Rules of the token-budget team: the budget, the scores of steps, and what may be done next.

Arrays with a row a team: no clock, no I/O and no random numbers. Application and environment call
the same rules, the application with one row.

A budget is a hard ceiling for the team. Each agent has an allocation in it, a soft limit: beyond
its own an agent spends what agents that were cut have returned. An agent call may be answered in
as many tokens as both limits leave after the estimate of its prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from inframind_gym.teams.state import Bools, Floats, Ints, Rows
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    SIZES,
    STRATEGIES,
    ProxyWeights,
    TeamSettings,
)

PLANNER, EXECUTOR, CRITIC = range(3)
# Actions: 0-8 call an agent at a size (3 agent + size), then three of each kind, then STOP.
CUT: Final = len(AGENTS) * len(SIZES)
REALLOCATE: Final = CUT + len(AGENTS)
STOP: Final = REALLOCATE + len(AGENTS)
NUM_ACTIONS: Final = STOP + 1
# Why a step was the last one of an agent or of the run; their places are the codes of `reason`.
REASONS: Final = ("", "roi", "policy", "stop", "budget", "all_cut", "steps", "refused")
NO_REASON, LOW_ROI, BY_POLICY, STOPPED, OUT_OF_BUDGET, ALL_CUT, OUT_OF_STEPS, REFUSED = range(8)
AGENT_STEP: Final = "agent_step"  # name of the events of steps
PREVIEW_CHARS: Final = 200  # of an agent's answer in its event


class Evidence(NamedTuple):
    """Facts by which k steps are scored, (k,) each."""

    self_eval: Floats  # rating of the team's product by an LLM, 0-100; NaN where none came
    checklist: Floats  # share of the structural checklist; NaN where there is none
    new_flags: Ints  # of the critic
    resolved: Ints  # flags that a revision resolved
    claimed: Floats  # points that the critic says its new flags are worth


# Budget


def allocate(budget: Any, shares: Any) -> Ints:
    """Share budgets (...,) out by shares (..., 3); what rounding leaves is the executor's."""
    whole = np.asarray(budget, np.int64)
    exact = whole[..., None] * np.asarray(shares, np.float64)
    parts: Ints = np.floor(exact + 1e-9).astype(np.int64)
    parts[..., EXECUTOR] += whole - parts.sum(axis=-1)
    return parts


def spend(state: TeamState, rows: Ints, agents: Ints, tokens: Ints) -> None:
    """Charge k calls to their agents: to the allocation first, then to what was returned."""
    allocated = np.minimum(state.left[rows, agents], tokens)
    state.left[rows, agents] -= allocated
    state.free[rows] -= np.minimum(state.free[rows], tokens - allocated)
    state.used[rows, agents] += tokens


def cut(state: TeamState, rows: Ints, agents: Ints) -> None:
    """Cut k agents off; what is left of their allocations returns to the pool."""
    state.free[rows] += state.left[rows, agents]
    state.left[rows, agents] = 0
    state.cut[rows, agents] = True


def movable(state: TeamState, rows: Ints, share: float) -> Ints:
    """Return (k, 3) tokens that `reallocate` would move to each agent."""
    shares = np.floor(share * state.left[rows]).astype(np.int64)
    return np.asarray(shares.sum(axis=1)[:, None] - shares + state.free[rows, None])


def reallocate(state: TeamState, rows: Ints, agents: Ints, share: float) -> None:
    """Move what was returned, and a share of what others have not spent, to k agents."""
    at = np.arange(len(rows)), agents
    moved = movable(state, rows, share)[at]
    shares = np.floor(share * state.left[rows]).astype(np.int64)
    shares[at] = -moved
    state.left[rows] -= shares
    state.free[rows] = 0


def share_out(state: TeamState, rows: Ints, shares: Floats) -> None:
    """Allocate all that remains by shares (k, 3)."""
    state.left[rows] = allocate(np.maximum(state.remaining[rows], 0), shares)
    state.free[rows] = 0


# Scores


def quality(self_eval: Any, flag_share: Any, checklist: Any, weights: ProxyWeights) -> Floats:
    """Return the weighted mean (k,) of the proxies that are not NaN, 0-100; 0 where all are."""
    total, weight = np.zeros(np.shape(self_eval)), np.zeros(np.shape(self_eval))
    for points, factor in (
        (np.asarray(self_eval, np.float64), weights.self_eval),
        (100.0 * np.asarray(flag_share, np.float64), weights.flags),
        (100.0 * np.asarray(checklist, np.float64), weights.checklist),
    ):
        there = ~np.isnan(points)
        total = total + np.where(there, factor * points, 0.0)
        weight = weight + np.where(there, factor, 0.0)
    return np.asarray(np.clip(total / np.where(weight > 0.0, weight, 1.0), 0.0, 100.0))


class Truth(NamedTuple):
    """Latent state of k simulated tasks, for the optimum alone."""

    complexity: Ints  # (k,) true one
    state: Ints  # (k,) of the product (`teams.token_budget.optimum`)


class TeamState(Rows):
    """n teams in the middle of their runs; all arrays have a row a team.

    `self_eval` are the tokens that the rating after a call is expected to take. Methods take the
    teams that they concern as `rows` (k,), and arrays with a row for each of them. Policies get
    copies of some rows.
    """

    # Tokens
    budget: Ints  # (n,) hard ceilings
    left: Annotated[Ints, 3]  # of each agent's allocation
    free: Ints  # (n,) returned by agents that were cut
    used: Annotated[Ints, 3]  # of each agent's calls
    overhead: Ints  # (n,) of pre-flight and self-evaluations
    cut: Annotated[Bools, 3]  # agents that are not called again
    # Scores, as far as the application sees them
    score: Floats  # (n,) quality by the proxies, 0-100
    flag_share: Floats  # (n,) of the critic's flags that are resolved; NaN before the first
    checklist: Floats  # (n,) share of the structural checklist; NaN where there is none
    flags_open: Ints  # (n,)
    flags_resolved: Ints  # (n,)
    calls: Annotated[Ints, 3]  # of each agent
    last_tokens: Annotated[Ints, 3]  # of each agent's last call
    last_delta: Annotated[Floats, 3]  # points of quality that it brought
    last_roi: Annotated[Floats, 3]  # points per token
    # Decisions
    seen: Ints  # (n,) complexity by the pre-flight
    strategy: Ints  # (n,) mode of the allocations
    steps: Ints  # (n,) decisions so far
    agent: Ints  # (n,) of the last decision
    reason: Ints  # (n,) a place in REASONS
    has_draft: Bools  # (n,) the executor has written something
    was_open: Bools  # (n,) the last action was
    stopped: Bools  # (n,)
    over: Bools  # (n,)
    estimates: Annotated[Ints, 3]  # tokens of the next prompts
    limits: Annotated[Ints, 3, 3]  # of answers, by agent and size; 0: refused
    mask: Annotated[Bools, NUM_ACTIONS]  # actions that are open
    truth: Truth | None = None  # for policies with `sees_truth` alone

    def __init__(self, settings: TeamSettings, n: int, self_eval: int, max_steps: int) -> None:
        super().__init__(n)
        self.settings, self.weights = settings, settings.proxy_weights
        self.max_tokens = np.array([settings.max_tokens[agent] for agent in AGENTS], np.int64)
        self.self_eval, self.max_steps = self_eval, max_steps

    @property
    def spent(self) -> Ints:
        """(n,) tokens of all calls."""
        return np.asarray(self.used.sum(axis=1) + self.overhead)

    @property
    def remaining(self) -> Ints:
        """(n,) tokens below the ceiling; negative after an overshoot."""
        return self.budget - self.spent

    def begin(
        self, rows: Ints, budget: Any, strategy: int, seen: Ints, preflight_tokens: Any
    ) -> None:
        """Open new budgets (k,) and charge the pre-flight to them."""
        self.clear(rows)
        shares = self.settings.strategies[STRATEGIES[strategy]]
        self.budget[rows], self.left[rows] = budget, allocate(budget, shares)
        self.overhead[rows] = preflight_tokens
        self.flag_share[rows] = self.checklist[rows] = np.nan
        self.seen[rows], self.strategy[rows] = seen, strategy

    def minimum_budget(self, rows: Ints) -> Ints:
        """Return (k,) tokens below which such a task is not worth starting."""
        least = np.array([self.settings.minimum_budget[c] for c in COMPLEXITIES], np.int64)
        return np.asarray(least[self.seen[rows]])

    def look(self, rows: Ints, estimates: Ints, has_draft: Bools) -> None:
        """Find the open actions of some teams, and whether their runs are over.

        `estimates` are (k, 3) tokens of the next prompts; `has_draft` (k,) says whether there is
        something to review.
        """
        self.estimates[rows], self.has_draft[rows] = estimates, has_draft
        self.open_actions(rows)
        closed = self.cut[rows]
        closed[:, CRITIC] |= ~has_draft  # without a draft there is nothing to review
        room = self.remaining[rows, None] - self.self_eval - estimates
        possible = ~closed & (room >= self.settings.min_completion_tokens)
        late = np.where(self.steps[rows] >= self.max_steps, OUT_OF_STEPS, NO_REASON)
        reason = np.where(possible.any(axis=1), late, OUT_OF_BUDGET)
        reason = np.where(closed.all(axis=1), ALL_CUT, reason)
        reason = np.where(self.stopped[rows], STOPPED, reason)
        self.over[rows] = reason != NO_REASON
        self.reason[rows] = np.where(reason != NO_REASON, reason, self.reason[rows])

    def open_actions(self, rows: Ints) -> None:
        """Find the limits of calls and the open actions of some teams, after their ledgers."""
        settings = self.settings
        is_cut, has_draft = self.cut[rows], self.has_draft[rows]
        hard = self.remaining[rows, None] - self.self_eval
        soft = self.left[rows] + self.free[rows, None]
        room = np.minimum(hard, soft) - self.estimates[rows]
        room[is_cut | (room < settings.min_completion_tokens)] = 0
        limits = np.minimum(self.max_tokens, room[:, :, None])
        limits[:, CRITIC] *= has_draft[:, None]
        self.limits[rows] = limits
        mask = np.ones((len(rows), NUM_ACTIONS), np.bool_)
        mask[:, :CUT] = (limits > 0).reshape(len(rows), CUT)
        mask[:, CUT:REALLOCATE] = ~is_cut
        mask[:, REALLOCATE:STOP] = ~is_cut & (movable(self, rows, settings.reallocation_share) > 0)
        self.mask[rows] = mask

    @property
    def truncated(self) -> Bools:
        """(n,) whether a run ended because of its number of steps alone."""
        return np.asarray(self.over & (self.reason == OUT_OF_STEPS))

    def decide(self, rows: Ints, actions: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Carry out the part of decisions (k,) that needs no call.

        One that is not open does nothing. A cut is for low ROI where the agent's last call was
        below the threshold, else the policy's. Returns the calls that are asked for: (m,) rows,
        agents, sizes and limits of tokens.
        """
        about = np.where(actions < CUT, actions // len(SIZES), (actions - CUT) % len(AGENTS))
        self.agent[rows] = np.where(actions == STOP, self.agent[rows], about)
        legal = self.mask[rows, actions]
        self.was_open[rows] = legal
        self.steps[rows] += 1
        self.reason[rows] = np.where(legal, NO_REASON, REFUSED)
        self.stopped[rows] = legal & (actions == STOP)
        chosen = legal & (actions >= CUT) & (actions < REALLOCATE)
        ended, agents = rows[chosen], about[chosen]
        cut(self, ended, agents)
        called = self.calls[ended, agents] > 0
        low = self.last_roi[ended, agents] < self.settings.roi_threshold
        self.reason[ended] = np.where(called & low, LOW_ROI, BY_POLICY)
        chosen = legal & (actions >= REALLOCATE) & (actions < STOP)
        reallocate(self, rows[chosen], about[chosen], self.settings.reallocation_share)
        chosen = legal & (actions < CUT)
        calling, agents, sizes = rows[chosen], about[chosen], actions[chosen] % len(SIZES)
        return calling, agents, sizes, self.limits[calling, agents, sizes]

    def take(self, rows: Ints, agents: Ints, tokens: Ints, evidence: Evidence) -> None:
        """Score k calls that are charged, of `tokens` in prompt and answer.

        A critic changes nothing in the product: its step is worth the points that it claims for its
        new flags. They count as a proxy of quality from the next step of another agent on.
        """
        is_critic = agents == CRITIC
        self.flags_open[rows] += evidence.new_flags - evidence.resolved
        self.flags_resolved[rows] += evidence.resolved
        known = self.flags_open[rows] + self.flags_resolved[rows]
        share = np.where(known > 0, self.flags_resolved[rows] / np.maximum(known, 1), np.nan)
        self.flag_share[rows] = np.where(is_critic, self.flag_share[rows], share)
        self.checklist[rows] = evidence.checklist
        score = quality(evidence.self_eval, self.flag_share[rows], evidence.checklist, self.weights)
        delta = np.where(is_critic, evidence.claimed, score - self.score[rows])
        self.score[rows] = score
        self.calls[rows, agents] += 1
        self.last_tokens[rows, agents] = tokens
        self.last_delta[rows, agents] = delta
        self.last_roi[rows, agents] = delta / np.maximum(tokens, 1)

    def facts(self, row: int, action: int) -> dict[str, Any]:
        """Return a team's last step as JSON values; 0 tokens and points where nobody was called."""
        agent = int(self.agent[row])
        called = bool(self.was_open[row]) and action < CUT
        return {
            "agent": AGENTS[agent],
            "action": describe(action),
            "iteration": int(self.calls[row, agent]),
            "tokens": int(self.last_tokens[row, agent]) if called else 0,
            "quality": float(self.score[row]),
            "quality_delta": float(self.last_delta[row, agent]) if called else 0.0,
            "roi": float(self.last_roi[row, agent]),
            "cutoff_reason": REASONS[int(self.reason[row])],
            "cumulative_tokens": int(self.spent[row]),
        }

    def event(self, row: int, action: int, run_id: str, output: str) -> dict[str, Any]:
        """Return the event of a team's last step, as JSON values that WebSocket clients get.

        A reallocation and an action that was refused have none (an empty dict), unless the run ends
        with them.
        """
        is_open, over = bool(self.was_open[row]), bool(self.over[row])
        if not over and (not is_open or REALLOCATE <= action < STOP):
            return {}
        facts, running = self.facts(row, action), is_open and action < CUT
        data = {
            "run_id": run_id,
            **{key: facts[key] for key in ("agent", "iteration", "cumulative_tokens")},
            "tokens_used": facts["tokens"],
            "tokens_remaining": int(self.remaining[row]),
            "quality_score": round(facts["quality"], 4),
            "quality_delta": round(facts["quality_delta"], 4),
            "roi": round(facts["roi"], 6),
            "status": "complete" if over else "running" if running else "cutoff",
            "output_preview": output[:PREVIEW_CHARS],
        }
        return {"event": AGENT_STEP, "data": data}


def describe(action: int) -> str:
    """Return an action in words."""
    if action == STOP:
        return "stop"
    if action >= REALLOCATE:
        return f"reallocate to {AGENTS[action - REALLOCATE]}"
    if action >= CUT:
        return f"cut {AGENTS[action - CUT]}"
    return f"{AGENTS[action // len(SIZES)]} {SIZES[action % len(SIZES)]}"


def suggestion(budget: int, minimum: int, complexity: int) -> str:
    """Return the warning about a budget that is smaller than its task's minimum."""
    return (
        f"a {COMPLEXITIES[complexity]} task wants at least {minimum:,} tokens, the budget is "
        f"{budget:,}: raise it, or narrow the task"
    )
