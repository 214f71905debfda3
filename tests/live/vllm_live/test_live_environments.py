"""What a person types, on real vLLM: the registered environments and the benchmark."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import inframind_gym
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.store import read_blocks
from tests.live.launch.play import ROOT
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import records, until

pytestmark = pytest.mark.live
assert inframind_gym  # the ids are registered


@pytest.mark.parametrize("live_id", ["InfraMind-StreamLive-v0", "InfraMind-ExecutorLive-v0"])
def test_the_registered_environments(live_id: str, rig: LiveRig, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    finished = [rig.finished(m) for m in range(3)]
    env = gym.make(
        live_id,
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
            assert info["action_mask"].any()
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


def test_a_benchmark_is_stopped_and_resumed(rig: LiveRig, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    command = [sys.executable, "-m", "benchmarks", "run", "--backend", "vllm"]
    command += ["--pool", str(rig.path), "--policies", "round_robin", "--workloads", "math"]
    # All at once: when the first call is answered, others are in flight.
    command += ["--rates", "1200", "--budgets", "tiers", "--seeds", "2", "--queries", "8"]
    command += ["--out", str(folder)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=rig.env, **pipes)
    log = folder / "requests.jsonl"
    try:
        # In the second sweep: the first one is kept.
        until(lambda: log.exists() and any(line["episode"] == 1 for line in whole(log)), 120.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "stopped: 1 of 2 cells" in said and "Continue with:" in said
    assert len(read_blocks(folder)) == 1
    before = len(records(log))
    assert "cancelled" in {line["status"] for line in records(log)}
    until(lambda: all(rig.load(m) == (0, 0) for m in range(3)))  # the servers work for nobody
    again = subprocess.run(command, cwd=ROOT, env=rig.env, timeout=120.0, **pipes)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 cells are there, 1 to go" in again.stderr
    assert {line["episode"] for line in records(log)[before:]} == {0}  # of one episode only
    assert len(read_blocks(folder)) == 2
    assert load_results(folder)


def whole(log: Path) -> list[dict[str, Any]]:
    """Lines so far; the last one can be under way."""
    text = log.read_text(encoding="utf-8")
    return [] if "\n" not in text else records(log) if text.endswith("\n") else []
