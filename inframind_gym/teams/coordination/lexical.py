"""Complexity, strategy and parts of a question by its words alone: no model, microseconds.

The hint that the supervisor has before the router has spoken, and the answers of the simulated
router and planner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from inframind_gym.teams.coordination.settings import Complexity, Plan, Route, Strategy

COMPLEXITIES: Final[tuple[Complexity, ...]] = get_args(Complexity)
_MOST_ASKED_CHARS: Final = 300  # of a question before, in one that refers to it
_COMPARE: Final = re.compile(
    r"\b(?:compar\w+|contrast|versus|vs\.?|differ\w*|trade-?offs?|pros and cons)\b", re.I
)
_RELATION: Final = re.compile(
    r"\b(?:relat\w+|connect\w*|depend\w*|affects?|influence\w*|interact\w*|leads? to|between|"
    r"consequences?)\b",
    re.I,
)
_WHY: Final = re.compile(r"\b(?:why|how|explain|describe|reasons?|steps)\b", re.I)
_EXACT: Final = re.compile(r"\"[^\"]+\"|`[^`]+`|\b\w*[_\d]\w*\b|(?<!\w)--\w+")
# Where a question goes on with another one.
_CLAUSE: Final = re.compile(
    r"\?\s+|;\s*|,?\s+and\s+(?=(?:explain|describe|say|tell|how|why|what|when|which|who|where|give|"
    r"name|list|compare)\b)|,\s+(?:then|also)\s+",
    re.I,
)
_PAIR: Final = re.compile(
    r"^(?:please\s+)?(?:(?:compare|contrast)\s+|what (?:is|are) the differences? between\s+|"
    r"(?:what )?differences? between\s+|how do(?:es)?\s+)?(?P<head>.*?\b(?:of|for|in|between)\s+)?"
    r"(?P<one>[\w./-]+(?:\s[\w./-]+){0,3}?)\s+(?:vs\.?|versus|with|and|to|or|from)\s+"
    r"(?P<two>[\w./-]+(?:\s[\w./-]+){0,3}?)(?P<tail>\s[\w\s./-]*)?$",
    re.I,
)
_BACK: Final = re.compile(
    r"\b(?:it|its|they|them|their|those|that one|this|these|earlier|above|before|previous(?:ly)?|"
    r"you said|again|same|each|both)\b",
    re.I,
)


def complexity_of(query: str) -> int:
    """Return a place in COMPLEXITIES: comparisons and several questions are complex."""
    words, parts = len(query.split()), len(_clauses(query))
    if _COMPARE.search(query) or parts > 1 or words > 35:
        return 2
    return 1 if _WHY.search(query) or _RELATION.search(query) or words > 14 else 0


def refers_back(query: str, history: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a query names something that was said before."""
    return bool(history) and _BACK.search(query) is not None


def in_context(question: str, history: Sequence[Mapping[str, Any]]) -> str:
    """Return a question after the one before, where it refers to what was said."""
    asked = [m["content"] for m in history if m["role"] == "user"]
    if not asked or not refers_back(question, history):
        return question
    return f"{asked[-1][:_MOST_ASKED_CHARS]} {question}"


def route(query: str) -> Route:
    """Return a route by the words of a query."""
    complexity = complexity_of(query)
    strategy: Strategy = "vector"
    if _RELATION.search(query) and complexity > 0:
        strategy = "graphrag"
    elif _EXACT.search(query) or complexity == 2:
        strategy = "hybrid"
    return Route(
        strategy=strategy,
        complexity=COMPLEXITIES[complexity],
        needs_planning=complexity == 2,
        confidence=0.8 if complexity != 1 else 0.6,
    )


def plan(query: str, most: int = 3) -> Plan:
    """Return the parts of a query: one for each question, two for a comparison."""
    tasks: list[str] = []
    for clause in _clauses(query):
        pair = _PAIR.match(clause.rstrip("?. ")) if _COMPARE.search(clause) else None
        if pair is None:
            named = f"{clause.rstrip('?. ')}: {', '.join(tasks)}" if tasks else clause
            tasks.append(named if _BACK.search(clause) else clause)
            continue
        head, tail = (pair["head"] or "").strip(), (pair["tail"] or "").strip()
        for side in pair.group("one", "two"):
            ends = "" if side.lower().endswith(tail.lower()) else tail
            tasks.append(" ".join(filter(None, (head, side, ends))))
    return Plan(
        original_query=query,
        sub_tasks=tuple(task[:400] for task in dict.fromkeys(tasks))[:most],
        execution_order="parallel",
        estimated_complexity=("low", "medium", "high")[complexity_of(query)],
    )


def _clauses(query: str) -> list[str]:
    return [part.strip() for part in _CLAUSE.split(query) if part.strip(" ?.")] or [query]
