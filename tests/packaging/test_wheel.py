"""The wheel ships the package, its configurations and its data, and benchmarks from anywhere."""

from __future__ import annotations

import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import inframind_gym

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (artifact,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(artifact)


@pytest.fixture(scope="module")
def wheel(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


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
    assert metadata["Version"] == inframind_gym.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert "inframind = inframind_gym.cli:app" in wheel.read(f"{info}/entry_points.txt").decode()


@pytest.mark.slow
def test_a_bare_environment_ranks_every_policy_of_the_quick_suite(
    path: Path, tmp_path: Path
) -> None:
    """The wheel is unpacked into a bare venv, which finds the dependencies in this one's folder.

    `.ci/run` tries the same with dependencies of their own, see `INFRAMIND_WHEEL_VENV`.
    """
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
