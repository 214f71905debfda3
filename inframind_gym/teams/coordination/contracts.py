"""Data that agents of the coordination team hand to one another."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from inframind_gym.configs import StrictModel

Strategy = Literal["vector", "hybrid", "graphrag"]
IssueType = Literal["hallucination", "missing_source", "inaccuracy"]
Severity = Literal["low", "medium", "high"]


class Document(StrictModel):
    """A passage that was retrieved.

    Attributes:
        doc_id: Name of the passage in its corpus.
        text: Its text.
        source: Where it comes from: a file and a heading.
        score: Of the strategy that found it, the higher the better; scales of strategies differ.
    """

    doc_id: str
    text: str
    source: str
    score: float


class Issue(StrictModel):
    """Something that is wrong with an answer.

    Attributes:
        type: "hallucination" (no source says so), "missing_source" (a claim without the source
            that it needs), or "inaccuracy" (a source says otherwise).
        severity: "low", "medium" or "high".
        description: The claim, and what is wrong with it.
    """

    type: IssueType
    severity: Severity
    description: str = Field(min_length=1)
