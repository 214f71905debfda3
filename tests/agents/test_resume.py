"""A training goes on with the code that it was begun with, unless it is told to take other code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents import resume, sources
from agents.masrouter.training import LAST, MasRouterConfig
from agents.masrouter.training import train as train_masrouter
from agents.resume import CODES, check_code
from agents.sources import sources_digest
from agents.tracking import read_metrics
from agents.train import app
from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint

OTHER = "0123456789abcdef"
TINY = [
    *("--config", "inframind", "--set", "env.num_queries=4", "--set", "rates_per_min=[100]"),
    *("--set", "rows_per_shard=2", "--set", "shards=1", "--set", "validation.rows=1"),
]


def edit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "sources_digest", lambda: OTHER)


def test_other_code_is_refused_or_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = sources_digest()
    assert check_code(tmp_path, [now], changed=False) == (now,)
    with pytest.raises(ConfigError, match=r"unknown, now.*--resume-changed-code"):
        check_code(tmp_path, (), changed=False)
    edit_code(monkeypatch)
    with pytest.raises(ConfigError, match=rf"{now[:12]}, now 0123.*--resume-changed-code"):
        check_code(tmp_path, [now], changed=False)
    assert capsys.readouterr().err == ""
    assert check_code(tmp_path, [now], changed=True) == (now, OTHER)
    assert "other code" in capsys.readouterr().err
    assert check_code(tmp_path, (), changed=True) == ("unknown", OTHER)


def test_the_digest_is_that_of_the_code_which_trainings_rest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    digests = []
    for path in (
        "agents/a.py",
        "baselines/b.py",
        "inframind_gym/simulator/placement/c.py",
        "agents/d.md",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
        digests.append(sources_digest.__wrapped__())
    assert len(set(digests)) == 1
    (tmp_path / "agents" / "a.py").write_text("x = 2\n")
    assert sources_digest.__wrapped__() != digests[0]


def test_inframind_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*TINY, "--out", str(out), *arguments])
        return result.exit_code, result.output

    assert call("--set", "epochs=1")[0] == 0
    assert call("--set", "epochs=1", "--resume")[0] == 0
    edit_code(monkeypatch)
    code, output = call("--set", "epochs=1", "--resume")
    assert code == 2 and "--resume-changed-code" in output
    code, output = call("--set", "epochs=1", "--resume-changed-code")
    assert code == 0 and "other code" in output
    about = json.loads((out / "best" / checkpoint.CONFIG_FILE).read_text())
    assert about["training"]["code"] == [sources_digest(), OTHER]
    assert [line[CODES] for line in read_metrics(out / "metrics.jsonl") if CODES in line] == [2]


def test_masrouter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
    plain = {
        "updates": 1,
        "validate_every": 1,
        "batch_size": 4,
        "validation_queries": 8,
        "usd_per_million_tokens": dict.fromkeys(models, 0.1),
    }
    config = validate(plain, MasRouterConfig, source="test")
    train_masrouter(config, seed=0, out=tmp_path)
    assert checkpoint.load(tmp_path / LAST)[1]["code"] == [sources_digest()]
    edit_code(monkeypatch)
    with pytest.raises(ConfigError, match="--resume-changed-code"):
        train_masrouter(config, seed=0, out=tmp_path, resume=True)
    found = train_masrouter(config, seed=0, out=tmp_path, resume=True, resume_changed_code=True)
    assert found["code"] == [sources_digest(), OTHER]


def test_the_digest_covers_what_a_planner_begins_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial, played = (tmp_path / "agents/checkpoints" / n for n in ("masrouter", "bid_price"))
    for folder in (initial, played):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"1")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    digest = sources_digest.__wrapped__
    before = digest(("agents",))
    (played / "model.safetensors").write_bytes(b"2")  # no training reads it
    assert digest(("agents",)) == before
    (initial / "model.safetensors").write_bytes(b"2")
    assert digest(("agents",)) != before
