"""A guard of tests: a pool of tokens with a hard ceiling."""

from __future__ import annotations

from inframind_gym.teams.llm import BudgetError, Grant, LLMRequest, LLMResponse, Spent


class TokenCeiling:
    """Reserves a prompt's estimate and as much of the answer as the pool has left."""

    def __init__(self, ceiling_tokens: int, refuses: str = "") -> None:
        self.ceiling_tokens = ceiling_tokens
        self.refuses = refuses  # an agent, whatever is left
        self.used_tokens = self.lost_tokens = self.reserved_tokens = 0

    def reserve(self, request: LLMRequest, agent: str) -> Grant:
        taken = self.used_tokens + self.lost_tokens + self.reserved_tokens
        left = max(0, self.ceiling_tokens - taken)
        answer = min(request.max_tokens, left - request.prompt_tokens_estimate)
        if answer < min(16, request.max_tokens) or agent == self.refuses:
            raise BudgetError(f"{agent}: refused, {left} of {self.ceiling_tokens} are left.")
        grant = Grant(request.prompt_tokens_estimate + answer, answer)
        self.reserved_tokens += grant.tokens
        return grant

    def settle(
        self, grant: Grant, agent: str, response: LLMResponse | None, spent: Spent = "nothing"
    ) -> None:
        self.reserved_tokens -= grant.tokens
        if response is not None:
            self.used_tokens += response.total_tokens
        elif spent == "unknown":
            self.lost_tokens += grant.tokens
