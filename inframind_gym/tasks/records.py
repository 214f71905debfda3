"""Tasks as they are read from lines of JSON, and the set that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import TaskError, unknown
from inframind_gym.tasks.taskset import (
    ANSWER_KINDS,
    DOMAINS,
    Answer,
    TaskSet,
    check_split,
    estimate_tokens,
    split_of,
)

Item = dict[str, Any]
MOST_DIFFICULTY = 100.0  # standard deviations


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
    """

    id: str
    text: str
    dataset: str
    domain: str
    answer: Answer
    difficulty: float | None = None
    split: str | None = None

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
    options = value.get("options", ())
    texts = [value.get("entry_point", ""), value.get("reference", "")]
    if not isinstance(options, (list, tuple)):
        raise TaskError(f"'options' of the answer must be a list of texts, not {options!r:.60}")
    if not all(isinstance(text, str) for text in (*options, *texts)):
        raise TaskError("'options', 'entry_point' and 'reference' of the answer must be texts")
    return Answer(
        kind=kind,
        value=content,
        options=tuple(options),
        entry_point=value.get("entry_point", ""),
        reference=value.get("reference", ""),
    )


def required(item: Item, *names: str) -> Any:
    """Return the value of the first of several alternative keys that is there.

    Raises:
        TaskError: none of them is.
    """
    for name in names:
        if name in item:
            return item[name]
    other = f" (nor {' or '.join(repr(n) for n in names[1:])})" if len(names) > 1 else ""
    raise TaskError(
        f"the key {names[0]!r} is missing{other}; the record has {', '.join(map(repr, item))}"
    )


def record_from_json(item: Item, dataset: str) -> TaskRecord:
    """Return a record of the package's own format.

    Args:
        item: the parsed object; must have ``id``, ``text``, ``domain`` and ``answer``, may have
            ``dataset``, ``difficulty`` and ``split``.
        dataset: the dataset if the object names none.

    Raises:
        TaskError: a key is missing, or a value is not valid.
    """
    task_id, text, domain, answer = (required(item, n) for n in ("id", "text", "domain", "answer"))
    if domain not in DOMAINS:
        raise TaskError(unknown("domain", str(domain), DOMAINS))
    if not isinstance(text, str) or not text.strip():
        raise TaskError(f"'text' must be a text that is not empty, not {text!r:.60}")
    difficulty = item.get("difficulty")
    if difficulty is not None and not (
        isinstance(difficulty, (int, float)) and abs(difficulty) <= MOST_DIFFICULTY
    ):
        raise TaskError(
            f"'difficulty' must be a number, at most {MOST_DIFFICULTY:g} from 0, not "
            f"{difficulty!r:.60}"
        )
    return TaskRecord(
        id=str(task_id),
        text=text,
        dataset=str(item.get("dataset", dataset)),
        domain=domain,
        answer=answer_from_json(answer),
        difficulty=None if difficulty is None else float(difficulty),
        split=split_from_json(item),
    )


def split_from_json(item: Item) -> str | None:
    """Return the split that a record names, or None; TaskError if there is no such split."""
    split = item.get("split")
    return None if split is None else check_split(str(split), allow_all=False)


def task_set(name: str, records: Sequence[TaskRecord], embeddings: NDArray[np.float32]) -> TaskSet:
    """Return the task set of records, in their order.

    Args:
        name: of the set.
        records: n tasks.
        embeddings: (n, 384) of their texts. The difficulty of a task that gives none comes from
            these, over its dataset (see ``difficulty.py``).
    """
    from inframind_gym.tasks.difficulty import folder_difficulty

    difficulty = np.array([r.difficulty for r in records], dtype=np.float32)  # None: NaN
    for dataset in {r.dataset for r in records if r.difficulty is None}:
        rows = [i for i, record in enumerate(records) if record.dataset == dataset]
        contents = [f"{records[i].id}\n{records[i].text}" for i in rows]
        found = folder_difficulty(contents, embeddings[rows])
        difficulty[rows] = np.where(np.isnan(difficulty[rows]), found, difficulty[rows])
    return TaskSet(
        name=name,
        ids=tuple(r.id for r in records),
        texts=tuple(r.text for r in records),
        datasets=tuple(r.dataset for r in records),
        domain=np.array([DOMAINS.index(r.domain) for r in records], dtype=np.int8),
        difficulty=difficulty,
        prompt_tokens=np.array([estimate_tokens(r.text) for r in records], dtype=np.int32),
        embeddings=embeddings,
        answers=tuple(r.answer for r in records),
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
