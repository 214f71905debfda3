"""Placement policies by name and by path, and the registry of policies behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.placement import registry as placement
from inframind_gym.policies.placement.registry import POLICIES

ROOT = Path(__file__).parents[2]
OWN = """
import numpy as np

class Idle:
    name = "idle"
    def reset(self, spec, seeds):
        self.num_gpus = spec.num_gpus
    def act_batch(self, observations, contexts, rows):
        return np.zeros((len(rows), self.num_gpus), np.int64)
"""


def test_every_name_is_resolved_with_its_arguments() -> None:
    pytest.importorskip("safetensors")
    shipped = ROOT / "inframind_gym/policies/checkpoints/placement_maskable_ppo"
    for made in (
        placement.resolve(f"sb3_maskable_ppo:{shipped}"),
        placement.resolve("sb3_maskable_ppo", folder=str(shipped)),
    ):
        assert made.name == "sb3_maskable_ppo"
    with pytest.raises(ConfigError, match="write sb3_maskable_ppo:FOLDER"):
        placement.resolve("sb3_maskable_ppo:a:b")


def test_families_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'lru'"):
        resolve_policy("lru")
    with pytest.raises(ConfigError, match="unknown placement policy 'least_loaded'"):
        POLICIES.resolve("least_loaded")


def test_a_policy_of_the_working_directory_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is searched last, whoever asks."""
    (tmp_path / "idle_placement.py").write_text(OWN)
    (tmp_path / "yaml.py").write_text("raise RuntimeError('hidden')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert placement.resolve("idle_placement:Idle").name == "idle"
    assert sys.path[0] != str(tmp_path) and sys.path[-1] == str(tmp_path)
    del sys.modules["idle_placement"]
    assert yaml.safe_load("1") == 1


def test_names_are_known_to_a_process_that_imported_nothing_else(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from inframind_gym.policies.placement.registry import POLICIES as known\n"
        "assert known.resolve('lru').name == 'lru'\n"
        "assert not [name for name in sys.modules if name.startswith('baselines')]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
