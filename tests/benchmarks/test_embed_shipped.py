"""The shipped embeddings are those of the shipped texts."""

import json

import pytest

from benchmarks import embed_shipped
from inframind_gym.errors import TaskError
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.tasks.taskset import DATA


def test_a_changed_role_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    embed_shipped.check()
    found = json.loads((DATA / embed_shipped.MANIFEST_FILE).read_text())
    assert found == embed_shipped.manifest()
    assert set(found["model"]) == {"model.safetensors", "tokenizer.json"}
    monkeypatch.setattr(embed_shipped, "ROLES", ROLES[:-1])
    with pytest.raises(TaskError, match=r"roles, roles_sha256.*benchmarks\.embed_shipped"):
        embed_shipped.check()
