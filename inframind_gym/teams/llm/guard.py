"""Limits that a call must pass before it is sent: reserve what it may spend, settle what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inframind_gym.teams.llm.types import LLMRequest, LLMResponse, Spent


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
