"""Queries: built-in tasks, loaders for real ones, embeddings, splits and graders."""

from __future__ import annotations

from inframind_gym.tasks.embedding import Embedder, MiniLMEmbedder, embed_texts
from inframind_gym.tasks.graders import grade
from inframind_gym.tasks.shipped import load_role_embeddings
from inframind_gym.tasks.sources import BUILTIN_DATASETS, builtin_dataset, load_tasks
from inframind_gym.tasks.splits import SPLITS, split_of
from inframind_gym.tasks.taskset import (
    DOMAINS,
    EMBED_DIM,
    Answer,
    AnswerKind,
    TaskSet,
    estimate_tokens,
)

__all__ = [
    "BUILTIN_DATASETS",
    "DOMAINS",
    "EMBED_DIM",
    "SPLITS",
    "Answer",
    "AnswerKind",
    "Embedder",
    "MiniLMEmbedder",
    "TaskSet",
    "builtin_dataset",
    "embed_texts",
    "estimate_tokens",
    "grade",
    "load_role_embeddings",
    "load_tasks",
    "split_of",
]
