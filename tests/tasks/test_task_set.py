"""TaskSet, splits and latent difficulty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.tasks.taskset import (
    EMBED_DIM,
    SPLITS,
    Answer,
    TaskSet,
    split_of,
    split_of_stem,
)


def make_set(n: int = 5, **changes: Any) -> TaskSet:
    fields: dict[str, Any] = {
        "name": "toy",
        "ids": tuple(f"t{i}" for i in range(n)),
        "texts": tuple(f"text {i}" for i in range(n)),
        "datasets": ("toy",) * n,
        "domain": np.arange(n, dtype=np.int8) % 3,
        "difficulty": np.linspace(-1, 1, n, dtype=np.float32),
        "prompt_tokens": np.full(n, 2, dtype=np.int32),
        "embeddings": np.eye(n, EMBED_DIM, dtype=np.float32),
        "answers": tuple(Answer("number", str(i)) for i in range(n)),
    }
    return TaskSet(**(fields | changes))


def test_select_by_indices_keeps_their_order_and_all_fields() -> None:
    tasks = make_set()
    chosen = tasks.select([3, 0, 3])
    assert len(chosen) == 3
    assert chosen.ids == ("t3", "t0", "t3")
    assert chosen.texts == ("text 3", "text 0", "text 3")
    assert chosen.domain.tolist() == [0, 0, 0]
    assert chosen.answers[1].value == "0"
    assert chosen.embeddings[:, 3].tolist() == [1.0, 0.0, 1.0]
    assert chosen.difficulty.dtype == np.float32
    chosen.embeddings[:] = chosen.difficulty[:] = 7.0  # copies
    assert tasks.embeddings.max() == tasks.difficulty.max() == 1.0


def test_split_never_changes() -> None:
    """Pinned: results of other versions are compared on the same tasks."""
    found = [split_of(f"math/{i}", "What is 1 + 1?") for i in range(16)]
    assert "".join(str(SPLITS.index(name)) for name in found) == "0020000220000200"


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("mbpp_test", ("mbpp", "test")),
        ("mmlu_pro-validation", ("mmlu_pro", "val")),
        ("own.train", ("own", "train")),
        ("gsm_hard", ("gsm_hard", None)),
        ("test", ("test", None)),
        ("_test", ("_test", None)),
    ],
)
def test_split_of_a_stem(stem: str, expected: tuple[str, str | None]) -> None:
    assert split_of_stem(stem) == expected
