"""Planner, executor and critic: a prompt from what there is, an answer read back.

Each agent is one call of a model with a template and the product so far; no tools, no memory. An
answer that is not of the asked form costs its tokens and changes as little as possible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from gymnasium.utils import seeding

from inframind_gym.teams.llm import (
    Completion,
    LLMRequest,
    Prompt,
    json_object,
    list_schema,
    object_schema,
)
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR
from inframind_gym.teams.token_budget.settings import AGENTS, COMPLEXITIES, SIZES, TeamSettings
from inframind_gym.teams.token_budget.simulate import Calls, SimulatedTask

SELF_EVAL: Final = "self_eval"  # callers that are no agent
PREFLIGHT: Final = "preflight"
DEFAULT_SECTIONS: Final = ("Summary", "Approach", "Details", "Next steps")
PLAN_PARTS: Final = ("goal", "steps", "sections", "risks")  # checklist of a plan
CRITERIA: Final = ("completeness", "clarity", "actionability")
MOST_FLAGS: Final = 5  # of one review
MARK: Final = "[simulated]"
OVERHEAD_ANSWER: Final = 30  # tokens of a drawn rating or pre-flight; the rest is its prompt
_WORDS_PER_TOKEN: Final = 0.6  # of English text 0.75; what is left keeps answers from being cut
_ROW: Final = np.zeros(1, np.int64)


@dataclass(slots=True)
class Flag:
    """A defect that the critic has found, and the points of quality it says it costs."""

    issue: str
    points: float
    is_resolved: bool = False


@dataclass(slots=True)
class Product:
    """Work of the team so far; agents see it, and nothing else."""

    task: str
    plan: str = ""
    plan_share: float = 0.0  # of PLAN_PARTS that the plan has
    sections: tuple[str, ...] = DEFAULT_SECTIONS  # headings that a draft is to have
    draft: str = ""
    flags: list[Flag] = field(default_factory=list)  # of the critic, in order

    @property
    def open_flags(self) -> list[tuple[int, Flag]]:
        """Flags that are not resolved, with their numbers from 1."""
        return [(i, flag) for i, flag in enumerate(self.flags, 1) if not flag.is_resolved]

    @property
    def defects(self) -> str:
        """The open flags as a numbered list."""
        return "\n".join(f"{number}. {flag.issue}" for number, flag in self.open_flags)

    @property
    def checklist(self) -> float:
        """Share of the structure that is there: parts of the plan, or sections of the draft."""
        if not self.draft:
            return self.plan_share if self.plan else float("nan")
        lines = [line.strip("#*: ").lower() for line in self.draft.splitlines()]
        return sum(title.lower() in lines for title in self.sections) / len(self.sections)


# Prompts, in the order of AGENTS, then those of pre-flight and ratings


def planner(product: Product, max_tokens: int) -> Prompt:
    """Return the planner's prompt."""
    return Prompt(
        "You plan how a task is answered; you do not answer it. Return one JSON object: goal "
        "(text), steps (list), sections (list of four headings of the answer), risks (list)."
        + _length(max_tokens),
        _parts(product, ("Earlier plan, to be improved", product.plan)),
        object_schema(goal=_TEXT, **dict.fromkeys(PLAN_PARTS[1:], list_schema(_TEXT))),
    )


def executor(product: Product, max_tokens: int) -> Prompt:
    """Return the executor's prompt: for a draft, or for its revision."""
    system = (
        "You write the answer to a task in Markdown, with exactly these headings (##): "
        f"{', '.join(product.sections)}."
    )
    if product.draft:
        system += " Return the whole answer, improved; mend every defect that is listed."
    parts = ("Plan", product.plan), ("Draft", product.draft), ("Defects", product.defects)
    return Prompt(system + _length(max_tokens), _parts(product, *parts), None)


def critic(product: Product, max_tokens: int) -> Prompt:
    """Return the critic's prompt."""
    return Prompt(
        f"You review an answer. Return one JSON object: flags, a list of at most {MOST_FLAGS} "
        "defects, each with issue (text) and points (0-20, what mending it would add to a quality "
        "of 0-100). Return an empty list where there is no defect." + _length(max_tokens),
        _parts(product, ("Answer", product.draft)),
        object_schema(flags=list_schema(object_schema(issue=_TEXT, points=_NUMBER))),
    )


def self_eval(product: Product) -> Prompt:
    """Return the prompt of a rating of the product, and of the flags that it resolves."""
    return Prompt(
        "Rate this output 0-100 on completeness, clarity, actionability. Return one JSON object "
        "with these three numbers, and resolved: the numbers of the listed defects that the "
        "output no longer has.",
        _parts(product, ("Output", product.draft or product.plan), ("Defects", product.defects)),
        object_schema(
            **dict.fromkeys(CRITERIA, _NUMBER), resolved=list_schema({"type": "integer"})
        ),
    )


def preflight(task: str) -> Prompt:
    """Return the prompt that asks for the complexity of a task."""
    return Prompt(
        "Classify the task as simple, moderate or complex by the work that a good answer takes. "
        "Return one JSON object with the key complexity.",
        task,
        object_schema(complexity={"enum": list(COMPLEXITIES)}),
    )


PROMPTS: Final = (planner, executor, critic)
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}


