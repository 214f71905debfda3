"""Training on test questions, where a checkpoint tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.policies import checkpoint
from inframind_gym.tasks import load_tasks

_UNSEEN: Final = ("test", "all")  # splits that no training may use
_SAME: Final = 0.9999  # cosine from which on two embeddings are of one question


def require_unseen(folder: Path) -> None:
    """Check that no checkpoint below a folder names the test split or holds its questions.

    Raises:
        InfraMindError: One does, or is damaged.
    """
    for path in sorted(folder.rglob("*.safetensors")):
        tensors, config = checkpoint.load(path.parent)
        for split in _splits(config):
            if split in _UNSEEN:
                raise BenchmarkError(
                    f"{path.parent}: says that the split {split!r} was used in training, which has "
                    "the questions of the test. Train on train, choose on val."
                )
        for name, array in tensors.items():
            if array.dtype.kind == "f" and array.ndim and array.shape[-1] == EMBED_DIM:
                found = int((_cosines(array) > _SAME).any(axis=0).sum())
                if found:
                    raise BenchmarkError(
                        f"{path}: {name} holds the embeddings of {found} questions of the test. "
                        "Train on train, choose on val."
                    )


def _splits(content: Any) -> Iterator[Any]:
    """Yield what stands under "split" and "splits", at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in ("split", "splits"):
                yield from value if isinstance(value, list) else [value]
            yield from _splits(value)
    elif isinstance(content, list):
        for value in content:
            yield from _splits(value)


def _cosines(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return the cosines of the rows of an array with the test questions' embeddings."""
    return _unit(array) @ _test_questions().T


@cache
def _test_questions() -> NDArray[np.float64]:
    """Return the embeddings of built-in questions that are in the test split alone, (n, 384)."""
    test, train, val = (_unit(load_tasks(split=of).embeddings) for of in ("test", "train", "val"))
    alone = (test @ np.concatenate([train, val]).T).max(axis=1) < _SAME
    return np.asarray(test[alone], np.float64)


def _unit(array: NDArray[Any]) -> NDArray[np.float64]:
    rows = np.asarray(array, np.float64).reshape(-1, EMBED_DIM)
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(rows / lengths, np.float64)
