"""Queries: built-in tasks, loaders for real ones, embeddings, splits, grading and its sandbox.

`embedding`, `grading` and `sandbox` are imported where they are used.
"""

from inframind_gym.tasks.loaders import (
    BUILTIN_DATASETS,
    builtin_dataset,
    load_role_embeddings,
    load_tasks,
)
from inframind_gym.tasks.taskset import (
    DOMAINS,
    EMBED_DIM,
    SPLITS,
    Answer,
    AnswerKind,
    TaskSet,
    estimate_tokens,
    split_of,
)

__all__ = [
    "BUILTIN_DATASETS",
    "DOMAINS",
    "EMBED_DIM",
    "SPLITS",
    "Answer",
    "AnswerKind",
    "TaskSet",
    "builtin_dataset",
    "estimate_tokens",
    "load_role_embeddings",
    "load_tasks",
    "split_of",
]