def _length(max_tokens: int) -> str:
    return f" Use at most {int(_WORDS_PER_TOKEN * max_tokens)} words."


def _parts(product: Product, *parts: tuple[str, str]) -> str:
    """Return the task, and the titled parts of the product that there are."""
    listed = "".join(f"\n\n{title}:\n{text}" for title, text in parts if text)
    return f"Task: {product.task}{listed}"


# Reading answers


def take_plan(product: Product, text: str) -> bool:
    """Put a plan into the product; returns whether it was of the asked form."""
    plan = json_object(text)
    product.plan, product.plan_share = text, 0.0
    if plan is None:
        return False
    product.plan_share = sum(bool(plan.get(part)) for part in PLAN_PARTS) / len(PLAN_PARTS)
    titles = plan.get("sections")
    if isinstance(titles, list) and titles and all(isinstance(t, str) for t in titles):
        product.sections = tuple(title.strip("#*: ") for title in titles[:8])
    return True


def take_flags(product: Product, text: str) -> list[Flag] | None:
    """Put new flags into the product and return them; None if the answer was malformed."""
    items = (json_object(text) or {}).get("flags")
    if not isinstance(items, list):
        return None
    flags = [
        Flag(str(item["issue"]), _between(item.get("points"), 0.0, 20.0) or 0.0)
        for item in items[:MOST_FLAGS]
        if isinstance(item, dict) and item.get("issue")
    ]
    product.flags += flags
    return flags


def read_rating(text: str) -> tuple[float, list[int]] | None:
    """Return a rating (0-100) and the numbers of resolved flags; None if it was malformed."""
    rating = json_object(text) or {}
    scores = [s for name in CRITERIA if (s := _between(rating.get(name), 0.0, 100.0)) is not None]
    if len(scores) < len(CRITERIA):
        return None
    items = rating.get("resolved")
    numbers = [n for n in items if type(n) is int] if isinstance(items, list) else []
    return sum(scores) / len(CRITERIA), numbers


def _between(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


# The simulated provider


class DrawnAnswers:
    """Answers of one run, drawn as the environment of the same seed draws them."""

    def __init__(self, settings: TeamSettings, seed: int) -> None:
        self._settings = settings
        self.task = SimulatedTask(settings, 1)
        key = seeding.np_random(seed)[0].integers(2**64, dtype=np.uint64)
        self.task.start(_ROW, np.array([key]))
        self._last: Calls | None = None

    def __call__(self, request: LLMRequest) -> Completion:
        """Return the completion of a request."""
        agent, overhead = request.context["agent"], self._settings.overhead
        if agent == PREFLIGHT:
            seen = COMPLEXITIES[int(self.task.seen[0])]
            return self._overhead({"complexity": seen}, overhead.preflight)
        if agent == SELF_EVAL:
            assert self._last is not None, "a rating follows a call"
            evidence = self._last.evidence
            score, count = float(evidence.self_eval[0]), int(evidence.resolved[0])
            oldest = request.context["open_flags"][:count]
            rating = {**dict.fromkeys(CRITERIA, score), "resolved": oldest}
            return self._overhead(rating, overhead.self_eval)
        which, size = AGENTS.index(agent), SIZES.index(request.context["size"])
        limit = np.array([request.max_tokens])
        self._last = calls = self.task.call(_ROW, np.array([which]), np.array([size]), limit)
        reason = "length" if calls.cut_off[0] else "stop"
        text = self._text(which, calls)
        return self._completion(text, int(calls.prompt[0]), int(calls.completion[0]), reason)

    def _overhead(self, answer: dict[str, Any], tokens: int) -> Completion:
        output = min(OVERHEAD_ANSWER, tokens)
        return self._completion(json.dumps(answer), tokens - output, output)

    def _completion(self, text: str, prompt: int, output: int, reason: str = "stop") -> Completion:
        seconds = self._settings.simulation.seconds
        latency_s = seconds.first_token + seconds.per_token * output
        return Completion(text, prompt, output, reason, latency_s)

    def _text(self, agent: int, calls: Calls) -> str:
        """Return the text of an answer, of the form that its checklist and flags were drawn for."""
        evidence, number = calls.evidence, int(self.task.calls[0, agent])
        share = float(np.nan_to_num(evidence.checklist[0]))
        if agent == EXECUTOR:
            titles = DEFAULT_SECTIONS[: round(share * len(DEFAULT_SECTIONS))]
            body = f"{MARK} version {number}"
            return "\n\n".join(f"## {title}\n{body}" for title in titles) or body
        if agent == CRITIC:
            count = int(evidence.new_flags[0])
            points = float(evidence.claimed[0]) / max(count, 1)
            issues = [f"{MARK} defect {i + 1} of review {number}" for i in range(count)]
            return json.dumps({"flags": [{"issue": issue, "points": points} for issue in issues]})
        full = bool(self.task.has_draft(_ROW)[0]) or share > 0.5
        return json.dumps(
            {
                "goal": f"{MARK} answer the task" if full else "",
                "steps": [f"{MARK} step {i}" for i in (1, 2, 3)],
                "sections": DEFAULT_SECTIONS,
                "risks": [f"{MARK} a risk"] if full else [],
            }
        )
