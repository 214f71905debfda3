"""Answers of models read back: contracts from JSON, the sources that a text cites."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from inframind_gym.configs import StrictModel
from inframind_gym.teams.coordination.contracts import Document, Plan, Route, Validation
from inframind_gym.teams.token_budget.agents import json_object

_CITED: Final = re.compile(r"\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")
_CITED_AFTER: Final = re.compile(r"([ \t]*)" + _CITED.pattern)  # with the blanks before it
ModelT = TypeVar("ModelT", bound=StrictModel)


class GarbageError(ValueError):
    """An answer is not of the form that was asked for."""


def read_route(text: str) -> Route:
    """Return the router's decision.

    Raises:
        GarbageError: The answer holds none.
    """
    return _read(Route, text)


def read_plan(text: str, query: str, most: int) -> Plan:
    """Return the planner's plan, of `most` sub-tasks at most.

    Raises:
        GarbageError: The answer holds none.
    """
    found = json_object(text) or {}
    tasks = found.get("sub_tasks")
    if isinstance(tasks, list):
        texts = [" ".join(task.split())[:400] for task in tasks if _is_text(task)]
        found["sub_tasks"] = texts[:most]
    return _checked(Plan, {**found, "original_query": query})


def read_queries(text: str) -> list[str]:
    """Return rewritten forms of a query, three at most.

    Raises:
        GarbageError: The answer holds none.
    """
    found = json_object(text) or {}
    variants = found.get("variants")
    listed = [found.get("refined"), *(variants if isinstance(variants, list) else [])]
    queries = list(dict.fromkeys(each.strip() for each in listed if _is_text(each)))
    if not queries:
        raise GarbageError(f"no queries in {text[:200]!r}")
    return queries[:3]


def read_merge(text: str, documents: int, sub_tasks: int) -> tuple[list[int], list[int]]:
    """Return places of documents, the most useful first, and places of unanswered sub-tasks.

    Documents that the answer leaves out come last, so that nothing that was found is lost.

    Args:
        text: The answer.
        documents, sub_tasks: How many there are.

    Raises:
        GarbageError: The answer holds no order.
    """
    found = json_object(text) or {}
    order, missing = found.get("order"), found.get("missing")
    if not isinstance(order, list):
        raise GarbageError(f"no order in {text[:200]!r}")
    named = [n - 1 for n in order if type(n) is int and 1 <= n <= documents]
    listed = missing if isinstance(missing, list) else []
    unanswered = sorted({n - 1 for n in listed if type(n) is int and 1 <= n <= sub_tasks})
    return list(dict.fromkeys([*named, *range(documents)])), unanswered


def read_answer(text: str) -> str:
    """Return the text of an answer.

    Raises:
        GarbageError: There is none.
    """
    if not text.strip():
        raise GarbageError("the answer is empty")
    return text.strip()


def read_validation(text: str) -> Validation:
    """Return the validator's verdict.

    Raises:
        GarbageError: The answer holds none.
    """
    return _read(Validation, text)


def cited(content: str, documents: Sequence[Document]) -> tuple[str, tuple[Document, ...]]:
    """Return an answer with its sources numbered anew, and the documents that it cites.

    Numbers that name no document are taken out, so that every number in the text has its source.
    """
    order: dict[int, int] = {}

    def renumber(match: re.Match[str]) -> str:
        numbers = [int(part) for part in match[2].split(",")]
        known = [number for number in numbers if 1 <= number <= len(documents)]
        marks = [str(order.setdefault(number, len(order) + 1)) for number in known]
        return f"{match[1]}[{', '.join(marks)}]" if marks else ""

    text = _CITED_AFTER.sub(renumber, content).strip()
    return text or content, tuple(documents[number - 1] for number in order)


def with_ids(content: str, documents: Sequence[Document]) -> str:
    """Return an answer with the names of its sources in place of their numbers."""

    def name(match: re.Match[str]) -> str:
        numbers = [int(part) for part in match[1].split(",")]
        known = [documents[n - 1].doc_id for n in numbers if 1 <= n <= len(documents)]
        return "".join(f"[{doc_id}]" for doc_id in known) or match[0]

    return _CITED.sub(name, content)


def _read(model: type[ModelT], text: str) -> ModelT:
    return _checked(model, json_object(text) or {})


def _checked(model: type[ModelT], found: Mapping[str, Any]) -> ModelT:
    """Validate the fields that a contract has; others are left out."""
    try:
        return model.model_validate({k: v for k, v in found.items() if k in model.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise GarbageError(f"no {model.__name__.lower()}: {place}: {first['msg']}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
