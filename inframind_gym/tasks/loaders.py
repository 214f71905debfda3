"""`load_tasks`: the built-in tasks, or those of a folder of files, as one TaskSet.

Files are JSON Lines, plain or gzipped, one task a line, in the package's own format
(`TaskRecord`) or as public datasets are published (`FORMATS`), recognised by the records' keys.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field

from inframind_gym.configs import validate, within
from inframind_gym.errors import ConfigError, TaskError, unknown
from inframind_gym.files import read_objects
from inframind_gym.tasks.taskset import (
    DATA,
    DOMAINS,
    EMBED_DIM,
    SPLITS,
    Answer,
    TaskSet,
    check_split,
    estimate_tokens,
    folder_difficulty,
    split_of,
)

TASKS_FILE: Final = "builtin_tasks.jsonl.gz"
EMBEDDINGS_FILE: Final = "builtin_embeddings.npy"
ROLES_FILE: Final = "role_embeddings.npy"
BUILTIN: Final = "builtin"
BUILTIN_DATASETS: Final = tuple(f"builtin_{domain.lower()}" for domain in DOMAINS)
SUFFIXES: Final = (".jsonl", ".jsonl.gz")
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Item = dict[str, Any]


# Values of records


def _number_text(value: object) -> object:
    """Return a number as the text of an answer, whole ones without a decimal point."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not math.isfinite(value):
        raise ValueError(f"an answer must be a finite number, not {value!r}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def _long_form(answer: object) -> object:
    """Return an answer as an object: a number, or a text for an expression, may stand for one."""
    if isinstance(answer, str):
        return {"kind": "expression", "value": answer}
    if isinstance(answer, dict):
        return answer | ({"value": _number_text(answer["value"])} if "value" in answer else {})
    text = _number_text(answer)
    return {"kind": "number", "value": text} if isinstance(text, str) else answer


def _alias(*names: str) -> Any:
    return Field(validation_alias=AliasChoices(*names))


Domain = Literal["Math", "Code", "Commonsense"]  # as in DOMAINS
Text = Annotated[str, Field(pattern=r"\S")]
Id = Annotated[str, BeforeValidator(str)]
Texts = Annotated[list[str], Field(min_length=1)]
Split = Annotated[str, BeforeValidator(str), AfterValidator(check_split)]


class TaskRecord(BaseModel):
    """A task before it is embedded, and the package's own format; further keys are ignored."""

    id: Id  # unique within its dataset
    text: Text  # the prompt
    domain: Domain
    answer: Annotated[Answer, BeforeValidator(_long_form)]
    dataset: Id = ""  # "": the file's name
    difficulty: Annotated[float, within(-100.0, 100.0)] | None = None  # standard normal units
    split: Split | None = None  # None: by content hash

    @property
    def actual_split(self) -> str:
        """The split that the data give, or the one of the content hash."""
        return self.split or split_of(self.id, self.text)


class PublicTask(BaseModel):
    """A task of a public dataset; further keys are ignored."""

    domain: ClassVar[Domain]
    id: Annotated[Id | None, _alias("id", "task_id", "unique_id", "question_id")] = None
    split: Split | None = None

    def read(self) -> tuple[str, Answer]:
        """Return text and answer."""
        raise NotImplementedError


class MathTask(PublicTask):
    """MATH: ``problem`` and ``answer`` (LaTeX)."""

    domain = "Math"
    problem: Annotated[Text, _alias("problem", "question")]
    answer: Annotated[Text, BeforeValidator(_number_text)]

    def read(self) -> tuple[str, Answer]:
        """See `PublicTask`."""
        return self.problem, Answer("expression", self.answer)


class GsmHardTask(PublicTask):
    """GSM-Hard: ``problem`` and a number ``answer`` (as published: ``input`` and ``target``)."""

    domain = "Math"
    problem: Annotated[Text, _alias("problem", "input", "question")]
    answer: Annotated[str, BeforeValidator(_number_text), _alias("answer", "target")]

    def read(self) -> tuple[str, Answer]:
        """See `PublicTask`."""
        return self.problem, Answer("number", self.answer)


class MbppTask(PublicTask):
    """MBPP: ``prompt`` and ``test_list``; the text shows the first test, which names the function.

    All tests, after ``test_imports``, make the answer.
    """

    domain = "Code"
    prompt: Annotated[Text, _alias("prompt", "text")]
    tests: Annotated[Texts, _alias("test_list")]
    imports: Annotated[list[str] | None, _alias("test_imports")] = None
    reference: Annotated[str, _alias("reference", "code")] = ""

    def read(self) -> tuple[str, Answer]:
        """See `PublicTask`."""
        names = re.findall(r"^def +(\w+)", self.reference, re.MULTILINE)
        called = [name for name in names if re.search(rf"\b{name}\b", self.tests[0])]
        source = "\n".join([*(self.imports or []), *self.tests]) + "\n"
        text = f"{self.prompt.rstrip()}\nYour code should pass: {self.tests[0]}"
        entry_point = called[-1] if called else ""
        return text, Answer("tests", source, entry_point=entry_point, reference=self.reference)


class HumanEvalTask(PublicTask):
    """HumanEval: ``prompt`` (signature and docstring), ``entry_point``, ``test`` with ``check``."""

    domain = "Code"
    prompt: Text
    entry_point: Text
    test: Text
    body: Annotated[str, _alias("reference", "canonical_solution")] = ""

    def read(self) -> tuple[str, Answer]:
        """See `PublicTask`."""
        source = f"{self.test.rstrip()}\n\ncheck({self.entry_point})\n"
        reference = self.prompt + self.body if self.body else ""
        answer = Answer("tests", source, entry_point=self.entry_point, reference=reference)
        return self.prompt, answer


class MmluProTask(PublicTask):
    """MMLU-Pro: the text is ``question`` and the lettered ``options``; ``answer`` is a letter."""

    domain = "Commonsense"
    question: Text
    options: Annotated[Texts, Field(max_length=len(LETTERS))]
    answer: Annotated[str, BeforeValidator(lambda value: str(value).strip().upper())]

    def read(self) -> tuple[str, Answer]:
        """See `PublicTask`; a TaskError where the answer is no letter of an option."""
        letters = LETTERS[: len(self.options)]
        if len(self.answer) != 1 or self.answer not in letters:
            raise TaskError(
                f"'answer' must be a letter of A to {letters[-1]}, not {self.answer!r:.60}"
            )
        lines = [f"{mark}. {option}" for mark, option in zip(letters, self.options, strict=True)]
        answer = Answer("choice", self.answer, options=tuple(self.options))
        return "\n".join([self.question, *lines]), answer


FORMATS: Final[dict[str, type[PublicTask]]] = {
    "math": MathTask,
    "gsm_hard": GsmHardTask,
    "mbpp": MbppTask,
    "humaneval": HumanEvalTask,
    "mmlu_pro": MmluProTask,
}


def format_of(item: Item) -> str | None:
    """Return the name of a file's public format, by the keys of its first record.

    None: it is the package's own. MATH and GSM-Hard share their keys; the answers of GSM-Hard are
    JSON numbers.
    """
    keys = item.keys()
    for marks, name in (
        ({"domain", "text"}, None),
        ({"question", "options"}, "mmlu_pro"),
        ({"test_list"}, "mbpp"),
        ({"prompt", "entry_point"}, "humaneval"),
        ({"input", "target"}, "gsm_hard"),
    ):
        if marks <= keys:
            return name
    if {"problem", "answer"} <= keys:
        return "math" if isinstance(item["answer"], str) else "gsm_hard"
    raise TaskError(
        f"the format is not known. The record has the keys {', '.join(map(repr, item))}; known are "
        f"the formats of {', '.join(FORMATS)} and this package's own with the keys 'id', 'text', "
        "'domain', 'answer'."
    )


# Files


def read_file(path: Path) -> list[TaskRecord]:
    """Read one task file.

    A record's id is its ``id`` (``task_id``, ``unique_id``, ``question_id``), or the stem and the
    line number. A TaskError about a record names file, line and key.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    name: str | None = None
    records: list[TaskRecord] = []
    for number, item in read_objects(path):
        try:
            name = name if records else format_of(item)
            if name is None:
                record = validate(item, TaskRecord, source="a task")
                record.dataset = record.dataset or stem
            else:
                task = validate(item, FORMATS[name], source="a task")
                text, answer = task.read()
                record = TaskRecord.model_construct(
                    id=task.id or f"{stem}/{number}",
                    text=text,
                    domain=task.domain,
                    answer=answer,
                    dataset=name,
                    split=task.split,
                )
        except ConfigError as error:
            raise TaskError(f"{path}, line {number}: {error}") from None
        records.append(record)
    return records


def read_folder(source: Path, datasets: Sequence[str] | None = None) -> list[TaskRecord]:
    """Read all task files of a folder (not of its subfolders), or one file, in their order.

    Args:
        source: the folder or file; "builtin", if there is none such: the built-in tasks.
        datasets: keep these datasets only.

    Raises:
        TaskError: `source` does not exist or holds no task; see :func:`read_file`; a dataset that
            is not there (the nearest one is suggested), or an id that a dataset has twice.
    """
    if str(source) == BUILTIN and not source.exists():
        source = DATA / TASKS_FILE
    if not source.exists():
        raise TaskError(
            f"unknown task source {str(source)!r}: neither 'builtin' nor a folder or file that "
            "exists. Give 'builtin' or the path of a folder with *.jsonl or *.jsonl.gz files."
        )
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    files = [path for path in files if path.is_file() and path.name.endswith(SUFFIXES)]
    if not files:
        raise TaskError(
            f"{source}: holds no task file. Tasks are JSON Lines in files that end in .jsonl or "
            ".jsonl.gz, one JSON object a line."
        )
    records: dict[tuple[str, str], TaskRecord] = {}
    for path in files:
        for record in read_file(path):
            if (record.dataset, record.id) in records:
                raise TaskError(
                    f"{path}: the id {record.id!r} of dataset {record.dataset!r} occurs twice. Ids "
                    "must be unique within a dataset."
                )
            records[record.dataset, record.id] = record
    present = list(dict.fromkeys(dataset for dataset, _ in records))
    if not records:
        raise TaskError(f"{source}: the task files hold no task")
    for name in datasets or ():
        if name not in present:
            raise TaskError(f"{source}: {unknown('dataset', name, present)}")
    if datasets is not None and not datasets:
        raise TaskError(f"no dataset of {source} is chosen; it holds {', '.join(present)}")
    return [r for r in records.values() if datasets is None or r.dataset in datasets]


def task_set(name: str, records: Sequence[TaskRecord], embeddings: NDArray[np.float32]) -> TaskSet:
    """Return the task set of records, in their order.

    The difficulty of a task that gives none comes from the embeddings of its dataset, (n, 384).
    """
    difficulty = np.array([r.difficulty for r in records], dtype=np.float32)  # None: NaN
    for dataset in {r.dataset for r in records if r.difficulty is None}:
        rows = [i for i, record in enumerate(records) if record.dataset == dataset]
        contents = [f"{records[i].id}\n{records[i].text}" for i in rows]
        drawn = folder_difficulty(contents, embeddings[rows])
        difficulty[rows] = np.where(np.isnan(difficulty[rows]), drawn, difficulty[rows])
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


# The set


def builtin_dataset(name: str) -> str:
    """Return the built-in dataset that stands for a public one: "mbpp" -> "builtin_code"."""
    if name in FORMATS:
        return f"builtin_{FORMATS[name].domain.lower()}"
    if name not in BUILTIN_DATASETS:
        raise TaskError(unknown("dataset", name, (*BUILTIN_DATASETS, *FORMATS)))
    return name


@lru_cache(maxsize=1)
def read_builtin() -> tuple[TaskSet, tuple[str, ...]]:
    """Return all built-in tasks and the split of each; select from the set, never change it."""
    records = read_file(DATA / TASKS_FILE)
    embeddings = np.load(DATA / EMBEDDINGS_FILE, allow_pickle=False).astype(np.float32)
    return task_set(BUILTIN, records, embeddings), tuple(r.actual_split for r in records)


def load_tasks(
    source: str | os.PathLike[str] = BUILTIN,
    *,
    datasets: Sequence[str] | None = None,
    split: str = "test",
) -> TaskSet:
    """Load tasks with their embeddings and difficulties.

    Args:
        source: "builtin", or a folder with ``*.jsonl`` or ``*.jsonl.gz`` files (or one such
            file) in the formats of this module.
        datasets: keep these only. For the built-in tasks the name of a public dataset stands for
            the built-in tasks of its domain ("mbpp" for "builtin_code").
        split: "train", "val", "test" (60/10/30 by content hash, unless the data say otherwise) or
            "all".

    Returns:
        The chosen tasks. Those of a folder are embedded by all-MiniLM-L6-v2 (`embed_texts`); their
        difficulty is theirs if the data give one, else a visible part and noise
        (`folder_difficulty`).

    Raises:
        TaskError: an unknown source, dataset or split; a broken file (named with its line); a
            split that holds no task; there is no encoder.
    """
    from inframind_gym.tasks.embedding import embed_texts

    check_split(split, (*SPLITS, "all"))
    if str(source) == BUILTIN:
        tasks, splits = read_builtin()
        if datasets is not None:
            chosen = {builtin_dataset(name) for name in datasets}
            keep = [i for i, dataset in enumerate(tasks.datasets) if dataset in chosen]
            tasks, splits = tasks.select(keep), tuple(splits[i] for i in keep)
    else:
        records = read_folder(Path(source), datasets)
        texts, names = [r.text for r in records], [r.dataset for r in records]
        embeddings = np.zeros((len(records), EMBED_DIM), dtype=np.float32)
        for name in dict.fromkeys(names):  # each dataset has its cache file
            rows = [i for i, dataset in enumerate(names) if dataset == name]
            embeddings[rows] = embed_texts([texts[i] for i in rows])
        tasks = task_set(Path(source).resolve().name, records, embeddings)
        splits = tuple(record.actual_split for record in records)
    rows = [i for i, name in enumerate(splits) if split in ("all", name)]
    if not rows:
        counts = ", ".join(f"{name} {splits.count(name)}" for name in SPLITS)
        raise TaskError(
            f"the split {split!r} of {str(source)!r} holds no task (there are: {counts}). "
            "Use another split, or split='all'."
        )
    return tasks.select(rows)


def load_role_embeddings() -> NDArray[np.float32]:
    """Return the embeddings (25, 384) of the roles, in the order of ``ROLES``."""
    return np.asarray(np.load(DATA / ROLES_FILE, allow_pickle=False), np.float32)
