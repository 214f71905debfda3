"""Whole sweeps over real vLLM: all topologies, real prompts, real judge, and a server that dies."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.calibration.request_log import read_log
from inframind_gym.tasks import TaskSet
from tests.live.launch.play import session
from tests.live.vllm_live.rig import UP_S, LiveRig, NotedPrompts
from tests.live.vllm_server.fake import records, until
from tests.simulator.workflow.backend_play import NUM_STRATEGIES, at_random, play

pytestmark = pytest.mark.live
FAST = 600.0  # queries a minute


def test_a_sweep_over_all_six_topologies(rig: LiveRig, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    finished = [rig.finished(m) for m in range(3)]
    prompts: list[NotedPrompts] = []

    def noted(tasks: TaskSet) -> NotedPrompts:
        prompts.append(NotedPrompts(tasks))
        return prompts[-1]

    with (
        rig.pool(log=log) as pool,
        rig.simulation(pool, noted, level="joint", num_queries=60) as simulation,
    ):
        sweep = play(simulation, at_random(simulation, 3), rate_per_min=FAST)
    completed, calls, found = sweep.completed, sweep.calls, records(log)
    assert len(completed) == 60
    assert np.bincount(completed["topology"], minlength=6).tolist() == [10] * 6
    assert completed["failed_calls"].sum() == 0
    assert completed["solved"].sum() <= 6  # noise; a letter can be guessed
    assert len(found) == len(calls) == completed["calls"].sum()
    assert {line["status"] for line in found} <= {"ok", "truncated"}
    # The servers have seen these requests, and no other.
    grown = [rig.finished(m) - finished[m] for m in range(3)]
    assert grown == [int((calls["model"] == m).sum()) for m in range(3)]
    # They were asked with the real prompts, in which real answers are.
    (asked,) = (each.asked for each in prompts)
    assert len(asked) >= len(calls)
    for call, answers, messages in asked:
        assert set(answers) == set(call.sources)
        shown = messages[1]["content"]
        assert simulation.tasks.texts[call.task].strip() in shown
    assert any(answers for _, answers, _ in asked)
    # Telemetry is the servers'.
    assert sweep.contexts["poll"][-1] > 0
    depth = simulation.layout.queue_depth_req(sweep.observations)
    assert depth.max() >= 1
    # Every call has its times, in their order; deadlines are the priorities.
    for line in found:
        times = [line[f"{name}_ts"] for name in ("submit", "sent", "first_token", "last_token")]
        assert times == sorted(times)
        assert line["priority"] > 1e15
    for alias in pool.config.aliases:
        read = read_log(log, alias)
        assert len(read) == sum(line["model"] == alias for line in found)
        assert read.has_schedule and read.failed == 0


def test_a_server_that_is_killed_costs_its_own_calls_only(rig: LiveRig, tmp_path: Path) -> None:
    """SIGKILL of the API server in the middle; its engine lives on, as vLLM's does.

    Its calls go elsewhere, the run goes on, `inframind pool up` brings it back, it is used again.
    """
    log = tmp_path / "log.jsonl"
    leader = rig.leaders()[0]
    returned: list[subprocess.Popen[str]] = []
    decided = killed_at = meanwhile = 0
    chain = {"topology": "Chain", "num_agents": 2}
    with (
        rig.pool(log=log, health_s=0.2) as pool,
        rig.simulation(pool, num_queries=60, retries=2, planner=chain) as simulation,
    ):

        def decide(context: np.void, observation: NDArray[np.float32]) -> NDArray[np.int64]:
            nonlocal decided, killed_at, meanwhile
            decided += 1
            up = int(context["models_up"]) & pool.watcher.up
            # Nothing is sent while this waits: it may have ended by the time that it is looked for.
            if not killed_at and decided >= 20 and sum(rig.load(0)) > 0:
                killed_at = decided
                os.kill(leader, signal.SIGKILL)
                until(lambda: not pool.watcher.is_up(0))
                returned.append(rig.command("up"))
            elif killed_at and decided == killed_at + 60:
                said, _ = returned[0].communicate(timeout=UP_S)
                assert returned[0].returncode == 0, said
                until(lambda: pool.watcher.is_up(0))
            elif killed_at and decided < killed_at + 60:
                meanwhile += 1
            model = 0 if up & 1 and decided % 2 else 1 + decided // 2 % 2
            return np.array([model * NUM_STRATEGIES + decided % NUM_STRATEGIES])

        sweep = play(simulation, decide, rate_per_min=FAST)
    completed, calls, found = sweep.completed, sweep.calls, records(log)
    assert len(completed) == 60
    assert meanwhile == 59
    failed = calls["failed"] == 1
    # So many decisions had been made, and a query of a chain has one call at a time.
    assert 1 <= failed.sum() <= killed_at
    assert set(calls["model"][failed]) == {0}
    assert {line["status"] for line in found} <= {
        "ok",
        "truncated",
        "unreachable",
        "broken",
        "down",
    }
    # What failed was answered by another one: no query was lost.
    assert completed["failed_calls"].sum() == failed.sum()
    assert len(found) == len(calls)
    up = sweep.contexts["models_up"]
    assert up[0] == 0b111 and (up == 0b110).any() and up[-1] == 0b111
    ended = [i for i, line in enumerate(found) if line["status"] in ("unreachable", "broken")]
    again = [line for line in found[ended[-1] :] if line["model"] == "qwen-14b"]
    assert sum(line["status"] in ("ok", "truncated") for line in again) > 5
    assert session(leader) == set()  # its engine was ended
