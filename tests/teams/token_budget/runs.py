"""Runs of the application in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from inframind_gym.teams.llm import (
    BudgetError,
    Completion,
    Grant,
    LLMRequest,
    LLMResponse,
    Spent,
)
from inframind_gym.teams.token_budget.app import Orchestrator, Order

STEP = {  # keys of an event of a step
    *("run_id", "agent", "iteration", "status", "tokens_used", "tokens_remaining", "roi"),
    *("quality_score", "quality_delta", "cumulative_tokens", "output_preview"),
}


class Log:
    """Events in a list, and how the run was finished."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.status: str | None = None
        self.summary: dict[str, Any] = {}

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        self.events.append((kind, dict(data)))
        return len(self.events)

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        self.status, self.summary = status, dict(summary)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]


def make(log: Any, provider: Any = None, **order: Any) -> Orchestrator:
    """An orchestrator of one task."""
    return Orchestrator(Order(task="Write.", **order), log, "run", provider)


def run(**order: Any) -> tuple[Orchestrator, Log, dict[str, Any]]:
    """One run on the simulated provider."""
    log = Log()
    orchestrator = make(log, **order)
    return orchestrator, log, asyncio.run(orchestrator.run())


class Model:
    """A way to a model that a function answers in `wait_s`, with the `requests` that came."""

    model = "stub"
    is_simulated = False

    def __init__(
        self, answer: Callable[[LLMRequest], Completion] | None = None, wait_s: float = 0.0
    ) -> None:
        self.requests: list[LLMRequest] = []
        self._answer, self._wait_s = answer or sensible, wait_s

    async def complete(self, request: LLMRequest) -> Completion:
        self.requests.append(request)
        await asyncio.sleep(self._wait_s)
        return self._answer(request)

    async def aclose(self) -> None:
        pass


def agent_of(request: LLMRequest) -> str:
    return str(request.context["agent"])


def sensible(request: LLMRequest) -> Completion:
    """An answer of the asked form, of a tenth of the tokens that are allowed."""
    texts = {
        "preflight": '{"complexity": "simple"}',
        "self_eval": 'So: {"completeness":70,"clarity":80,"actionability":60,"resolved":[1]}',
        "planner": '{"goal": "g", "steps": ["s"], "sections": ["One", "Two"], "risks": []}',
        "executor": "## One\ntext\n\n## Other\ntext",
        "critic": '{"flags": [{"issue": "too short", "points": 9}, {"issue": "", "points": 1}]}',
    }
    tokens = request.prompt_tokens_estimate
    return Completion(texts[agent_of(request)], tokens, max(request.max_tokens // 10, 1))


class TokenCeiling:
    """A guard that reserves a prompt's estimate, and of the answer what the pool has left."""

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
