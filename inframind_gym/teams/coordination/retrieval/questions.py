"""Questions of the shipped corpus, with graded labels of the passages that answer them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from inframind_gym.configs import StrictModel, validate
from inframind_gym.files import read_objects

Complexity = Literal["simple", "medium", "complex"]


class Question(StrictModel):
    """A question with its answers' passages.

    Attributes:
        id: Its name.
        text: As a user would ask it.
        complexity: "simple" (one passage, in its words), "medium" (one passage, in other words,
            shortened or misspelt) or "complex" (needs two passages).
        half: "tune" or "test"; figures are those of the second.
        labels: Grades by passage: 2 answers it (or one of its parts), 1 helps.
    """

    id: str
    text: str
    complexity: Complexity
    half: Literal["tune", "test"]
    labels: dict[str, Annotated[int, Field(ge=1, le=2)]]

    @property
    def answers(self) -> set[str]:
        """Passages that answer it, or a part of it."""
        return {doc_id for doc_id, grade in self.labels.items() if grade == 2}

    @property
    def needed(self) -> int:
        """Passages that an answer needs."""
        return 2 if self.complexity == "complex" else 1


@lru_cache(maxsize=1)
def load_questions() -> tuple[Question, ...]:
    """Return all questions of the shipped corpus."""
    path = Path(__file__).with_name("questions.jsonl")
    return tuple(
        validate(item, Question, source=f"{path}:{number}") for number, item in read_objects(path)
    )
