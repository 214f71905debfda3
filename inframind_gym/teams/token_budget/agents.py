"""Planner, executor and critic: a prompt from what there is, an answer read back. No state.

Each agent is one call of a model with a template and the product so far; no tools, no memory.
Answers of models are read leniently: one that is not of the asked form costs its tokens and
changes as little as possible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json

DEFAULT_SECTIONS: Final = ("Summary", "Approach", "Details", "Next steps")
PLAN_PARTS: Final = ("goal", "steps", "sections", "risks")  # checklist of a plan
CRITERIA: Final = ("completeness", "clarity", "actionability")
MOST_FLAGS: Final = 5  # of one review
_MOST_ANSWER_CHARS: Final = 1_000_000
_WORDS_PER_TOKEN: Final = 0.6  # of English text 0.75; what is left keeps answers from being cut


class Prompt(NamedTuple):
    """Question to an agent.

    Attributes:
        system, user: messages.
        schema: JSON schema of the answer; None: free text.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None


@dataclass(slots=True)
class Flag:
    """A defect that the critic has found, and the points of quality it says it costs."""

    issue: str
    points: float
    is_resolved: bool = False


@dataclass(slots=True)
class Product:
    """Work of the team so far; agents see it, and nothing else.

    Attributes:
        task: of the user.
        is_narrowed: whether only the core of the task is wanted.
        plan: text; empty before there is one.
        plan_share: share of PLAN_PARTS that the plan has.
        sections: headings that a draft is to have.
        draft: text; empty before there is one.
        flags: of the critic, in order.
    """

    task: str
    is_narrowed: bool = False
    plan: str = ""
    plan_share: float = 0.0
    sections: tuple[str, ...] = DEFAULT_SECTIONS
    draft: str = ""
    flags: list[Flag] = field(default_factory=list)

    @property
    def open_flags(self) -> list[tuple[int, Flag]]:
        """Flags that are not resolved, with their numbers from 1."""
        return [(i, flag) for i, flag in enumerate(self.flags, 1) if not flag.is_resolved]

    @property
    def checklist(self) -> float:
        """Share of the structure that is there: parts of the plan, or sections of the draft."""
        if not self.draft:
            return self.plan_share if self.plan else float("nan")
        lines = [line.strip("#*: ").lower() for line in self.draft.splitlines()]
        return sum(title.lower() in lines for title in self.sections) / len(self.sections)


def planner(product: Product, max_tokens: int) -> Prompt:
    """Return the planner's prompt."""
    return Prompt(
        "You plan how a task is answered; you do not answer it. Return one JSON object: goal "
        "(text), steps (list), sections (list of four headings of the answer), risks (list)."
        + _length(max_tokens),
        _task(product) + _part("Earlier plan, to be improved", product.plan),
        {
            "type": "object",
            "properties": {
                "goal": {"type": "string"},
                **{part: _list_of({"type": "string"}) for part in PLAN_PARTS[1:]},
            },
            "required": list(PLAN_PARTS),
        },
    )


def executor(product: Product, max_tokens: int) -> Prompt:
    """Return the executor's prompt: for a draft, or for its revision."""
    flags = "\n".join(f"{number}. {flag.issue}" for number, flag in product.open_flags)
    system = (
        "You write the answer to a task in Markdown, with exactly these headings (##): "
        f"{', '.join(product.sections)}."
    )
    if product.draft:
        system += " Return the whole answer, improved; mend every defect that is listed."
    user = _task(product) + _part("Plan", product.plan) + _part("Draft", product.draft)
    return Prompt(system + _length(max_tokens), user + _part("Defects", flags), None)


def critic(product: Product, max_tokens: int) -> Prompt:
    """Return the critic's prompt."""
    return Prompt(
        f"You review an answer. Return one JSON object: flags, a list of at most {MOST_FLAGS} "
        "defects, each with issue (text) and points (0-20, what mending it would add to a quality "
        "of 0-100). Return an empty list where there is no defect." + _length(max_tokens),
        _task(product) + _part("Answer", product.draft),
        {
            "type": "object",
            "properties": {
                "flags": _list_of(
                    {
                        "type": "object",
                        "properties": {"issue": {"type": "string"}, "points": {"type": "number"}},
                        "required": ["issue", "points"],
                    }
                )
            },
            "required": ["flags"],
        },
    )


