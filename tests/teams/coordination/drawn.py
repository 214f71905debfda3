"""A team whose agents answer as the environment draws them: model and search in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import AGENT_OF
from inframind_gym.teams.coordination.retrieval import RRF
from inframind_gym.teams.coordination.rules import FAILURES, CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    COMPLEXITIES,
    ISSUES,
    SEVERITIES,
    STRATEGIES,
    CoordinationSettings,
    Document,
)
from inframind_gym.teams.coordination.simulate import Pinned, SimulatedQuestion
from inframind_gym.teams.llm import Completion, LLMError, LLMRequest

ROW = np.zeros(1, np.int64)
QUERY = "the whole question"


class DrawnTeam:
    """One question. Texts go through prompts and parsers; numbers are those of the draw.

    Its exchanges are a message each, since the environment trims exchanges and the application
    messages.
    """

    model = "drawn"
    is_simulated = True

    def __init__(
        self,
        settings: CoordinationSettings,
        seed: int,
        *,
        noise: bool,
        conversation: float,
        pinned: Pinned | None,
    ) -> None:
        self.settings = settings
        self.question = SimulatedQuestion(settings, 1, noise=noise, conversation=conversation)
        key = seeding.np_random(seed)[0].integers(2**64, dtype=np.uint64)
        self.question.start(ROW, np.array([key], np.uint64), pinned)
        self.outcome = Outcome.empty(1)
        self._failing: set[str] = set()  # sub-tasks whose search fails
        self._known: list[str] = []  # documents that were found
        self._copies = self._prompt = self._completion = self._to_come = 0

    def history(self) -> list[dict[str, Any]]:
        """Messages of the exchanges before, the oldest first."""
        tokens = self.question.history[0]
        made = [
            {"role": "assistant", "content": "four" * n, "place": i} for i, n in enumerate(tokens)
        ]
        return made if tokens.any() else []

    def begin(self, action: int, state: CoordinationState) -> None:
        """Draw what comes of an action."""
        was_open = self.question.open[0].copy()
        self.outcome = outcome = self.question.act(ROW, np.array([action]), state)
        self._prompt, self._completion = int(outcome.prompt[0]), int(outcome.completion[0])
        self._copies, self._to_come = int(outcome.duplicates[0]), int(outcome.docs[0])
        width = int(state.pending[0]) if action >= rules.PARALLEL else 1
        asked = [f"part {i + 1}" for i in np.flatnonzero(was_open)][:width] or [QUERY]
        came = [f"part {i + 1}" for i in np.flatnonzero(was_open & ~self.question.open[0])]
        self._failing = set(asked) - set(came or [QUERY] * int(outcome.answered[0] > 0))

    # Model

    async def complete(self, request: LLMRequest) -> Completion:
        agent = str(request.context["agent"])
        question = str(request.context.get("question", ""))
        failed = self.outcome.failed[0] >= 0
        failed &= AGENT_OF.get(agent, agent) == AGENTS[int(self.outcome.failed[0])]
        if agent == "retrieval":
            failed = question in self._failing
        if agent == "draft" and self.outcome.drafted[0]:
            failed = False
        if failed and FAILURES[int(self.outcome.failure[0])] == "timeout":
            raise LLMError("timeout", "late", "unknown")
        text = self._text(agent, question)
        if failed:
            text = "" if agent == "draft" else "{"
        prompt, completion = self._prompt, self._completion
        self._prompt = self._completion = 0
        return Completion(text, prompt, completion, "stop", 0.0)

    async def aclose(self) -> None:
        pass

    def lost_tokens(self, _: str) -> int:
        prompt, self._prompt = self._prompt, 0
        return prompt

    def _text(self, agent: str, question: str) -> str:
        drawn = self.outcome
        types = [kind for i, kind in enumerate(ISSUES) for _ in range(int(drawn.issues[0, i]))]
        grades = [SEVERITIES[max(int(drawn.severity[0]) - 1, 0)], *["low"] * 20]  # the worst first
        made: dict[str, Any] = {
            "router": {
                "strategy": STRATEGIES[int(drawn.strategy[0])],
                "complexity": COMPLEXITIES[int(drawn.complexity[0])],
                "needs_planning": bool(drawn.needs_planning[0]),
                "confidence": float(drawn.confidence[0]),
            },
            "planner": {
                "sub_tasks": [f"part {i + 1}" for i in range(int(drawn.subtasks[0]))],
                "execution_order": "parallel",
                "estimated_complexity": "medium",
            },
            "retrieval": {"refined": question, "variants": []},
            "synthesis": {"order": [1], "missing": []},
            "validation": {
                "valid": bool(drawn.valid[0]),
                "confidence": float(drawn.verdict[0]),
                "issues": [
                    {"type": kind, "severity": grade, "description": "drawn"}
                    for kind, grade in zip(types, grades, strict=False)
                ],
                "suggested_action": "accept",
            },
        }
        return json.dumps(made[agent]) if agent in made else "An answer [1]."

    # Search

    def retrieve(
        self, query: str | Sequence[str], strategy: str = "hybrid", top_k: int = 10
    ) -> list[Document]:
        """Documents of one search; copies of known ones come last of all."""
        best = 1.0 if strategy == "vector" else 2.0 / (RRF + 1.0)
        text, documents = "x" * 4 * self.settings.tokens.passage, []
        for _ in range(top_k):
            is_copy = 0 < self._to_come <= self._copies
            self._to_come -= 1
            if not (is_copy and self._known):
                self._known.append(f"document {len(self._known)}")
            name = self._known[0] if is_copy else self._known[-1]
            score = float(self.outcome.score[0]) * best
            documents.append(Document(doc_id=name, text=text, source=name, score=score))
        return documents
