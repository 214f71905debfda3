"""The file of hyperparameters: complete, and a typo in it is an error that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines.hyperparameters import DEFAULT_FILE, load_hyperparameters
from inframind_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ("  clip_range: 0.2", "  clip_rage: 0.2", r"ppo\.clip_rage: unknown key.*'clip_range'"),
        ("  largest: 1.0", "  largest: -1", r"lagrangian\.largest: .*greater than or equal to 0"),
        ("  vf_coef: 0.5", "", r"ppo\.vf_coef: this key is required"),
        ("  start_probability: 0.5", "  start_probability: 1", r"start_probability: .*less than 1"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, line: str, changed: str, message: str) -> None:
    text = DEFAULT_FILE.read_text(encoding="utf-8")
    assert line in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(line, changed, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_hyperparameters(path)
