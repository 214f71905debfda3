"""Runs of the application in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from inframind_gym.teams.llm.service import Retries
from inframind_gym.teams.token_budget.orchestrator import Orchestrator
from inframind_gym.teams.token_budget.order import Order


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


def make(log: Log, provider: Any = None, **order: Any) -> Orchestrator:
    """An orchestrator whose retries do not wait."""
    patient = Retries(most_attempts=3, first_wait_s=0.0, timeout_s=2.0)
    return Orchestrator(Order(task="Write.", **order), log, "run", provider, retries=patient)


def run(**order: Any) -> tuple[Orchestrator, Log, dict[str, Any]]:
    """One run on the simulated provider."""
    log = Log()
    orchestrator = make(log, **order)
    return orchestrator, log, asyncio.run(orchestrator.run())
