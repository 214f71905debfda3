"""Latent difficulty of tasks: what a text shows of it, and what it hides.

Over 29 models and 3,000 MMLU-Pro questions, ridge regression on the MiniLM embedding explains 0.18
of the variance of a question's difficulty (5-fold, on the published outcomes of these models). A
surrogate in which the embedding gave the difficulty away would flatter every learned router, so
the visible part of both kinds of tasks has that share of the variance. It bounds what a router can
learn: regression recovers about half of it (5-fold R² 0.06 to 0.13 on the built-in tasks, 0.10 on
MMLU-Pro), because a fixed direction is harder to learn than what real questions show.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from inframind_gym.tasks.taskset import EMBED_DIM

VISIBLE_R2 = 0.18  # share of a task's difficulty that depends on its embedding

_NORMAL = NormalDist()


def hashed_normal(key: str) -> float:
    """Return a standard normal number fixed by `key`, from 53 bits of its sha256."""
    bits = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11
    return _NORMAL.inv_cdf((bits + 0.5) / 2.0**53)


def standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n,) values shifted and scaled to mean 0 and sd 1; zeros where they do not vary."""
    centred = values - values.mean() if values.size else values
    spread = float(centred.std()) if values.size else 0.0
    if spread < 1e-12:
        return np.zeros_like(values)
    return np.asarray(centred / spread, dtype=np.float64)


@lru_cache(maxsize=1)
def _direction() -> NDArray[np.float64]:
    """The fixed unit vector (384,) of the embedding space along which real tasks get harder."""
    vector = np.array(
        [hashed_normal(f"inframind_gym/difficulty-direction/{i}") for i in range(EMBED_DIM)]
    )
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float64)


def mixed_difficulty(
    visible: NDArray[np.float64], hidden: NDArray[np.float64], visible_r2: float
) -> NDArray[np.float64]:
    """Return sqrt(R2)·visible + sqrt(1 - R2)·hidden, both (n,) in standard normal units."""
    return np.asarray(
        np.sqrt(visible_r2) * visible + np.sqrt(1.0 - visible_r2) * hidden, dtype=np.float64
    )


def folder_difficulty(contents: list[str], embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Difficulty of the tasks of one dataset that comes without difficulties of its own.

    Args:
        contents: (n,) what identifies a task (id and text); the hidden part is a standard normal
            of its hash.
        embeddings: (n, 384); the visible part is their projection on a fixed direction,
            standardised over the dataset.

    Returns:
        (n,) float32; its mean is near 0 and its standard deviation near 1.
    """
    visible = standardised(embeddings.astype(np.float64) @ _direction())
    hidden = np.array(
        [hashed_normal(f"inframind_gym/difficulty/{content}") for content in contents]
    )
    return mixed_difficulty(visible, hidden, VISIBLE_R2).astype(np.float32)
