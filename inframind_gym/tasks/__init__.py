"""Queries: built-in tasks, loaders for real ones, embeddings, splits and graders.

Embedders and graders are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from inframind_gym.tasks.embedding import Embedder, MiniLMEmbedder, embed_texts
    from inframind_gym.tasks.graders import grade
else:
    _LATER = {
        "Embedder": "embedding",
        "MiniLMEmbedder": "embedding",
        "embed_texts": "embedding",
        "grade": "graders",
    }

    def __getattr__(name: str) -> Any:
        """Return a name that is imported when it is first used."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
