"""Whole sweeps: the driver over live servers that answer, die, return and sleep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("aiohttp")

from inframind_gym.calibration.request_log import read_log
from tests.live.vllm_server.fake import Answer, records, until
from tests.live.vllm_server.live_play import Live, Prompts, five, live
from tests.simulator.workflow.backend_play import at_random, play

FAST = 3000.0  # queries a minute


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_a_stream_with_all_six_topologies(execution: str, tmp_path: Path) -> None:
    prompts = Prompts()
    log = tmp_path / "log.jsonl"
    with (
        five(lambda r, n: Answer("It is 42.", first_s=0.005)) as servers,
        live(servers, log=log) as pool,
    ):
        run = Live(pool, prompts, level="joint", execution=execution, num_queries=18)
        sweep = play(run.simulation, at_random(run.simulation, 3), rate_per_min=FAST)
        run.simulation.close()
        until(lambda: not any(server.open for server in servers))
    completed, calls = sweep.completed, sweep.calls
    assert set(completed["topology"]) == set(range(6))
    assert len(completed) == 18
    assert (completed["solved"] == 1).all()
    assert completed["failed_calls"].sum() == 0
    assert (np.diff(sweep.contexts["time_s"]) >= 0).all()
    # What the servers counted is what the records say.
    assert len(calls) == completed["calls"].sum() == sum(len(s.requests) for s in servers)
    found = records(log)
    assert [line["status"] for line in found] == ["ok"] * len(calls)
    key = ["query", "node", "phase"]
    by_key = {tuple(c[k] for k in key): c for c in calls}
    phases = {"first": 0, "second": 1, "final": 2}
    for line in found:
        record = by_key[line["query"], line["node"], phases[line["phase"]]]
        assert record["output_tokens"] == line["output_toks"] == 3
        assert record["prompt_tokens"] == line["input_toks"]
        assert pool.config.models[record["model"]].alias == line["model"]
        latency_s = record["finish_s"] - record["submit_s"]
        assert latency_s == pytest.approx(line["last_token_ts"] - line["submit_ts"], abs=1e-5)
        assert record["first_token_s"] > record["submit_s"]
    # Every call saw the answers that it reads, and nothing else.
    assert len(prompts.seen) == len(calls)
    for call, answers, _ in prompts.seen:
        assert set(answers) == set(call.reads) == set(call.sources)
        assert set(answers.values()) <= {"It is 42."}
    assert run.opened[0]._answers == {}
    for alias in pool.config.aliases:
        read = read_log(log, alias)
        assert len(read) == sum(line["model"] == alias for line in found)
        assert not read.has_schedule
        assert read.failed == 0


def test_a_server_that_is_killed_in_the_middle_is_used_again(tmp_path: Path) -> None:
    """Its own calls go elsewhere, the run goes on, it returns."""
    log = tmp_path / "log.jsonl"
    decided = 0
    with (
        five(lambda r, n: Answer("42", first_s=0.005)) as servers,
        live(servers, log=log, answer_s=20.0) as pool,  # a busy machine is not down
    ):
        first, usual = servers[0], servers[0].script
        first.script = lambda r, n: Answer("42", first_s=30.0)
        run = Live(pool, Prompts(), num_queries=40, retries=2)

        def decide(context: np.void, observation: NDArray[np.float32]) -> NDArray[np.int64]:
            nonlocal decided
            decided += 1
            if decided == 15:
                first.kill()
            elif decided == 20:
                until(lambda: not pool.watcher.is_up(0))
            elif decided == 30:
                first.script = usual
                first.start()
                until(lambda: pool.watcher.is_up(0))
            up = int(context["models_up"]) & pool.watcher.up
            return np.array([0 if up & 1 and decided % 2 else 3 * (1 + decided % 4)])

        sweep = play(run.simulation, decide, rate_per_min=FAST)
        run.simulation.close()
    completed, calls = sweep.completed, sweep.calls
    assert len(completed) == 40
    assert (completed["solved"] == 1).all()  # whatever failed was answered elsewhere
    assert completed["failed_calls"].sum() > 0
    assert set(calls["model"][calls["failed"] == 1]) == {0}
    up = sweep.contexts["models_up"]
    assert (up[:14] == 0b11111).all() and (up == 0b11110).any() and up[-1] == 0b11111
    found = records(log)
    assert len(found) == len(calls)
    last = [line for line in found if line["model"] == "deepseek-32b" and line["status"] == "ok"]
    assert last, "it was not used after its return"
    assert {line["status"] for line in found} <= {"ok", "unreachable", "broken", "down"}
