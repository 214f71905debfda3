"""The README's code runs as printed, and what it points to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from inframind_gym.policies import load_policy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_block(containing: str) -> str:
    """The one Python block of the README that contains a text."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if containing in block]
    return str(block)


def test_research_loop(tmp_path: Path) -> None:
    block = python_block("gym.make(")
    assert len(block.strip().splitlines()) <= 16
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(not )?solved in \d+\.\d\d of its budget", done.stdout.strip())


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_router.py").write_text(python_block("# my_router.py"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    policy = load_policy("my_router:ShortestWait")
    env = gym.make("inframind_gym:InfraMind-Stream-v0", num_queries=20)
    observation, _ = env.reset(seed=0)
    shell: Any = env.unwrapped
    policy.reset(shell.policy_spec(), [0])
    solved, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(
            policy.act(observation, shell.context())
        )
        solved, over = solved + float(reward), terminated or truncated
    assert 0 < solved <= 20


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
