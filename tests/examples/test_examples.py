"""The examples run, and stay short."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SHORT = {  # arguments that make it short, and what it prints
    "random_loop.py": (["--episodes", "3"], "200 queries/min: solved"),
    "own_policy.py": (["--queries", "20"], "own_policy:Mine"),
    "sb3_ppo.py": (["--steps", "256", "--num-envs", "4"], "total_timesteps"),
    "ppo_stream.py": (["--updates", "4", "--test-steps", "400"], "bound 0.845\nload 0.9: no query"),
    "assignment_table.py": (["--runs", "1"], "in turn"),
    "live_pool.py": (["--pool", "b200-2gpu", "--scripted-s", "2", "--queries", "3"], "query 2:"),
}


def test_every_example_is_run_and_short() -> None:
    examples = {path.name: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(examples) == set(SHORT)
    most = {"ppo_stream.py": 134}
    for name, text in examples.items():
        assert len(text.splitlines()) <= most.get(name, 60), name


@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    for extra in ("torch", "stable_baselines3"):
        if extra in (EXAMPLES / name).read_text("utf-8"):
            pytest.importorskip(extra)
    arguments, printed = SHORT[name]
    if name == "own_policy.py":
        arguments = [*arguments, "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout and "nan" not in done.stdout


def test_a_notebook_is_committed_without_outputs() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Jupyter runs it: the value of a cell's last expression is shown."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(json.loads((EXAMPLES / name).read_text("utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        where = f"{name}, cell {number}"
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), where, "eval"), names))
    picture, board = shown
    assert picture.size == (960, 540)
    assert "Goodput" in board and "srcdoc=" in board._repr_html_()
    data = json.loads(board.partition('id="data">')[2].partition("</script>")[0])
    assert {one["name"] for one in data["runs"][0]["policies"]} == {"bid_price", "least_loaded"}
