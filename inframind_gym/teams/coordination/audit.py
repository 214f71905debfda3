"""Log of a query while it runs: decisions, failures, the overhead between agents."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.reports import AGENT_OF, Report
from inframind_gym.teams.coordination.state import CoordinationState
from inframind_gym.teams.llm.service import EventLog


class Audit:
    """Record of one query.

    Args:
        log: Where it is written as well.

    Attributes:
        decisions, failures: In order, as plain data.
        overheads_ms: Of decisions, without calls and waits.
        idle_since_s: When the last agent came back; waits move it on.
    """

    def __init__(self, log: EventLog) -> None:
        self.decisions: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.overheads_ms: list[float] = []
        self.idle_since_s = time.monotonic()
        self._log = log

    def decided(self, state: CoordinationState, action: int, **more: Any) -> None:
        """Write a decision and what it was based on."""
        told = {
            "iteration": int(state.iteration[0]),
            "action": rules.NAMES[action],
            "elapsed_ms": int(state.elapsed_ms[0]),
            "context_tokens": int(state.context[0]),
            "docs": int(state.docs[0]),
            "pending": int(state.pending[0]),
            **{key: value for key, value in more.items() if value},
        }
        self.decisions.append(told)
        names = [rules.NAMES[i] for i in np.flatnonzero(state.mask[0])]
        self._log.append("decision", {**told, "open": names})

    def resumed(self, limit_ms: float) -> None:
        """Note the time since the last agent came back: the supervisor and the graph."""
        took_ms = 1000.0 * (time.monotonic() - self.idle_since_s)
        self.overheads_ms.append(took_ms)
        if took_ms > limit_ms:
            self._log.append("slow_decision", {"overhead_ms": took_ms, "limit_ms": limit_ms})

    def came_back(self, report: Report, iteration: int) -> None:
        """Note that an agent is back, and its failure, if it failed."""
        self.idle_since_s = max(self.idle_since_s, report.ended_s)
        if not report.failure:
            return
        told = {
            "agent": AGENT_OF.get(report.agent, report.agent),
            "task": report.agent,
            "iteration": iteration,
            "failure": report.failure,
            "message": report.message,
            "after_s": round(report.ended_s - report.began_s, 3),
        }
        self.failures.append(told)
        self._log.append("agent_failed", told)
