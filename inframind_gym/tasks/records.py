"""Tasks as they are read from lines of JSON, and the set that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from inframind_gym.configs import validate, within
from inframind_gym.errors import TaskError
from inframind_gym.tasks.difficulty import folder_difficulty
from inframind_gym.tasks.taskset import (
    DOMAINS,
    Answer,
    TaskSet,
    check_split,
    estimate_tokens,
    split_of,
)

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task before it is embedded."""

    id: str  # unique within its dataset
    text: str  # the prompt
    dataset: str
    domain: str  # one of DOMAINS
    answer: Answer
    difficulty: float | None = None  # in standard normal units; None if the data give none
    split: str | None = None  # if the data say so; None: by content hash

    @property
    def actual_split(self) -> str:
        """The split that the data give, or the one of the content hash."""
        return self.split or split_of(self.id, self.text)


def number_text(value: object) -> object:
    """Return a number as the text of an answer, whole ones without a decimal point; else `value`.

    Raises:
        TaskError: the number is NaN or infinite (JSON files may hold these).
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not math.isfinite(value):
        raise TaskError(f"an answer must be a finite number, not {value!r}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def _long_form(answer: object) -> object:
    """Return an answer as an object: a number, or a text for an expression, may stand for one."""
    if isinstance(answer, str):
        return {"kind": "expression", "value": answer}
    if isinstance(answer, dict):
        return answer | ({"value": number_text(answer["value"])} if "value" in answer else {})
    text = number_text(answer)
    return {"kind": "number", "value": text} if isinstance(text, str) else answer


class OwnTask(BaseModel):
    """A task in the package's own format; further keys are ignored."""

    id: Annotated[str, BeforeValidator(str)]
    text: Annotated[str, Field(pattern=r"\S")]
    domain: Literal["Math", "Code", "Commonsense"]
    answer: Annotated[Answer, BeforeValidator(_long_form)]
    dataset: Annotated[str, BeforeValidator(str)] = ""
    difficulty: Annotated[float, within(-100.0, 100.0)] | None = None
    split: Annotated[str, AfterValidator(lambda s: check_split(s, allow_all=False))] | None = None


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
    """Return a record of the package's own format; `dataset` is for one that names none.

    Raises:
        ConfigError: a key is missing, or a value is not valid.
    """
    task = validate(item, OwnTask, source="a task")
    where = task.dataset or dataset, task.domain
    return TaskRecord(task.id, task.text, *where, task.answer, task.difficulty, task.split)


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
    difficulty = np.array([r.difficulty for r in records], dtype=np.float32)  # None: NaN
    for dataset in {r.dataset for r in records if r.difficulty is None}:
        rows = [i for i, record in enumerate(records) if record.dataset == dataset]
        contents = [f"{records[i].id}\n{records[i].text}" for i in rows]
        own = folder_difficulty(contents, embeddings[rows])
        difficulty[rows] = np.where(np.isnan(difficulty[rows]), own, difficulty[rows])
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
