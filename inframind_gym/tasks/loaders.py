"""`load_tasks`: the built-in tasks, or those of a folder of files, as one TaskSet.

Files are JSON Lines, plain or gzipped, one task a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, TaskError, unknown
from inframind_gym.files import read_objects
from inframind_gym.tasks.formats import FORMATS, OWN_KEYS, format_of_keys, format_of_stem
from inframind_gym.tasks.records import (
    Item,
    TaskRecord,
    record_from_json,
    split_from_json,
    task_set,
)
from inframind_gym.tasks.taskset import (
    DOMAINS,
    EMBED_DIM,
    SPLITS,
    TaskSet,
    check_embeddings,
    check_split,
    split_of_stem,
)

if TYPE_CHECKING:
    from inframind_gym.tasks.embedding import Embedder

DATA = Path(__file__).resolve().parent / "data"  # ``python -m benchmarks.embed_shipped`` made it
TASKS_FILE = "builtin_tasks.jsonl.gz"
EMBEDDINGS_FILE = "builtin_embeddings.npy"
ROLES_FILE = "role_embeddings.npy"

BUILTIN = "builtin"
BUILTIN_DATASETS = tuple(f"builtin_{domain.lower()}" for domain in DOMAINS)
SUFFIXES = (".jsonl", ".jsonl.gz")

ID_KEYS = ("id", "task_id", "unique_id", "question_id")


def builtin_dataset(name: str) -> str:
    """Return the built-in dataset that stands for a public one: "mbpp" -> "builtin_code".

    Raises:
        TaskError: neither a built-in nor a public dataset; the nearest one is suggested.
    """
    if name in BUILTIN_DATASETS:
        return name
    if name in FORMATS:
        return f"builtin_{FORMATS[name].domain.lower()}"
    raise TaskError(unknown("dataset", name, (*BUILTIN_DATASETS, *FORMATS)))


def load_tasks(
    source: str | os.PathLike[str] = BUILTIN,
    *,
    datasets: Sequence[str] | None = None,
    split: str = "test",
    embedder: Embedder | NDArray[Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> TaskSet:
    """Load tasks with their embeddings and difficulties.

    Args:
        source: "builtin", or a folder with ``*.jsonl`` or ``*.jsonl.gz`` files (or one such
            file) in the formats of ``formats.py`` or the package's own.
        datasets: keep these only. For the built-in tasks the name of a public dataset stands for
            the built-in tasks of its domain ("mbpp" for "builtin_code").
        split: "train", "val", "test" (60/10/30 by content hash, unless the data say otherwise) or
            "all".
        embedder: None for the shipped embeddings, or all-MiniLM-L6-v2 for a folder; a callable
            from texts to an array (n, 384); or such an array, with a row for every task of the
            chosen datasets in the order of file names and lines, whatever their split.
        cache_dir: folder of cached embeddings; None: ``$INFRAMIND_CACHE`` or
            ~/.cache/inframind_gym.

    Returns:
        The chosen tasks. The difficulty of a folder's tasks is theirs if the data give one, else
        a visible part and noise (see ``difficulty.py``).

    Raises:
        TaskError: an unknown source, dataset or split; a broken file (named with its line); an
            embedding of the wrong width; a split that holds no task.
    """
    from inframind_gym.tasks.embedding import embed_texts

    wanted = check_split(split)
    if str(source) == BUILTIN:
        tasks, splits = read_builtin()
        if datasets is not None:
            chosen = {builtin_dataset(name) for name in datasets}
            keep = [i for i, dataset in enumerate(tasks.datasets) if dataset in chosen]
            tasks, splits = tasks.select(keep), tuple(splits[i] for i in keep)
        if embedder is not None:
            tasks = replace(tasks, embeddings=embed_texts(tasks.texts, embedder, cache_dir))
    else:
        records = read_folder(Path(source), datasets)
        texts, names = [r.text for r in records], [r.dataset for r in records]
        embeddings = np.zeros((len(records), EMBED_DIM), dtype=np.float32)
        if isinstance(embedder, np.ndarray):
            embeddings = embed_texts(texts, embedder)
        else:
            for name in dict.fromkeys(names):  # each dataset has its cache file
                rows = [i for i, own in enumerate(names) if own == name]
                embeddings[rows] = embed_texts([texts[i] for i in rows], embedder, cache_dir)
        tasks = task_set(Path(source).resolve().name, records, embeddings)
        splits = tuple(record.actual_split for record in records)
    rows = [i for i, name in enumerate(splits) if wanted in ("all", name)]
    if not rows:
        counts = ", ".join(f"{name} {splits.count(name)}" for name in SPLITS)
        raise TaskError(
            f"the split {wanted!r} of {str(source)!r} holds no task (there are: {counts}). "
            "Use another split, or split='all'."
        )
    return tasks.select(rows)


@lru_cache(maxsize=1)
def read_builtin() -> tuple[TaskSet, tuple[str, ...]]:
    """Return all built-in tasks and the split of each; select from the set, never change it."""
    records = read_file(DATA / TASKS_FILE)
    embeddings = np.load(DATA / EMBEDDINGS_FILE, allow_pickle=False).astype(np.float32)
    return task_set(BUILTIN, records, embeddings), tuple(r.actual_split for r in records)


def load_role_embeddings() -> NDArray[np.float32]:
    """Return the embeddings (25, 384) of the roles, in the order of ``ROLES``.

    Raises:
        TaskError: the file is damaged.
    """
    embeddings = np.load(DATA / ROLES_FILE, allow_pickle=False)
    if embeddings.ndim != 2:
        raise TaskError(f"{ROLES_FILE} is damaged; reinstall the package")
    return check_embeddings(embeddings, len(embeddings), ROLES_FILE).astype(np.float32)


def task_files(source: Path) -> list[Path]:
    """Return the task files of a folder in the order of their names, or the file itself.

    Raises:
        TaskError: `source` does not exist, is another kind of file, or holds no task file.
    """
    if source.is_file():
        if not source.name.endswith(SUFFIXES):
            raise TaskError(f"{source}: a task file must end in .jsonl or .jsonl.gz")
        return [source]
    if not source.is_dir():
        raise TaskError(
            f"unknown task source {str(source)!r}: neither 'builtin' nor a folder or file that "
            "exists. Give 'builtin' or the path of a folder with *.jsonl or *.jsonl.gz files."
        )
    files = sorted(p for p in source.iterdir() if p.is_file() and p.name.endswith(SUFFIXES))
    if not files:
        raise TaskError(
            f"{source}: the folder holds no task file. Tasks are JSON Lines in files that end in "
            ".jsonl or .jsonl.gz, one JSON object a line."
        )
    return files


def read_file(path: Path) -> list[TaskRecord]:
    """Read one task file.

    The format is that of the first record's keys; the file's stem is a hint where keys do not
    tell. A record's id is its ``id`` (``task_id``, ``unique_id``, ``question_id``), or the stem
    and the line number. A record's ``split``, or else a stem like ``mbpp_test``, fixes its split.

    Raises:
        TaskError: the format is not known, or a record is broken; names file, line and key.
    """
    stem, file_split = split_of_stem(path.name.removesuffix(".gz").removesuffix(".jsonl"))
    read: Callable[[Item, str], TaskRecord] | None = None
    records: list[TaskRecord] = []
    for number, item in read_objects(path):
        try:
            read = read or _reader(item, stem)
            record = read(item, f"{stem}/{number}")
        except ConfigError as error:
            raise TaskError(f"{path}, line {number}: {error}") from None
        if record.split is None and file_split is not None:
            record = replace(record, split=file_split)
        records.append(record)
    return records


def _reader(item: Item, stem: str) -> Callable[[Item, str], TaskRecord]:
    """Return the function that reads a file's records, given the first and the file's stem.

    Its second argument is the id of a record that has none.
    """
    hint = format_of_stem(stem)
    if {"domain", "text"} <= item.keys():
        dataset = hint.dataset if hint else stem
        return lambda item, _: record_from_json(item, dataset)
    chosen = format_of_keys(item, hint) or hint
    if chosen is None:
        raise TaskError(
            f"the format is not known. The record has the keys {', '.join(map(repr, item))}; known "
            f"are the formats of {', '.join(FORMATS)} and this package's own with the keys "
            f"{', '.join(map(repr, OWN_KEYS))}."
        )

    def public_record(item: Item, fallback_id: str) -> TaskRecord:
        text, answer = chosen.parse(item)
        task_id = next((str(item[key]) for key in ID_KEYS if key in item), fallback_id)
        split = split_from_json(item)
        return TaskRecord(task_id, text, chosen.dataset, chosen.domain, answer, split=split)

    return public_record


def read_folder(source: Path, datasets: Sequence[str] | None = None) -> list[TaskRecord]:
    """Read all task files of a folder (not of its subfolders), or one file.

    Args:
        source: the folder or file.
        datasets: keep these datasets only.

    Returns:
        The records in the order of file names and lines.

    Raises:
        TaskError: see :func:`read_file`; also a dataset that the folder does not hold (the
            nearest one is suggested), an id that a dataset has twice, and files without tasks.
    """
    records: list[TaskRecord] = []
    seen: dict[tuple[str, str], Path] = {}
    for path in task_files(source):
        for record in read_file(path):
            key = (record.dataset, record.id)
            if key in seen:
                raise TaskError(
                    f"{path}: the id {record.id!r} of dataset {record.dataset!r} occurs twice"
                    f" (first in {seen[key].name}). Ids must be unique within a dataset."
                )
            seen[key] = path
            records.append(record)
    if not records:
        raise TaskError(f"{source}: the task files hold no task")
    if datasets is not None:
        present = list(dict.fromkeys(record.dataset for record in records))
        for name in datasets:
            if name not in present:
                raise TaskError(f"{source}: {unknown('dataset', name, present)}")
        records = [record for record in records if record.dataset in datasets]
        if not records:
            raise TaskError(f"no dataset of {source} is chosen; it holds {', '.join(present)}")
    return records
