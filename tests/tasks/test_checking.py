"""Reference answers are run against their tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


def task(number: int, tests: str, reference: str) -> str:
    answer = {"kind": "tests", "value": tests, "entry_point": "f", "reference": reference}
    return json.dumps({"id": str(number), "text": "Write f.", "domain": "Code", "answer": answer})


@pytest.mark.parametrize(
    ("rows", "status", "expected"),
    [
        (
            [("assert f(1) == 2", "def f(x): return x + 1"), ("assert f(1) == 2", "")],
            0,
            ["1 of 1 reference answers pass (100.0 %); 1 tasks have tests and no reference"],
        ),
        (
            [
                ("assert f(1) == 2", "def f(x): return x + 1"),
                ("assert f(1) == 3", "def f(x): return x + 1"),
                ("import nothing_there", "def f(x): return x + 1"),
            ],
            1,
            ["1 of 3 reference answers pass (33.3 %)", "code 1: AssertionError", "task '2': its"],
        ),
    ],
)  # fmt: skip
def test_references_that_do_not_pass_are_named(
    tmp_path: Path, rows: list[tuple[str, str]], status: int, expected: list[str]
) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text("\n".join(task(n, *row) for n, row in enumerate(rows)))
    done = CliRunner().invoke(app, ["check", "tasks", str(path)])
    assert done.exit_code == status, done.output
    for line in expected:
        assert line in done.output


def test_packages_are_allowed_by_name(tmp_path: Path) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text(task(0, "import numpy\nassert f(1) == 2", "def f(x): return x + 1"))
    for packages, status in (("numpy", 0), ("", 1), ("no_such_package", 2)):
        arguments = ["check", "tasks", str(path), "--packages", packages]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == status, done.output


def test_a_folder_without_tasks_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", "tasks", str(tmp_path)])
    assert (done.exit_code, "holds no task file" in done.output) == (2, True)
