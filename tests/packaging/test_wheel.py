"""The wheel ships the package, its configurations and its data, and nothing else."""

from __future__ import annotations

import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import inframind_gym

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    (artifact,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(artifact)


def test_only_our_package_is_installed(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"inframind_gym"}


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "inframind_gym"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "inframind_gym/py.typed" in expected
    assert expected <= set(wheel.namelist())


def test_configurations_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    configs = sorted((ROOT / "envs_configs").rglob("*.yaml"))
    assert {path.parent.name for path in configs} >= {"pools", "workloads", "suites"}
    for path in configs:
        shipped = f"inframind_gym/_configs/{path.relative_to(ROOT / 'envs_configs').as_posix()}"
        assert wheel.read(shipped) == path.read_bytes()


def test_metadata(wheel: zipfile.ZipFile) -> None:
    info = f"inframind_gym-{inframind_gym.__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "inframind-gym"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert "inframind = inframind_gym.cli:app" in wheel.read(f"{info}/entry_points.txt").decode()
