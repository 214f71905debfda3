"""Train, validation and test split of any task set, fixed by the content of each task."""

from __future__ import annotations

import hashlib

from inframind_gym.errors import TaskError, unknown

SPLITS = ("train", "val", "test")
TRAIN_SHARE = 0.6
VAL_SHARE = 0.1  # the rest, 0.3, is test

ALIASES = {
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
}


def split_of(task_id: str, text: str) -> str:
    """Return "train", "val" or "test" (60/10/30) for a task.

    The split depends on the sha256 of id and text alone: it does not change when other tasks come
    or go, when a file is sorted, or from one machine to the next.
    """
    digest = hashlib.sha256(f"{task_id}\n{text}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2.0**64
    if share < TRAIN_SHARE:
        return "train"
    return "val" if share < TRAIN_SHARE + VAL_SHARE else "test"


def check_split(name: str, *, allow_all: bool = True) -> str:
    """Return the canonical name of a split.

    Args:
        name: "train", "val" or "test", or a usual other name of them ("validation", "dev").
        allow_all: whether "all" is a split, too.

    Raises:
        TaskError: any other name; the nearest one is suggested.
    """
    known = (*SPLITS, "all") if allow_all else SPLITS
    canonical = ALIASES.get(name, name)
    if canonical not in known:
        raise TaskError(unknown("split", name, known))
    return canonical


def split_of_stem(stem: str) -> tuple[str, str | None]:
    """Split a file's stem into its name and its split: "mbpp_test" -> ("mbpp", "test")."""
    for separator in ("_", "-", "."):
        head, found, tail = stem.rpartition(separator)
        canonical = ALIASES.get(tail.lower(), tail.lower())
        if found and head and canonical in SPLITS:
            return head, canonical
    return stem, None
