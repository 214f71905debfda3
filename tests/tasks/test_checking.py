"""Reference answers are run against their tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


ADDS = "def f(x): return x + 1"
IMPORTS = [("import numpy\nassert f(1) == 2", ADDS)]


def task(number: int, tests: str, reference: str) -> str:
    answer = {"kind": "tests", "value": tests, "entry_point": "f", "reference": reference}
    return json.dumps({"id": str(number), "text": "Write f.", "domain": "Code", "answer": answer})


@pytest.mark.parametrize(
    ("rows", "options", "status", "expected"),
    [
        (
            [("assert f(1) == 2", ADDS), ("assert f(1) == 2", "")], [], 0,
            ["1 of 1 reference answers pass (100.0 %); 1 tasks have tests and no reference"],
        ),
        (
            [(tests, ADDS) for tests in (
                "assert f(1) == 2", "assert f(1) == 3", "import nothing_there",
            )], [], 1,
            ["1 of 3 reference answers pass (33.3 %)", "code 1: AssertionError", "task '2': its"],
        ),
        (IMPORTS, ["--packages", ""], 1, ["they may import the standard library and no package"]),
        ([], [], 2, ["the task files hold no task"]),
    ],
)  # fmt: skip
def test_references_that_do_not_pass_are_named(
    tmp_path: Path,
    rows: list[tuple[str, str]],
    options: list[str],
    status: int,
    expected: list[str],
) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text("\n".join(task(n, *row) for n, row in enumerate(rows)))
    done = CliRunner().invoke(app, ["check", "tasks", str(path), *options])
    assert done.exit_code == status, done.output
    for line in expected:
        assert line in done.output
