"""Runs of the application in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from inframind_gym.teams.llm import LLMRequest, LLMResponse
from inframind_gym.teams.token_budget.app import Orchestrator, Order

STEP = {  # keys of an event of a step
    *("run_id", "agent", "iteration", "status", "tokens_used", "tokens_remaining", "roi"),
    *("quality_score", "quality_delta", "cumulative_tokens", "output_preview"),
}


class Log:
    """Events in a list, and how the run was finished."""

    run_id = "run"

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
    return Orchestrator(Order(task="Write.", **order), log, provider)


def run(provider: Any = None, **order: Any) -> tuple[Log, dict[str, Any]]:
    """One run, on the simulated provider without another; returns its log and its summary."""
    log = Log()
    return log, asyncio.run(make(log, provider, **order).run())


class Model:
    """A way to a model that a function answers in `wait_s`, with the `requests` that came."""

    model = "stub"
    is_simulated = False

    def __init__(
        self, answer: Callable[[LLMRequest], LLMResponse] | None = None, wait_s: float = 0.0
    ) -> None:
        self.requests: list[LLMRequest] = []
        self._answer, self._wait_s = answer or sensible, wait_s

    async def complete(self, request: LLMRequest) -> LLMResponse:
        self.requests.append(request)
        await asyncio.sleep(self._wait_s)
        return self._answer(request)

    async def aclose(self) -> None:
        pass


def agent_of(request: LLMRequest) -> str:
    return str(request.context["agent"])


def sensible(request: LLMRequest) -> LLMResponse:
    """An answer of the asked form, of a tenth of the tokens that are allowed."""
    texts = {
        "preflight": '{"complexity": "simple"}',
        "self_eval": 'So: {"completeness":70,"clarity":80,"actionability":60,"resolved":[1]}',
        "planner": '{"goal": "g", "steps": ["s"], "sections": ["One", "Two"], "risks": []}',
        "executor": "## One\ntext\n\n## Other\ntext",
        "critic": '{"flags": [{"issue": "too short", "points": 9}, {"issue": "", "points": 1}]}',
    }
    tokens = request.prompt_tokens_estimate
    return LLMResponse(texts[agent_of(request)], tokens, max(request.max_tokens // 10, 1))
