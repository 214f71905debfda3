"""Latent difficulty of tasks: what a text shows of it, and what it hides.

Over 29 models and the MMLU-Pro questions whose texts are at hand, ridge regression on the MiniLM
embedding explains 0.17 of the variance of a question's difficulty out of sample
(`benchmarks/fit/fitted/outcomes.json`, by ``python -m benchmarks.fit.outcomes``). A surrogate in
which the embedding gave the difficulty away would flatter every learned router, so the same
regression finds no more in our tasks: difficulty is a visible part along the direction that it
learned from the real outcomes, shipped with the package, and a part that shows nowhere.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Share of a task's difficulty that depends on its embedding: with it the regression recovers 0.165
# on the texts of MMLU-Pro (mean of 8 draws), about what it finds in the real outcomes.
VISIBLE_R2 = 0.2

_DIRECTION_FILE = Path(__file__).resolve().parent / "data" / "difficulty_direction.npy"
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
    """The unit vector (384,) of the embedding space along which real questions get harder."""
    vector = np.load(_DIRECTION_FILE, allow_pickle=False).astype(np.float64)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float64)


def folder_difficulty(contents: list[str], embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Difficulty of the tasks of one dataset that comes without difficulties of its own.

    Args:
        contents: (n,) what identifies a task (id and text); the hidden part is a standard normal
            of its hash.
        embeddings: (n, 384); the visible part is their projection on the direction in which real
            questions get harder, standardised over the dataset.

    Returns:
        (n,) float32; its mean is near 0 and its standard deviation near 1.
    """
    visible = standardised(embeddings.astype(np.float64) @ _direction())
    hidden = np.array(
        [hashed_normal(f"inframind_gym/difficulty/{content}") for content in contents]
    )
    mixed = np.sqrt(VISIBLE_R2) * visible + np.sqrt(1.0 - VISIBLE_R2) * hidden
    return np.asarray(mixed, dtype=np.float32)
