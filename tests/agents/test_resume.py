"""A training continues with its own configuration and declared versions alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.masrouter import training
from agents.masrouter.training import MasRouterConfig, train
from agents.resume import check_resume
from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError

RUN = {"config": {"lr": 0.1, "env": {"pool": "b200-2gpu"}}, "seed": 0, "simulator_version": 1}


def test_the_same_training_continues_if_that_is_wanted() -> None:
    check_resume(Path("out"), {**RUN, "round": 7}, RUN, resume=True)
    with pytest.raises(ConfigError, match="out: holds a training; add --resume"):
        check_resume(Path("out"), RUN, RUN, resume=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"another seed \(0, not 1\)"),
        ({"simulator_version": 2}, r"another simulator_version \(1, not 2\)"),
        (
            {"config": {"lr": 0.1, "env": {"pool": "other"}}},
            r"another config\.env\.pool \('b200-2gpu', not 'other'\)",
        ),
        ({"config": {"lr": 0.1, "env": {"pool": "b200-2gpu"}, "new": 1}}, r"config\.new \(None"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_resume(Path("out"), RUN, {**RUN, **change}, resume=True)


def test_a_training_on_another_simulator_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
    plain = {
        "updates": 1,
        "validate_every": 1,
        "batch_size": 4,
        "validation_queries": 8,
        "usd_per_million_tokens": dict.fromkeys(models, 0.1),
    }
    config = validate(plain, MasRouterConfig, source="test")
    facts = train(config, seed=0, out=tmp_path)
    assert train(config, seed=0, out=tmp_path, resume=True) == facts
    monkeypatch.setattr(training, "SIMULATOR_VERSION", facts["simulator_version"] + 1)
    with pytest.raises(ConfigError, match="another simulator_version"):
        train(config, seed=0, out=tmp_path, resume=True)
