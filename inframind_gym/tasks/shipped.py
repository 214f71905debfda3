"""Reading the data that the package ships: built-in tasks and the embeddings of the roles.

Needs numpy alone; ``python -m benchmarks.embed_shipped`` embeds their texts in a checkout.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import TaskError
from inframind_gym.tasks.taskset import DOMAINS, Answer, TaskSet, check_embeddings, estimate_tokens

DATA = Path(__file__).resolve().parent / "data"
TASKS_FILE = "builtin_tasks.jsonl.gz"
EMBEDDINGS_FILE = "builtin_embeddings.npy"
ROLES_FILE = "role_embeddings.npy"


def read_tasks() -> tuple[TaskSet, tuple[str, ...]]:
    """Read the built-in tasks from the package's files.

    Returns:
        The set of all splits, and the split of each task.
    """
    lines = gzip.decompress((DATA / TASKS_FILE).read_bytes()).split(b"\n")
    items = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    embeddings = np.load(DATA / EMBEDDINGS_FILE, allow_pickle=False)
    tasks = TaskSet(
        name="builtin",
        ids=tuple(item["id"] for item in items),
        texts=tuple(item["text"] for item in items),
        datasets=tuple(item["dataset"] for item in items),
        domain=np.array([DOMAINS.index(item["domain"]) for item in items], dtype=np.int8),
        difficulty=np.array([item["difficulty"] for item in items], dtype=np.float32),
        prompt_tokens=np.array([estimate_tokens(item["text"]) for item in items], dtype=np.int32),
        embeddings=embeddings.astype(np.float32),
        # Written by this project itself, so that nothing is checked but the shape.
        answers=tuple(
            Answer(**item["answer"] | {"options": tuple(item["answer"].get("options", ()))})
            for item in items
        ),
    )
    return tasks, tuple(item["split"] for item in items)


@lru_cache(maxsize=1)
def builtin_tasks() -> tuple[TaskSet, tuple[str, ...]]:
    """:func:`read_tasks`, read once in a process; select from the set, never change it."""
    return read_tasks()


def load_role_embeddings() -> NDArray[np.float32]:
    """Return the embeddings (25, 384) of the roles, in the order of ``ROLES``.

    Raises:
        TaskError: the file is damaged.
    """
    embeddings = np.load(DATA / ROLES_FILE, allow_pickle=False)
    if embeddings.ndim != 2:
        raise TaskError(f"{ROLES_FILE} is damaged; reinstall the package")
    check_embeddings(embeddings, embeddings.shape[0], ROLES_FILE)
    return np.asarray(embeddings, dtype=np.float32)
