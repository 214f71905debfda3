"""What a person types, on real vLLM: the registered environments and the benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym
from inframind_gym.evaluation.store import read_cells
from tests.live.launch.play import ROOT, session
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import each_call_once, records, until

pytestmark = pytest.mark.live
assert inframind_gym  # the ids are registered


@pytest.mark.parametrize("name", ["Stream", "Executor", "Planner"])
def test_the_registered_environments(name: str, rig: LiveRig, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    finished = [rig.finished(m) for m in range(3)]
    env = gym.make(
        f"InfraMind-{name}Live-v0",
        pool=str(rig.path),
        workload="math",
        num_queries=6,
        arrival_rate_per_min=600.0,
        record_calls=True,
        log=str(log),
    )
    try:
        observation, info = env.reset(seed=0)
        over, steps = False, 0
        while not over:
            assert env.observation_space.contains(observation)
            assert np.hstack(info["action_mask"]).any()
            action = env.action_space.sample(mask=info["action_mask"])
            observation, _, over, _, info = env.step(action)
            steps += 1
    finally:
        env.close()
    found = records(log)
    assert 0 < steps <= len(found)
    assert {line["status"] for line in found} <= {"ok", "truncated", "cancelled"}
    judged = [line for line in found if line["phase"] == "final" and line["status"] != "cancelled"]
    assert judged and all(line["right"] is not None for line in judged)
    until(lambda: all(rig.load(m) == (0, 0) for m in range(3)))  # nothing is left there
    grown = sum(rig.finished(m) - finished[m] for m in range(3))
    assert grown >= sum(line["status"] in ("ok", "truncated") for line in found)


def test_a_benchmark_outlives_a_server_that_is_killed(rig: LiveRig, tmp_path: Path) -> None:
    """SIGKILL of an API server while it answers: the run ends, whole, and says what happened."""
    folder, leader = tmp_path / "results", rig.leaders()[0]
    log = folder / "requests.jsonl"
    command = [sys.executable, "-m", "benchmarks", "run", "--set", "backend=vllm"]
    command += ["--pool", str(rig.path), "--policies", "round_robin", "--workloads", "math"]
    # All at once: when the first call is answered, others are in flight.
    command += ["--set", "rates=1200", "--set", "budgets=tiers", "--seeds", "2"]
    command += ["--set", "queries=20", "--out", str(folder)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=rig.env, **pipes)
    try:
        until(lambda: log.exists() and records(log) and sum(rig.load(0)) > 0, 120.0)
        os.kill(leader, signal.SIGKILL)
        _, said = process.communicate(timeout=240.0)
    finally:
        process.kill()
        rig.up()
    print(said)
    assert process.returncode == 0, said
    assert session(leader) == set()  # the engine, which had outlived it, was ended
    lines = each_call_once(log)
    failed = [line for line in lines if line["status"] not in ("ok", "truncated")]
    assert failed and {line["model"] for line in failed} == {"qwen-14b"}
    assert "qwen-14b is down" in said and "calls that failed: " in said
    found = [cell.columns for cell in read_cells(folder) if cell]
    assert [list(columns["query"]) for columns in found] == [list(range(20))] * 2
    assert sum(columns["calls"].sum() for columns in found) == len(lines)
