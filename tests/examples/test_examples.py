"""The examples run, and stay short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SHORT = {  # arguments that make it short, and what it prints
    "random_loop.py": (["--episodes", "3"], "200 queries/min: solved"),
    "own_policy.py": (["--queries", "20"], "own_policy:Mine"),
    "sb3_ppo.py": (["--steps", "256", "--num-envs", "4"], "total_timesteps"),
    "ppo_lagrangian.py": (["--updates", "2", "--num-envs", "8", "--num-steps", "16"], "λ"),
    "assignment_table.py": (["--runs", "2"], "in turn"),
    "live_pool.py": (["--pool", "b200-2gpu", "--scripted-s", "2", "--queries", "3"], "query 2:"),
}


def test_every_example_is_run_and_short() -> None:
    examples = {path.name: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(examples) == set(SHORT)
    assert all(len(text.splitlines()) <= 60 for text in examples.values())


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
    assert printed in done.stdout
