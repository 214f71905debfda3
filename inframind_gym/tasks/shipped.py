"""Data that the package ships: built-in tasks and the embeddings of the roles.

Needs numpy alone; ``python -m benchmarks.embed_shipped`` embeds their texts in a checkout.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import TaskError
from inframind_gym.tasks.taskset import check_embeddings

DATA = Path(__file__).resolve().parent / "data"
TASKS_FILE = "builtin_tasks.jsonl.gz"
EMBEDDINGS_FILE = "builtin_embeddings.npy"
ROLES_FILE = "role_embeddings.npy"


def load_role_embeddings() -> NDArray[np.float32]:
    """Return the embeddings (25, 384) of the roles, in the order of ``ROLES``.

    Raises:
        TaskError: the file is damaged.
    """
    embeddings = np.load(DATA / ROLES_FILE, allow_pickle=False)
    if embeddings.ndim != 2:
        raise TaskError(f"{ROLES_FILE} is damaged; reinstall the package")
    return check_embeddings(embeddings, len(embeddings), ROLES_FILE).astype(np.float32)
