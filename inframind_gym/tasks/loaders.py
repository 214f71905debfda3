"""Reading task files: JSON Lines, plain or gzipped, from a folder or a single file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inframind_gym.errors import TaskError, unknown
from inframind_gym.tasks.formats import (
    FORMATS,
    OWN_KEYS,
    Format,
    format_of_keys,
    format_of_stem,
    is_own_format,
)
from inframind_gym.tasks.records import TaskRecord, record_from_json
from inframind_gym.tasks.taskset import check_split, split_of_stem

SUFFIXES = (".jsonl", ".jsonl.gz")

ID_KEYS = ("id", "task_id", "unique_id", "question_id")


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


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, parsed object) for every line that is not blank.

    Raises:
        TaskError: the file cannot be read, or a line is not a JSON object; names file and line.
    """
    number = 0
    try:
        with (gzip.open if path.name.endswith(".gz") else open)(path, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                if not raw.strip():
                    continue
                try:
                    item = json.loads(raw)
                except ValueError as error:  # not JSON, or not UTF-8
                    raise TaskError(f"{path}, line {number}: not valid JSON ({error})") from None
                if not isinstance(item, dict):
                    raise TaskError(f"{path}, line {number}: not a JSON object but {item!r:.40}")
                yield number, item
    except (OSError, EOFError) as error:
        raise TaskError(f"{path}: cannot be read after line {number} ({error})") from None


def read_file(path: Path) -> list[TaskRecord]:
    """Read one task file.

    The format is that of the first record's keys; the file's stem is a hint where keys do not
    tell. A record's id is its ``id`` (``task_id``, ``unique_id``, ``question_id``), or the stem
    and the line number. A record's ``split``, or else a stem like ``mbpp_test``, fixes its split.

    Raises:
        TaskError: the format is not known, or a record is broken; names file, line and key.
    """
    stem, file_split = split_of_stem(path.name.removesuffix(".gz").removesuffix(".jsonl"))
    hint = format_of_stem(stem)
    own: bool | None = None
    chosen: Format | None = None
    records: list[TaskRecord] = []
    for number, item in read_lines(path):
        if own is None:
            own = is_own_format(item)
            chosen = None if own else format_of_keys(item, hint) or hint
            if not own and chosen is None:
                raise TaskError(
                    f"{path}, line {number}: the format is not known. The record has the keys "
                    f"{', '.join(map(repr, item))}; known are the formats of {', '.join(FORMATS)} "
                    f"and this package's own with the keys {', '.join(map(repr, OWN_KEYS))}."
                )
        try:
            if chosen is None:
                record = record_from_json(item, hint.dataset if hint else stem)
            else:
                record = _public_record(item, chosen, f"{stem}/{number}")
        except TaskError as error:
            raise TaskError(f"{path}, line {number}: {error}") from None
        if record.split is None and file_split is not None:
            record = replace(record, split=file_split)
        records.append(record)
    return records


def _public_record(item: dict[str, Any], chosen: Format, fallback_id: str) -> TaskRecord:
    """Return the record of a public format."""
    text, answer = chosen.parse(item)
    task_id = next((str(item[key]) for key in ID_KEYS if key in item), fallback_id)
    split = item.get("split")
    return TaskRecord(
        id=task_id,
        text=text,
        dataset=chosen.dataset,
        domain=chosen.domain,
        answer=answer,
        split=None if split is None else check_split(str(split), allow_all=False),
    )


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
