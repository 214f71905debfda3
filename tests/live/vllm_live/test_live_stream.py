"""Whole sweeps over real vLLM: all topologies, real prompts, real judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inframind_gym.calibration.request_log import read_log
from inframind_gym.tasks import TaskSet
from tests.live.vllm_live.rig import LiveRig, NotedPrompts
from tests.live.vllm_server.fake import records
from tests.simulator.workflow.backend_play import at_random, play

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
