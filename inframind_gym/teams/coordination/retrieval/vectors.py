"""Embeddings of passages and queries: all-MiniLM-L6-v2, or hashed words where it is missing."""

from __future__ import annotations

import importlib.util
import math
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, TaskError
from inframind_gym.files import read_json
from inframind_gym.tasks.embedding import MiniLMEmbedder, embed_texts, find_model
from inframind_gym.teams.coordination.retrieval.text import terms

HASHED_DIM: Final = 1024


class MiniLM:
    """all-MiniLM-L6-v2; embeddings of passages are cached on disk, those of queries in memory."""

    name = "minilm"

    def __init__(self) -> None:
        self._model = MiniLMEmbedder()
        self._one_at_a_time = threading.Lock()  # its tokenizer is for one thread
        self._query = lru_cache(maxsize=4096)(self._embed)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return embeddings of unit length, ``(n, 384)``."""
        with self._one_at_a_time:
            return _unit(embed_texts(texts, self._model))

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the embedding of a query, ``(384,)``."""
        found: NDArray[np.float32] = self._query(text)
        return found

    def _embed(self, text: str) -> NDArray[np.float32]:
        with self._one_at_a_time:
            found: NDArray[np.float32] = _unit(self._model([text]))[0]
        return found


class HashedWords:
    """Stems and letters of words, hashed: finds what is written alike, not what means the same."""

    name = "hashed"

    def __init__(self) -> None:
        self._rarity: dict[str, float] = {}

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return embeddings of unit length, ``(n, 1024)``; rare words of these texts weigh more."""
        counts = Counter(feature for text in texts for feature in set(_features(text)))
        self._rarity = {f: math.log(1 + len(texts) / n) for f, n in counts.items()}
        return np.stack([self.query(text) for text in texts])

    def query(self, text: str) -> NDArray[np.float32]:
        """Return the embedding of a query, ``(1024,)``."""
        vector = np.zeros((1, HASHED_DIM), np.float32)
        for feature, count in Counter(_features(text)).items():
            place = zlib.crc32(feature.encode())
            sign = 1.0 if place & 1 else -1.0
            weight = self._rarity.get(feature, 0.0) * (1 + math.log(count))
            vector[0, (place >> 1) % HASHED_DIM] += sign * weight
        found: NDArray[np.float32] = _unit(vector)[0]
        return found


Vectors = MiniLM | HashedWords


def available() -> Vectors:
    """Return all-MiniLM-L6-v2 if it is installed with its weights, else hashed words."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return HashedWords()
    try:
        find_model()
    except TaskError:
        return HashedWords()
    return MiniLM()


@cache
def known_words() -> frozenset[str]:
    """Return words that the encoder has a token for, so no typos; none without the encoder."""
    try:
        data: Any = read_json(find_model() / "tokenizer.json")
    except ConfigError:
        return frozenset()
    return frozenset(word for word in data["model"]["vocab"] if word.isalpha())


def _features(text: str) -> list[str]:
    found = terms(text)
    return found + [f"#{t[i : i + 4]}" for t in found for i in range(len(t) - 3) if len(t) > 4]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-9), np.float32)
