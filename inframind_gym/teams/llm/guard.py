"""Limits that a call must pass before it is sent: reserve what it may spend, settle what it did."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from inframind_gym.errors import ConfigError
from inframind_gym.teams.llm.types import BudgetError, LLMRequest, LLMResponse, Spent


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to send one attempt.

    Attributes:
        tokens: Tokens that are reserved, prompt and answer.
        max_tokens: Most tokens of the answer: what was asked for, or less.
    """

    tokens: int
    max_tokens: int


class Guard(Protocol):
    """A budget. Both methods are called from several tasks and threads at once."""

    def reserve(self, request: LLMRequest, agent: str) -> Grant:
        """Set aside what an attempt may spend, before it is sent.

        Raises:
            BudgetError: It does not fit.
        """
        ...

    def settle(
        self, grant: Grant, agent: str, response: LLMResponse | None, spent: Spent = "nothing"
    ) -> None:
        """Replace a reservation by what was spent.

        Args:
            grant: What `reserve` returned.
            agent: As for `reserve`.
            response: The answer; None: there is none.
            spent: Where there is none: whether the server may have generated tokens all the same.
        """
        ...


class TokenCeiling:
    """A pool of tokens with a hard ceiling.

    An attempt reserves the estimate of its prompt and all tokens of its answer; where the pool has
    fewer left, the answer is cut to what fits. So whatever runs at once, the ceiling is exceeded
    by the errors of prompt estimates alone (and by a model that ignores its limit). An attempt
    whose outcome is unknown counts as spent in full.

    Args:
        ceiling_tokens: Size of the pool.
        least_answer_tokens: Below this limit of an answer a call is refused.

    Attributes:
        used_tokens: Tokens of answers and prompts that servers reported.
        lost_tokens: Reservations of attempts whose outcome is unknown.
        reserved_tokens: Reservations of attempts under way.
    """

    def __init__(self, ceiling_tokens: int, least_answer_tokens: int = 16) -> None:
        if ceiling_tokens < 1 or least_answer_tokens < 1:
            raise ConfigError("ceiling_tokens and least_answer_tokens must be at least 1.")
        self.ceiling_tokens = ceiling_tokens
        self.least_answer_tokens = least_answer_tokens
        self.used_tokens = self.lost_tokens = self.reserved_tokens = 0
        self._lock = threading.Lock()

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still be reserved; 0 after an overshoot."""
        taken = self.used_tokens + self.lost_tokens + self.reserved_tokens
        return max(0, self.ceiling_tokens - taken)

    def reserve(self, request: LLMRequest, agent: str) -> Grant:
        """See `Guard`."""
        prompt_tokens = request.prompt_tokens_estimate
        with self._lock:
            answer_tokens = min(request.max_tokens, self.remaining_tokens - prompt_tokens)
            if answer_tokens < min(self.least_answer_tokens, request.max_tokens):
                raise BudgetError(
                    f"{agent}: the call needs {prompt_tokens} tokens for its prompt and at least "
                    f"{self.least_answer_tokens} for its answer; {self.remaining_tokens} of "
                    f"{self.ceiling_tokens} are left."
                )
            grant = Grant(prompt_tokens + answer_tokens, answer_tokens)
            self.reserved_tokens += grant.tokens
        return grant

    def settle(
        self, grant: Grant, agent: str, response: LLMResponse | None, spent: Spent = "nothing"
    ) -> None:
        """See `Guard`."""
        with self._lock:
            self.reserved_tokens -= grant.tokens
            if response is not None:
                self.used_tokens += response.total_tokens
            elif spent == "unknown":
                self.lost_tokens += grant.tokens
