"""The gateway's decisions in virtual time (`benchmarks.gateway.virtual`)."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from benchmarks.gateway.load import Load, right_answers
from benchmarks.gateway.virtual import Log, play
from inframind_gym.calibration.live_pool import read_calls
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.desk import Desk
from inframind_gym.live.simulated.lengths import AnswerLengths
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload


def test_requests_of_two_gateways_are_answered_and_logged(tmp_path: Path) -> None:
    pool, log = load_pool("b200-2gpu"), io.StringIO()
    lengths = AnswerLengths(load_workload("mixed"), pool.aliases)
    load = Load("mixed", None, 120.0, 40, 1.0, seed=1)
    desks = [Desk(GatewayConfig(policy="least_loaded")) for _ in range(2)]
    found = play(load, desks, pool, lengths, Log(log))
    assert all(out.status == 200 and out.latency_s > 0.0 for out in found)
    right = right_answers(pool, "mixed")
    assert all(0.2 < right[out.domain, out.model, out.strategy] < 1.0 for out in found)
    path = tmp_path / "log.jsonl"
    path.write_text(log.getvalue())
    calls = read_calls(path, pool).calls
    assert len(calls) == 40
    assert np.all(calls["finish_s"] > calls["first_token_s"])
