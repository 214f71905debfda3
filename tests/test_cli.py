"""`inframind`: its commands are found, and load only what they use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import inframind_gym
from inframind_gym.check import kinds_of
from inframind_gym.cli import app
from inframind_gym.commands import CommandGroup
from inframind_gym.configs import KINDS, find_config, list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.policies.checkpoint import SHIPPED

LOADED = """
import sys
from inframind_gym.cli import app
try:
    app({arguments!r})
except SystemExit as error:
    assert not error.code, error.code
heavy = ("numba", "torch", "scipy", "inframind_gym.evaluation", "inframind_gym.calibration")
print("loaded", *(name for name in heavy if name in sys.modules))
"""


def test_the_version_loads_nothing_heavy() -> None:
    code = LOADED.format(arguments=["--version"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"inframind-gym {inframind_gym.__version__}", "loaded"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "bench"), (["bench"], "leaderboard"), (["submit", "prepare"], "--training-queries")],
)
def test_every_command_shows_its_help(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, [*arguments, "--help"])
    assert done.exit_code == 0, done.output
    assert expected in done.stdout
    assert ("--show-completion" in done.stdout) == (arguments == [])


def check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("b200-2gpu", "pool, 5 models on 2 GPUs"),
        ("mixed", "workload, 500 queries an episode, "),
        ("starter", "suite of routing, 10 policies, 3 cells of 5 episodes each"),
        ("h100-4gpu", "cluster, 4 GPUs, 6 models"),
        ("bursty", "demand, 24 jobs per GPU and minute"),
        ("assignment", "assignment team, 11 tasks"),
        ("token_budget", "token-budget team, 3 strategies"),
        ("coordination", "coordination team, answers by 3 s"),
        ("static:llama-8b:Flash", "policy static:llama-8b:Flash"),
        ("tests.evaluation.policies_under_test:Cheapest", "policy "),
        ("install", "compiled code: "),
        (f"masrouter:{SHIPPED / 'masrouter'}", "policy masrouter:"),
        ("trace.csv", "arrival trace, 2 requests in 4 s (15.0 a minute)"),
        ("folder", "1 questions, math 1"),
        ("pool.yaml", "pool, 3 models on 1 GPU"),
    ],
)
def test_what_a_file_is_and_holds(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    (tmp_path / "folder").mkdir()
    for name, content in {
        "trace.csv": "timestamp,input,output\n0,1,1\n4,1,1\n",
        "folder/q.jsonl": json.dumps({"id": 1, "problem": "1 + 1?", "answer": "2"}),
        "pool.yaml": find_config("pools", "single-gpu").read_text(encoding="utf-8"),
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    status, output = check(target)
    assert (status, said in output) == (0, True), output


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in list_configs(kind)]
)
def test_every_shipped_file_is_known_by_its_keys(kind: str, name: str) -> None:
    known_as = {"teams/pools": "pools"}.get(kind, kind)  # pools like any other
    assert kinds_of(str(find_config(kind, name))) == [known_as]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["b200"], "Did you mean 'b200-2gpu'?"),
        (["suite", "quick"], "unknown kind 'suite'. Did you mean 'suites'?"),
        (["./loop.yaml"], "loop.yaml: no such file or folder. Did you mean 'typo.yaml'?"),
        (["typo.yaml"], "typo.yaml:1: schedular: unknown key. Did you mean 'scheduler'?"),
        (["other.yaml"], "are those of no file that is known"),
        (["suite.yaml"], "suite.yaml: unknown pool 'nowhere'"),
        (["workloads", "typo.yaml"], "typo.yaml:23: models: input should be a valid dictionary"),
        (["instal"], "Did you mean 'install'?"),
        (["mine.py"], "mine:Class"),
        (["results"], "inframind bench leaderboard results"),
    ],
)
def test_what_is_wrong_with_a_file(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pool = find_config("pools", "single-gpu").read_text(encoding="utf-8")
    suite = find_config("suites", "starter").read_text(encoding="utf-8")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "results").mkdir()
    for name, content in {
        "typo.yaml": f"schedular: edf\n{pool}",
        "other.yaml": "version: 3\nservices: {}\n",
        "suite.yaml": suite.replace("b200-2gpu", "nowhere"),
        **dict.fromkeys(("mine.py", "results/run.json"), ""),
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    status, output = check(*arguments)
    assert (status, said in output) == (2, True), output


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [(["--help"], 0, "bench"), (["check", "βudget"], 2, "udget' is nothing that is known")],
)
def test_an_ascii_locale_prints(arguments: list[str], status: int, said: str) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    code = "from inframind_gym.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, env=os.environ | ascii_only
    )
    output = (done.stdout + done.stderr).decode("ascii")
    assert (done.returncode, said in output) == (status, True), output


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("no such pool"), 2, "error: no such pool\n"),
        (ZeroDivisionError(), 1, ""),  # a traceback, which is the interpreter's
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_wrong_input_alone_ends_with_one_line(error: BaseException, status: int, said: str) -> None:
    program = typer.Typer(cls=CommandGroup)

    @program.callback(invoke_without_command=True)
    def fail() -> None:
        raise error

    done = CliRunner().invoke(program)
    assert (done.exit_code, done.stderr) == (status, said)
