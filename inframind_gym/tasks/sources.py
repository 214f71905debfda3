"""`load_tasks`: the built-in tasks, or those of a folder, as one TaskSet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import TaskError, unknown
from inframind_gym.tasks.shipped import builtin_tasks
from inframind_gym.tasks.taskset import (
    DOMAINS,
    EMBED_DIM,
    SPLITS,
    TaskSet,
    check_embeddings,
    check_split,
    estimate_tokens,
)

if TYPE_CHECKING:
    from inframind_gym.tasks.embedding import Embedder
    from inframind_gym.tasks.records import TaskRecord

# What only a folder of tasks needs is imported by the functions that read one.

BUILTIN = "builtin"
BUILTIN_DATASETS = tuple(f"builtin_{domain.lower()}" for domain in DOMAINS)


def builtin_dataset(name: str) -> str:
    """Return the built-in dataset that stands for a public one: "mbpp" -> "builtin_code".

    Raises:
        TaskError: neither a built-in nor a public dataset; the nearest one is suggested.
    """
    if name in BUILTIN_DATASETS:
        return name
    from inframind_gym.tasks.formats import FORMATS

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
    wanted = check_split(split)
    if str(source) == BUILTIN:
        tasks, splits = builtin_tasks()
        if datasets is not None:
            chosen = {builtin_dataset(name) for name in datasets}
            keep = [i for i, dataset in enumerate(tasks.datasets) if dataset in chosen]
            tasks, splits = tasks.select(keep), tuple(splits[i] for i in keep)
        if embedder is not None:
            tasks = replace(tasks, embeddings=_embeddings(tasks.texts, embedder, cache_dir))
    else:
        from inframind_gym.tasks.loaders import read_folder

        records = read_folder(Path(source), datasets)
        tasks = _from_records(Path(source).resolve().name, records, embedder, cache_dir)
        splits = tuple(record.actual_split for record in records)
    rows = [i for i, name in enumerate(splits) if wanted in ("all", name)]
    if not rows:
        counts = ", ".join(f"{name} {splits.count(name)}" for name in SPLITS)
        raise TaskError(
            f"the split {wanted!r} of {str(source)!r} holds no task (there are: {counts}). "
            "Use another split, or split='all'."
        )
    return tasks.select(rows)


def _embeddings(
    texts: Sequence[str],
    embedder: Embedder | NDArray[Any] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> NDArray[np.float32]:
    """Return (n, 384) embeddings, computed, cached or as given."""
    if isinstance(embedder, np.ndarray):
        check_embeddings(embedder, len(texts), "the embeddings given")
        return embedder.astype(np.float32)
    if embedder is not None and not callable(embedder):
        raise TaskError(
            "an embedder must be a callable from texts to an array (n, 384), or such an array, "
            f"not {type(embedder).__name__}"
        )
    from inframind_gym.tasks.embedding import embed_texts

    return embed_texts(texts, embedder, cache_dir)


def _from_records(
    name: str,
    records: list[TaskRecord],
    embedder: Embedder | NDArray[Any] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> TaskSet:
    """Return the task set of a folder's records, in their order."""
    from inframind_gym.tasks.difficulty import folder_difficulty

    n = len(records)
    embeddings = np.zeros((n, EMBED_DIM), dtype=np.float32)
    if isinstance(embedder, np.ndarray):
        embeddings = _embeddings([r.text for r in records], embedder, cache_dir)
    difficulty = np.zeros(n, dtype=np.float32)
    for dataset in dict.fromkeys(record.dataset for record in records):
        rows = [i for i, record in enumerate(records) if record.dataset == dataset]
        if not isinstance(embedder, np.ndarray):  # dataset by dataset: each has its cache file
            embeddings[rows] = _embeddings([records[i].text for i in rows], embedder, cache_dir)
        contents = [f"{records[i].id}\n{records[i].text}" for i in rows]
        difficulty[rows] = folder_difficulty(contents, embeddings[rows])
        for i in rows:
            difficulty[i] = (
                difficulty[i] if records[i].difficulty is None else records[i].difficulty
            )
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
