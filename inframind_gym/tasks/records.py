"""One task as it is read from, or written to, a line of JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inframind_gym.errors import TaskError, unknown
from inframind_gym.tasks.taskset import ANSWER_KINDS, DOMAINS, Answer, check_split, split_of


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task before it is embedded.

    Attributes:
        id: unique within its dataset.
        text: the prompt.
        dataset: the dataset's name.
        domain: one of ``DOMAINS``.
        answer: what a response is graded against.
        difficulty: latent difficulty in standard normal units; None if the data give none.
        split: "train", "val" or "test" if the data say so; None: by content hash.
        family: which generator made a built-in task; "" otherwise.
    """

    id: str
    text: str
    dataset: str
    domain: str
    answer: Answer
    difficulty: float | None = None
    split: str | None = None
    family: str = ""

    @property
    def actual_split(self) -> str:
        """The split that the data give, or the one of the content hash."""
        return self.split or split_of(self.id, self.text)


def answer_from_json(value: object) -> Answer:
    """Return the answer of a task in the package's own format.

    Args:
        value: a number; a string (an expression); or an object with ``kind`` and ``value``, and
            where it applies ``options``, ``entry_point`` and ``reference``.

    Raises:
        TaskError: anything else, or an unknown kind (the nearest one is suggested).
    """
    if isinstance(value, bool) or value is None:
        raise TaskError(f"'answer' must be a number, a string or an object, not {value!r}")
    if isinstance(value, (int, float)):
        return Answer("number", number_text(value))
    if isinstance(value, str):
        return Answer("expression", value)
    if not isinstance(value, dict) or "kind" not in value or "value" not in value:
        raise TaskError("'answer' must be a number, a string or an object with 'kind' and 'value'")
    kind = value["kind"]
    if kind not in ANSWER_KINDS:
        raise TaskError(unknown("kind of answer", str(kind), ANSWER_KINDS))
    content = value["value"]
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        content = number_text(content)
    if not isinstance(content, str):
        raise TaskError(f"'value' of the answer must be a string or a number, not {content!r}")
    return Answer(
        kind=kind,
        value=content,
        options=tuple(value.get("options", ())),
        entry_point=value.get("entry_point", ""),
        reference=value.get("reference", ""),
    )


def record_from_json(item: dict[str, Any], dataset: str) -> TaskRecord:
    """Return a record of the package's own format.

    Args:
        item: the parsed object; must have ``id``, ``text``, ``domain`` and ``answer``, may have
            ``dataset``, ``difficulty``, ``split`` and ``family``.
        dataset: the dataset if the object names none.

    Raises:
        TaskError: a key is missing, or a value is not valid.
    """
    for key in ("id", "text", "domain", "answer"):
        if key not in item:
            raise TaskError(f"the key {key!r} is missing")
    if item["domain"] not in DOMAINS:
        raise TaskError(unknown("domain", str(item["domain"]), DOMAINS))
    difficulty = item.get("difficulty")
    if difficulty is not None and not isinstance(difficulty, (int, float)):
        raise TaskError(f"'difficulty' must be a number, not {difficulty!r}")
    split = item.get("split")
    return TaskRecord(
        id=str(item["id"]),
        text=str(item["text"]),
        dataset=str(item.get("dataset", dataset)),
        domain=item["domain"],
        answer=answer_from_json(item["answer"]),
        difficulty=None if difficulty is None else float(difficulty),
        split=None if split is None else check_split(str(split), allow_all=False),
        family=str(item.get("family", "")),
    )


def number_text(value: int | float) -> str:
    """Return a number as the text of an answer: whole numbers without a decimal point.

    Raises:
        TaskError: the number is NaN or infinite (JSON files may hold these).
    """
    if not math.isfinite(value):
        raise TaskError(f"an answer must be a finite number, not {value!r}")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return repr(value)
