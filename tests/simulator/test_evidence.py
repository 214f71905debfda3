"""Simulations say once that they leave the load that a server card was fitted to."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml

import inframind_gym
from inframind_gym.configs import find_config
from inframind_gym.simulator.server import evidence
from inframind_gym.simulator.server.evidence import EvidenceWarning


@pytest.fixture(autouse=True)
def nothing_given() -> Iterator[None]:
    evidence._given.clear()
    yield
    evidence._given.clear()


def pool(folder: Path, **ranges: Any) -> str:
    """The pool single-gpu, in which the card of llama-8b says what it was fitted to."""
    data = yaml.safe_load(find_config("pools", "single-gpu").read_text(encoding="utf-8"))
    if ranges:
        data["models"][1]["server"]["evidence"] = {
            "sequences": [1, 8],
            "new_tokens": [1, 2048],
            **ranges,
        }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(path)


def said(pool: str, episodes: int = 2, **arguments: Any) -> list[str]:
    """Warnings of episodes in which all calls go to llama-8b."""
    env = gym.make(
        "InfraMind-Stream-v0", pool=pool, num_queries=30, arrival_rate_per_min=200.0, **arguments
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(episodes):
            env.reset(seed=seed)
            while not any(env.step(4)[2:4]):
                pass
    return [str(one.message) for one in caught if one.category is EvidenceWarning]


def test_a_larger_batch_is_said_once_with_card_range_value_and_remedy(tmp_path: Path) -> None:
    (text,) = said(pool(tmp_path, sequences=[1, 3]))
    for word in ("single-gpu", "llama-8b", "1 to 3 sequences at once", "reached 8", "calibrate"):
        assert word in text
    assert said(pool(tmp_path, sequences=[1, 3])) == []  # in this process


def test_all_workers_of_a_benchmark_say_it_once(tmp_path: Path) -> None:
    command = ["bench", "run", "--suite", "starter", "--policies", "round_robin,random", "--seeds"]
    command += ["2", "--set", "queries=30", "--set", "rates=200", "--workers", "2"]
    command += ["--out", "results"]
    command += ["--pool", pool(tmp_path, sequences=[1, 2])]
    done = subprocess.run(
        [sys.executable, "-c", "from inframind_gym.cli import app; app()", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(inframind_gym.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("llama-8b was fitted to 1 to 2 sequences at once") == 1