def self_eval(product: Product) -> Prompt:
    """Return the prompt of a rating of the product, and of the flags that it resolves."""
    flags = "\n".join(f"{number}. {flag.issue}" for number, flag in product.open_flags)
    numbers: dict[str, Any] = {name: {"type": "number"} for name in CRITERIA}
    return Prompt(
        "Rate this output 0-100 on completeness, clarity, actionability. Return one JSON object "
        "with these three numbers, and resolved: the numbers of the listed defects that the "
        "output no longer has.",
        _task(product) + _part("Output", product.draft or product.plan) + _part("Defects", flags),
        {
            "type": "object",
            "properties": {**numbers, "resolved": _list_of({"type": "integer"})},
            "required": [*CRITERIA, "resolved"],
        },
    )


def preflight(task: str) -> Prompt:
    """Return the prompt that asks for the complexity of a task."""
    return Prompt(
        "Classify the task as simple, moderate or complex by the work that a good answer takes. "
        "Return one JSON object with the key complexity.",
        task,
        {
            "type": "object",
            "properties": {"complexity": {"enum": ["simple", "moderate", "complex"]}},
            "required": ["complexity"],
        },
    )


PROMPTS: Final = (planner, executor, critic)  # in the order of AGENTS


# Reading answers


def take_plan(product: Product, text: str) -> bool:
    """Put a plan into the product; returns whether it was of the asked form."""
    plan = json_object(text)
    product.plan = text
    product.plan_share = 0.0
    if plan is None:
        return False
    product.plan_share = sum(bool(plan.get(part)) for part in PLAN_PARTS) / len(PLAN_PARTS)
    titles = plan.get("sections")
    if isinstance(titles, list) and titles and all(isinstance(t, str) for t in titles):
        product.sections = tuple(title.strip("#*: ") for title in titles[:8])
    return True


def take_draft(product: Product, text: str) -> bool:
    """Put a draft into the product; an empty one is not taken."""
    if text.strip():
        product.draft = text
    return bool(text.strip())


def take_flags(product: Product, text: str) -> list[Flag] | None:
    """Put new flags into the product and return them; None if the answer was malformed."""
    found = json_object(text)
    listed = None if found is None else found.get("flags")
    if not isinstance(listed, list):
        return None
    flags = [
        Flag(str(one["issue"]), _between(one.get("points"), 0.0, 20.0) or 0.0)
        for one in listed[:MOST_FLAGS]
        if isinstance(one, dict) and one.get("issue")
    ]
    product.flags += flags
    return flags


def read_rating(text: str) -> tuple[float, list[int]] | None:
    """Return a rating (0-100) and the numbers of resolved flags; None if it was malformed."""
    found = json_object(text)
    if found is None:
        return None
    scores = [_between(found.get(name), 0.0, 100.0) for name in CRITERIA]
    if None in scores:
        return None
    numbers = found.get("resolved")
    listed = numbers if isinstance(numbers, list) else []
    resolved = [n for n in listed if isinstance(n, int) and not isinstance(n, bool)]
    return sum(score for score in scores if score is not None) / len(CRITERIA), resolved


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in an answer, with or without words around it; None: there is none."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or len(text) > _MOST_ANSWER_CHARS:
        return None
    try:
        found = parse_json(text[start : end + 1], "answer")
    except ConfigError:
        return None
    return found if isinstance(found, dict) else None


def _between(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


def _length(max_tokens: int) -> str:
    return f" Use at most {int(_WORDS_PER_TOKEN * max_tokens)} words."


def _task(product: Product) -> str:
    narrowed = "\nAnswer the core of it alone." if product.is_narrowed else ""
    return f"Task: {product.task}{narrowed}"


def _part(title: str, text: str) -> str:
    return f"\n\n{title}:\n{text}" if text else ""


def _list_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(item)}


def to_json(value: Any) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, ensure_ascii=False)
