"""State of n teams, the same in application and environment: ledgers, scores, open actions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.rules import (
    CRITIC,
    CUT,
    NUM_ACTIONS,
    REALLOCATE,
    STOP,
    Bools,
    Evidence,
    Ints,
    Ledger,
    Progress,
)
from inframind_gym.teams.token_budget.settings import (
    AGENTS,
    COMPLEXITIES,
    SIZES,
    ProxyWeights,
    TeamSettings,
)

AGENT_STEP: Final = "agent_step"  # name of the events of steps
PREVIEW_CHARS: Final = 200  # of an agent's answer in its event
# Why a step was the last one of an agent or of the run; their places are the codes of `reason`.
REASONS: Final = ("", "roi", "policy", "stop", "budget", "all_cut", "steps", "refused")
NO_REASON, LOW_ROI, BY_POLICY, STOPPED, OUT_OF_BUDGET, ALL_CUT, OUT_OF_STEPS, REFUSED = range(8)


class TeamState:
    """n teams; all arrays have a row a team.

    Args:
        settings: constants of the team.
        n: number of teams.
        max_tokens: (3, 3) of an answer, by agent and size.
        weights: of the proxies of quality.
        self_eval: tokens that the rating after a call is expected to take.
        max_steps: length of an episode.

    Attributes:
        ledger, progress: tokens and scores.
        seen: (n,) complexity by the pre-flight.
        strategy: (n,) index of the mode that set the allocations.
        has_draft: (n,) whether the critic has something to review.
        steps: (n,) decisions so far.
        agent: (n,) whom the last decision was about; STOP is about the one before.
        limits: (n, 3, 3) tokens of an answer, by agent and size; 0 where a call is refused.
        mask: (n, 16) actions that are open.
        was_open: (n,) whether the last decision was open, and so carried out.
        stopped, over: (n,) whether the team has stopped; whether its run has ended.
        reason: (n,) why the last step ended something, a place in REASONS.
    """

    def __init__(
        self,
        settings: TeamSettings,
        n: int,
        max_tokens: Ints,
        weights: ProxyWeights,
        self_eval: int,
        max_steps: int,
    ) -> None:
        self.settings, self.max_tokens, self.weights = settings, max_tokens, weights
        self.self_eval, self.max_steps = self_eval, max_steps
        self.ledger, self.progress = Ledger.empty(n), Progress.empty(n)
        self.seen, self.strategy, self.steps = np.zeros((3, n), np.int64)
        self.agent, self.reason = np.zeros((2, n), np.int64)
        self.has_draft, self.was_open, self.stopped, self.over = np.zeros((4, n), np.bool_)
        self.estimates = np.zeros((n, 3), np.int64)
        self.limits = np.zeros((n, 3, 3), np.int64)
        self.mask = np.zeros((n, NUM_ACTIONS), np.bool_)

    def begin(
        self, rows: Ints, budget: Any, strategy: int, seen: Ints, preflight_tokens: Any
    ) -> None:
        """Open new budgets (k,) and charge the pre-flight to them."""
        shares = list(vars(self.settings.strategies).values())[strategy]
        rules.open_budget(self.ledger, rows, budget, shares)
        self.progress.clear(rows)
        self.ledger.overhead[rows] += preflight_tokens
        self.seen[rows], self.strategy[rows] = seen, strategy
        for part in (self.steps, self.agent, self.reason, self.has_draft, self.stopped, self.over):
            part[rows] = 0

    def minimum_budget(self, rows: Ints) -> Ints:
        """Return (k,) tokens below which such a task is not worth starting."""
        least = np.array(self.settings.minimum_budget.values, np.int64)
        return np.asarray(least[self.seen[rows]])

    def look(self, rows: Ints, estimates: Ints, has_draft: Bools) -> None:
        """Find out what is open to some teams, and whether their runs are over.

        Args:
            rows: (k,) teams.
            estimates: (k, 3) estimated tokens of the next prompts.
            has_draft: (k,) whether there is something to review.
        """
        ledger, least = self.ledger, self.settings.min_completion_tokens
        self.estimates[rows], self.has_draft[rows] = estimates, has_draft
        self.open_actions(rows)
        possible = rules.can_go_on(ledger, rows, estimates, self.self_eval, least)
        possible[:, CRITIC] &= has_draft
        closed = ledger.cut[rows]
        closed[:, CRITIC] |= ~has_draft  # without a draft there is nothing to review
        late = np.where(self.steps[rows] >= self.max_steps, OUT_OF_STEPS, NO_REASON)
        reason = np.where(possible.any(axis=1), late, OUT_OF_BUDGET)
        reason = np.where(closed.all(axis=1), ALL_CUT, reason)
        reason = np.where(self.stopped[rows], STOPPED, reason)
        self.over[rows] = reason != NO_REASON
        self.reason[rows] = np.where(reason != NO_REASON, reason, self.reason[rows])

    def open_actions(self, rows: Ints) -> None:
        """Find the limits of calls and the open actions of some teams, after their ledgers."""
        ledger, settings = self.ledger, self.settings
        limits = rules.call_limits(
            ledger,
            rows,
            self.estimates[rows],
            self.max_tokens,
            self.self_eval,
            settings.min_completion_tokens,
        )
        has_draft = self.has_draft[rows]
        limits[:, CRITIC] *= has_draft[:, None]
        self.limits[rows] = limits
        moved = rules.movable(ledger, rows, settings.reallocation_share)
        self.mask[rows] = rules.action_mask(limits, has_draft, ledger.cut[rows], moved)

    @property
    def truncated(self) -> Bools:
        """(n,) whether a run ended because of its number of steps alone."""
        return np.asarray(self.over & (self.reason == OUT_OF_STEPS))

    def decide(self, rows: Ints, actions: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Carry out the part of decisions that needs no call.

        Args:
            rows: (k,) teams.
            actions: (k,) 0-15; one that is not open does nothing.

        Returns:
            The calls that the decisions ask for: (m,) rows, agents, sizes and limits of tokens.
        """
        about = np.where(actions < CUT, actions // len(SIZES), (actions - CUT) % len(AGENTS))
        self.agent[rows] = np.where(actions == STOP, self.agent[rows], about)
        legal = self.mask[rows, actions]
        self.was_open[rows] = legal
        self.steps[rows] += 1
        self.reason[rows] = np.where(legal, NO_REASON, REFUSED)
        self.stopped[rows] = legal & (actions == STOP)
        chosen = legal & (actions >= CUT) & (actions < REALLOCATE)
        if chosen.any():
            self._cut(rows[chosen], actions[chosen] - CUT)
        chosen = legal & (actions >= REALLOCATE) & (actions < STOP)
        if chosen.any():
            share = self.settings.reallocation_share
            rules.reallocate(self.ledger, rows[chosen], actions[chosen] - REALLOCATE, share)
        chosen = legal & (actions < CUT)
        calling, agents = rows[chosen], actions[chosen] // len(SIZES)
        sizes = actions[chosen] % len(SIZES)
        return calling, agents, sizes, self.limits[calling, agents, sizes]

    def _cut(self, rows: Ints, agents: Ints) -> None:
        rules.cut(self.ledger, rows, agents)
        called = self.progress.calls[rows, agents] > 0
        low = self.progress.last_roi[rows, agents] < self.settings.roi_threshold
        self.reason[rows] = np.where(called & low, LOW_ROI, BY_POLICY)

    def score(self, rows: Ints, agents: Ints, tokens: Ints, evidence: Evidence) -> None:
        """Score k calls that are charged.

        Args:
            rows: (k,) teams.
            agents: (k,) who was called.
            tokens: (k,) of prompt and answer.
            evidence: of the steps.
        """
        rules.record(self.progress, rows, agents, tokens, evidence, self.weights)

    def lose(self, rows: Ints, agents: Ints, tokens: Ints) -> None:
        """Count k calls that were charged and never answered; their teams stop."""
        progress = self.progress
        progress.calls[rows, agents] += 1
        progress.last_tokens[rows, agents] = tokens
        progress.last_delta[rows, agents] = progress.last_roi[rows, agents] = 0.0
        self.stopped[rows] = True

    def called(self, row: int, action: int) -> bool:
        """Return whether a team's last step was a call: `action` is one, and was open."""
        return bool(self.was_open[row]) and action < CUT

    def event(self, row: int, action: int, run_id: str, output: str) -> dict[str, Any]:
        """Return the event of a team's last step, as JSON values that WebSocket clients get.

        A reallocation and an action that was refused have none (an empty dict), unless the run
        ends with them. `iteration` counts the agent's calls; `status` is "cutoff" when the agent is
        cut off, "complete" at the end of the run.

        Args:
            row: a team.
            action: what was carried out.
            run_id: name of the run.
            output: answer of the agent.
        """
        ledger, progress, agent = self.ledger, self.progress, int(self.agent[row])
        is_open, over = bool(self.was_open[row]), bool(self.over[row])
        called = self.called(row, action)
        if not over and (not is_open or REALLOCATE <= action < STOP):
            return {}
        delta = float(progress.last_delta[row, agent]) if called else 0.0
        data = {
            "run_id": run_id,
            "agent": AGENTS[agent],
            "iteration": int(progress.calls[row, agent]),
            "tokens_used": int(progress.last_tokens[row, agent]) if called else 0,
            "tokens_remaining": int(ledger.remaining[row]),
            "quality_score": round(float(progress.score[row]), 4),
            "quality_delta": round(delta, 4),
            "roi": round(float(progress.last_roi[row, agent]), 6),
            "cumulative_tokens": int(ledger.spent[row]),
            "status": "complete" if over else "running" if called else "cutoff",
            "output_preview": output[:PREVIEW_CHARS],
        }
        return {"event": AGENT_STEP, "data": data}


def suggestion(budget: int, minimum: int, complexity: int) -> str:
    """Return the warning about a budget that is smaller than its task's minimum."""
    return (
        f"a {COMPLEXITIES[complexity]} task wants at least {minimum:,} tokens, the budget is "
        f"{budget:,}: raise it to {minimum:,}, or narrow the task (scope_down)"
    )
