"""The budget controller: a hard ceiling that every call passes before it is sent."""

from __future__ import annotations

import threading

import numpy as np

from inframind_gym.teams.llm.guard import Grant
from inframind_gym.teams.llm.types import BudgetError, LLMRequest, LLMResponse, Spent
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.settings import AGENTS
from inframind_gym.teams.token_budget.state import TeamState

SELF_EVAL = "self_eval"
PREFLIGHT = "preflight"
_LEAST_OVERHEAD = 8  # tokens of an answer to pre-flight or rating
_MOST_TOKENS = 10**12  # of a call, whatever a server says
_ROW = np.zeros(1, np.int64)


class BudgetController:
    """Ledger of one run behind the guard of its `LLMService`.

    A call reserves the estimate of its prompt and all tokens of its answer, and an agent's call
    the rating that follows; what other calls under way have reserved is not there. So the ceiling
    is exceeded by errors in estimates of prompts alone, however many calls run at once, unless a
    model ignores its limit; that is charged as well. Once the ceiling is exceeded nothing is sent,
    not even the rating that tokens are held for. An attempt whose outcome is unknown counts as
    spent in full.

    Args:
        state: one team; its ledger is written here alone.

    Attributes:
        reserved: tokens of calls under way.
        held: tokens kept for ratings of calls that were answered.
        lost: tokens of attempts whose outcome is unknown.
    """

    def __init__(self, state: TeamState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self.reserved = self.held = self.lost = 0

    @property
    def tokens_used(self) -> int:
        """Tokens that are charged."""
        return int(self._state.ledger.spent[0])

    @property
    def tokens_remaining(self) -> int:
        """Tokens that may still be reserved; 0 after an overshoot."""
        taken = self.reserved + self.held
        return max(0, int(self._state.ledger.remaining[0]) - taken)

    def reserve(self, request: LLMRequest, agent: str) -> Grant:
        """Set aside what an attempt may spend.

        Raises:
            BudgetError: it does not fit, or the agent was cut.
        """
        prompt = int(request.context.get("prompt_tokens", request.prompt_tokens_estimate))
        with self._lock:
            remaining = int(self._state.ledger.remaining[0]) - self.reserved - self.held
            least = _LEAST_OVERHEAD
            if agent in AGENTS:
                least = self._state.settings.min_completion_tokens
                remaining -= self._state.self_eval
                if self._state.ledger.cut[0, AGENTS.index(agent)]:
                    raise BudgetError(f"{agent}: was cut off and is not called again.")
            is_kept = agent == SELF_EVAL and self._state.ledger.remaining[0] >= 0
            hold = min(self.held, self._state.self_eval) if is_kept else 0
            room = max(remaining + hold, hold) - prompt
            answer = min(request.max_tokens, room)
            if answer < min(least, request.max_tokens):
                raise BudgetError(
                    f"{agent}: the call needs {prompt} tokens for its prompt and at least {least} "
                    f"for its answer; {max(remaining + hold, 0)} of "
                    f"{int(self._state.ledger.budget[0])} are left to it."
                )
            self.held -= hold
            self.reserved += prompt + answer
        return Grant(prompt + answer, answer)

    def settle(
        self, grant: Grant, agent: str, response: LLMResponse | None, spent: Spent = "nothing"
    ) -> None:
        """Charge what an attempt has spent, in place of its reservation."""
        tokens = grant.tokens if spent == "unknown" else 0
        if response is not None:
            tokens = min(max(response.total_tokens, 0), _MOST_TOKENS)
        ledger = self._state.ledger
        with self._lock:
            self.reserved -= grant.tokens
            self.lost += tokens if response is None else 0
            if agent not in AGENTS:
                ledger.overhead[0] += tokens
                return
            self.held += self._state.self_eval if response is not None else 0
            at = np.array([AGENTS.index(agent)])
            rules.spend(ledger, _ROW, at, np.array([tokens]))

    def release(self) -> None:
        """Give back what is held for ratings that will not be made."""
        with self._lock:
            self.held = 0
