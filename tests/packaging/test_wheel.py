"""The wheel ships the package, its configurations and its data, and benchmarks from anywhere."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import inframind_gym
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (artifact,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(artifact)


def test_the_wheel_has_every_file_and_only_our_package(built: Path) -> None:
    wheel, info = zipfile.ZipFile(built), f"inframind_gym-{inframind_gym.__version__}.dist-info"
    names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names} == {"inframind_gym", info}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "inframind_gym").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "inframind_gym/py.typed" in expected and expected <= names
    configs = sorted((ROOT / "envs_configs").rglob("*.yaml"))
    assert {path.parent.name for path in configs} >= {"pools", "workloads", "suites"}
    for path in configs:
        shipped = f"inframind_gym/_configs/{path.relative_to(ROOT / 'envs_configs').as_posix()}"
        assert wheel.read(shipped) == path.read_bytes()
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "inframind-gym"
    assert metadata["Version"] == inframind_gym.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in names
    assert "inframind = inframind_gym.cli:app" in wheel.read(f"{info}/entry_points.txt").decode()


def interpreter(version: str) -> str:
    """Path of a Python of this version: this one, one of $PYTHONS, or one on the path."""
    ours = ".".join(platform.python_version_tuple()[:2])
    known = [sys.executable] * (version == ours) + os.environ.get("PYTHONS", "").split()
    for found in (*known, shutil.which(f"python{version}")):
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        if found and subprocess.run([found, "-c", ask], capture_output=True).stdout.split() == [
            version.encode()
        ]:
            return found
    pytest.skip(f"no Python {version} here: make wheel PYTHONS=/path/to/python{version}")


@pytest.mark.wheel
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_bare_environment_ranks_the_policies_of_a_suite(
    built: Path, tmp_path: Path, version: str
) -> None:
    """Only the wheel and its dependencies are there, and nothing of the checkout."""
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
    run = tmp_path / "venv" / "bin"
    pip = [run / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", built]
    subprocess.run(pip, check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    (tmp_path / "empty").mkdir()

    def inframind(*arguments: str) -> str:
        done = subprocess.run(
            [run / "inframind", *arguments],
            cwd=tmp_path / "empty",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert inframind("--version").strip() == f"inframind-gym {inframind_gym.__version__}"
    assert "makes it at first use" in inframind("check", "install")
    first = "import gymnasium as gym, inframind_gym; gym.make('InfraMind-Stream-v0').reset()"
    subprocess.run([run / "python", "-c", first], cwd=tmp_path, env=environment, check=True)
    began_s = sum(os.times()[2:4])  # of children
    subprocess.run([run / "python", "-c", first], cwd=tmp_path, env=environment, check=True)
    assert sum(os.times()[2:4]) - began_s < 2.0
    policies = list(POLICIES["routing"])
    assert {*load_suite("starter").policies} <= {*policies}
    assert all(entry.path.startswith("inframind_gym.") for entry in POLICIES["routing"].values())
    small = ["--seeds", "1", "--set", "queries=20", "--set", "division=orchestrate"]
    small += ["--policies", ",".join(policies)]
    board = json.loads(inframind("bench", "run", "--suite", "starter", *small, "--json"))
    assert {row["policy"] for row in board["ranking"]} == set(policies)
    assert board["records"] == len(policies) * 3 * 20
    assert "goodput" in inframind("bench", "leaderboard", "results/starter")
    assert "paired means" in inframind(
        "bench", "compare", "results/starter", "random", "least_loaded"
    )
