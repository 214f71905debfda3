"""Coordinators in memory: a small corpus, models that a function answers."""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from inframind_gym.files import read_objects
from inframind_gym.teams.coordination.app import MultiAgentCoordinator
from inframind_gym.teams.coordination.retrieval import Corpus, Passage, Retriever, rewrite, terms
from inframind_gym.teams.coordination.settings import Complexity
from inframind_gym.teams.llm import LLMRequest, LLMResponse
from tests.teams.token_budget import runs

QUESTIONS = Path(__file__).with_name("questions.jsonl")
SIMPLE = "What is a block?"
COMPLEX = "Compare alpha servers with beta servers and explain how queues grow"
CORPUS = Corpus(
    "small",
    tuple(
        Passage(f"a.md#{name}", name, text, f"a.md: {name}")
        for name, text in {
            "block": "A block holds the keys and values of 16 tokens. Blocks are handed out.",
            "alpha": "Alpha servers are fast and cost two dollars an hour in the tests.",
            "beta": "Beta servers are slow and cost one dollar an hour in the tests.",
            "queue": "Queues grow when more requests arrive than servers can answer.",
            "cache": "The cache keeps prefixes, so that equal beginnings are read once.",
        }.items()
    ),
)


class Question(BaseModel):
    """A question of the shipped corpus, with graded labels of the passages that answer it."""

    id: str
    text: str
    complexity: Complexity
    half: Literal["tune", "test"]  # figures are those of the second
    labels: dict[str, Annotated[int, Field(ge=1, le=2)]]  # 2: answers it, or a part; 1: helps

    @property
    def answers(self) -> set[str]:
        """Passages that answer it, or a part of it."""
        return {doc_id for doc_id, grade in self.labels.items() if grade == 2}

    @property
    def needed(self) -> int:
        """Passages that an answer needs."""
        return 2 if self.complexity == "complex" else 1


@cache
def load_questions() -> tuple[Question, ...]:
    """All questions of the shipped corpus."""
    return tuple(Question.model_validate(item) for _, item in read_objects(QUESTIONS))


def recall(retriever: Retriever) -> tuple[float, float]:
    """Share of the needed passages among the first four, plain and rewritten, of the test half."""
    shares = []
    for question in load_questions():
        if question.half == "test":
            forms = ([question.text], rewrite(question.text, retriever.corpus))
            found = ({d.doc_id for d in retriever.retrieve(f, "hybrid", 4)} for f in forms)
            shares.append([min(len(question.answers & f) / question.needed, 1.0) for f in found])
    plain, rewritten = np.mean(shares, axis=0)
    return float(plain), float(rewritten)


class HashedWords:
    """An encoder without weights: stems and letters of words, hashed; rare words weigh more."""

    name = "hashed"

    def __init__(self) -> None:
        self._rarity: dict[str, float] = {}

    def passages(self, texts: Sequence[str]) -> Any:
        counts = Counter(feature for text in texts for feature in set(self._features(text)))
        self._rarity = {f: math.log(1 + len(texts) / n) for f, n in counts.items()}
        return np.stack([self.query(text) for text in texts])

    def query(self, text: str) -> Any:
        vector = np.zeros(1024, np.float32)
        for feature, count in Counter(self._features(text)).items():
            place = zlib.crc32(feature.encode())
            weight = self._rarity.get(feature, 0.0) * (1 + math.log(count))
            vector[(place >> 1) % 1024] += weight if place & 1 else -weight
        return vector / np.maximum(np.linalg.norm(vector, axis=-1, keepdims=True), 1e-9)

    def _features(self, text: str) -> list[str]:
        found = terms(text)
        return found + [f"#{t[i : i + 4]}" for t in found for i in range(len(t) - 3) if len(t) > 4]


def agent_of(prompt: str) -> str:
    """The agent that a prompt is for, by the first words of its task."""
    task = prompt.rpartition("\nTask: ")[2]
    starts = {
        "Route": "router",
        "Split": "planner",
        "Rewrite": "retrieval",
        "Merge": "synthesis",
        "Answer": "draft",
        "Check": "validation",
    }
    return next(agent for start, agent in starts.items() if task.startswith(start))


ANSWERS: dict[str, dict[str, Any]] = {  # of the asked forms
    "router": {
        "strategy": "vector",
        "complexity": "simple",
        "needs_planning": False,
        "confidence": 0.9,
    },
    "planner": {
        "sub_tasks": ["alpha servers", "beta servers", "how queues grow"],
        "execution_order": "parallel",
        "estimated_complexity": "high",
    },
    "retrieval": {"refined": "", "variants": ["other words"]},
    "synthesis": {"order": [2, 1], "missing": []},
    "validation": {"valid": True, "confidence": 0.8, "issues": [], "suggested_action": "accept"},
}


def sensible(prompt: str) -> str:
    """An answer of the asked form."""
    agent, made = agent_of(prompt), dict[str, Any]()
    if agent == "router" and "alpha servers with" in prompt:
        made = {"strategy": "hybrid", "complexity": "complex", "needs_planning": True}
    elif agent == "retrieval":
        made = {"refined": prompt.rpartition("Question: ")[2].partition("\n")[0]}
    return answer_of(agent, made) or "A block holds 16 tokens [1]."


def answer_of(agent: str, made: dict[str, Any]) -> str:
    """An answer with some other values; "" where it is free text."""
    return json.dumps(ANSWERS[agent] | made) if agent in ANSWERS else ""


class Model(runs.Model):
    """A way to a model that a function of the prompt answers, in real time.

    Attributes:
        calls: (agent, begin, end) of every call, by the loop's clock.
    """

    def __init__(self, answer: Callable[[str], str] = sensible, wait_s: float = 0.0) -> None:
        def complete(request: LLMRequest) -> LLMResponse:
            text = answer(request.user)
            return LLMResponse(text, len(request.user) // 4, len(text) // 4)

        super().__init__(complete, wait_s)
        self.calls: list[tuple[str, float, float]] = []

    async def complete(self, request: LLMRequest) -> LLMResponse:
        began_s = asyncio.get_running_loop().time()
        completion = await super().complete(request)
        self.calls.append((agent_of(request.user), began_s, asyncio.get_running_loop().time()))
        return completion


def make(provider: Any = None, **arguments: Any) -> MultiAgentCoordinator:
    """A coordinator over the small corpus; simulated without a provider."""
    given: dict[str, Any] = {
        "searcher": Retriever(CORPUS, HashedWords()),
        "backend": "simulated",
        **arguments,
    }
    coordinator = MultiAgentCoordinator(provider=provider, **given)
    coordinator.warm_up()
    return coordinator
