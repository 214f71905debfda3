"""`inframind`: its commands are found, and load only what they use."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import inframind_gym
from inframind_gym.cli import app

LOADED = """
import sys
from inframind_gym.cli import app
try:
    app({arguments!r})
except SystemExit as error:
    assert not error.code, error.code
heavy = ("numba", "torch", "scipy", "inframind_gym.benchmark", "inframind_gym.calibration")
print("loaded", *(name for name in heavy if name in sys.modules))
"""


def test_the_version_loads_nothing_heavy() -> None:
    code = LOADED.format(arguments=["--version"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"inframind-gym {inframind_gym.__version__}", "loaded"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "bench"),
        (["bench"], "leaderboard"),
        (["pool"], "place"),
        (["calibrate"], "--max-num-seqs"),
        (["replay"], "--"),
        (["sim2real"], "--"),
    ],
)
def test_every_command_shows_its_help(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, [*arguments, "--help"])
    assert done.exit_code == 0, done.output
    assert expected in done.stdout
    assert ("--show-completion" in done.stdout) == (arguments == [])


def test_configurations_are_checked_by_kind() -> None:
    def check(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["check", *arguments])
        return done.exit_code, done.output

    for kind, name in (
        ("pools", "b200-2gpu"),
        ("workloads", "math"),
        ("suites", "placement_quick"),
        ("placement/clusters", "h100-4gpu"),
    ):
        status, output = check(kind, name)
        assert (status, output.rstrip().endswith("valid")) == (0, True), output
    assert check("pools", "b200")[0] == 2
    assert "Did you mean 'suites'" in check("suite", "quick")[1]
