"""The README's code runs as printed; links and commands of all pages exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import typer

import benchmarks.__main__  # noqa: F401  (adds its commands)
from inframind_gym import cli
from inframind_gym.benchmark.cli import app as benchmark_app
from inframind_gym.policies import load_policy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    quoted = "\n".join(part.replace("\n", " ") for part in re.findall(r"`([^`]+)`", text))
    to_copy = blocks.splitlines()
    for line in (*to_copy, *quoted.splitlines()):
        found = re.match(r"(?:\S*/)?(inframind|python -m (\S+))(?= |$)(.*)", line.split("  #")[0])
        if found is None or "…" in line:
            continue
        module = found[2]
        if module not in (None, "benchmarks"):
            assert importlib.util.find_spec(module), line
            continue
        command: Any = typer.main.get_command(benchmark_app if module else cli.app)
        words = found[3].split()
        for word in words:
            if hasattr(command, "list_commands") and not word.startswith("-"):
                assert word in command.list_commands(None), line
                command = command.get_command(None, word)
            elif re.match(r"--?[a-z]", word):
                options = {name for param in command.params for name in param.opts}
                assert word.split("=")[0] in options, f"{word} of: {line}"
        if line in to_copy:
            wanted = [param.opts for param in command.params if param.required]
            options = [opts for opts in wanted if opts[0].startswith("-")]
            assert all({*opts} & {*words} for opts in options), f"{options} of: {line}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
