"""Placement policies by name and by path: one loader, and no import of the baselines."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.policies import PolicyEntry, resolve_policy
from inframind_gym.policies.placement import registry as placement
from inframind_gym.policies.placement.registry import PLACEMENT_POLICIES
from inframind_gym.policies.registry import Registry

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
GROUP = "inframind_gym.placement_policies"


def test_every_name_is_resolved_with_its_arguments(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    shipped = ROOT / "inframind_gym/policies/checkpoints/placement_maskable_ppo"
    for made in (
        placement.make(f"sb3_maskable_ppo:{shipped}"),
        placement.resolve(f"sb3_maskable_ppo:{shipped}"),
        PLACEMENT_POLICIES.resolve(f"sb3_maskable_ppo:{shipped}"),
        placement.make("sb3_maskable_ppo", folder=str(shipped)),
    ):
        assert made.name == "sb3_maskable_ppo"
    with pytest.raises(ConfigError, match="write sb3_maskable_ppo:FOLDER"):
        placement.make("sb3_maskable_ppo:a:b")
    for entry in (*placement.PLACEMENTS, *placement.BOUNDS):
        assert isinstance(entry, PolicyEntry)


def test_families_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'lru'"):
        resolve_policy("lru")
    with pytest.raises(ConfigError, match="unknown placement policy 'least_loaded'"):
        PLACEMENT_POLICIES.resolve("least_loaded")


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


def test_the_entry_point_names_who_registers(tmp_path: Path) -> None:
    """What is installed with the checkout finds the names, in a process that imported nothing."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    at = lines.index(f'[project.entry-points."{GROUP}"]')
    name, module = (part.strip(' "') for part in lines[at + 1].split("="))
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\nabsent = not_there\n")
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "from inframind_gym.policies.placement.registry import PLACEMENT_POLICIES as known\n"
        "assert not [name for name in sys.modules if name.startswith('baselines')]\n"
        "assert known.resolve('lru').name == 'lru'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_nothing_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    family: Registry[object] = Registry(
        "toy policy", lambda policy, *_: policy, remedy="Install toys.", group="toys"
    )
    with pytest.raises(ConfigError, match=r"unknown toy policy 'ball'.*Install toys\."):
        family.resolve("ball")
    broken = [EntryPoint("x", "tests.placement.no_such_module", "toys")]
    monkeypatch.setattr("inframind_gym.policies.registry.entry_points", lambda group: broken)
    with pytest.raises(ConfigError, match="unknown toy policy 'ball'"):
        family.resolve("ball")


def test_a_broken_package_takes_nobody_elses_policies_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plug.py").write_text("raise RuntimeError('half installed')\n")
    (tmp_path / "lacking_plug.py").write_text("import a_dependency_that_is_missing\n")
    (tmp_path / "own_policy.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [EntryPoint(name, name, "toys") for name in ("broken_plug", "lacking_plug")]
    monkeypatch.setattr("inframind_gym.policies.registry.entry_points", lambda group: found)
    family: Registry[object] = Registry(
        "toy policy", lambda policy, *_: policy, remedy="Install toys.", group="toys"
    )
    assert type(family.resolve("own_policy:Mine")).__name__ == "Mine"
    with pytest.raises(ConfigError, match="unknown toy policy 'ball'") as refused:
        family.resolve("ball")
    assert "half installed" in str(refused.value)
    assert "a_dependency_that_is_missing" in str(refused.value)


def test_the_package_names_no_baselines() -> None:
    """Nothing in `inframind_gym` imports baselines, not by a string either."""
    for path in (ROOT / "inframind_gym").rglob("*.py"):
        assert 'import_module("baselines' not in path.read_text(), path
