"""The backend over fake servers: single calls, whole sweeps, and Ctrl-C among hundreds."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("aiohttp")

from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.client import LoopThread
from inframind_gym.live.config import LiveSettings
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Backend
from inframind_gym.simulator.workflow.topology import FINAL
from tests.live.launch.play import ENV, ROOT
from tests.live.vllm_server.fake import Answer, FakeServer, Script, each_call_once, records, until
from tests.live.vllm_server.live_play import (
    QUICK,
    Prompts,
    ask,
    call,
    five,
    live,
    opened,
    pool_at,
    pool_file,
    right_if_42,
    sweep_on,
    wait_for,
)
from tests.simulator.workflow.backend_play import at_random, play


def test_one_call(tmp_path: Path) -> None:
    metrics = {"time_to_first_token_ms": 10.0, "queue_time_ms": 4.0}
    prompts = Prompts()
    log = tmp_path / "logs" / "requests.jsonl"
    with (
        five(lambda r, n: Answer("42", tokens=2, first_s=0.05, metrics=metrics)) as servers,
        live(servers, log=log) as pool,
    ):
        backend = pool.open(prompts, right_if_42, scheduler="edf")
        assert isinstance(backend, Backend)
        assert backend.models_up() == 0b11111
        began = time.time() - backend.now_s()
        backend.submit(call(phase=FINAL, model=2, priority=50.25))
        (done,) = backend.wait(None)
        assert backend.wait(None) == []  # nothing is in flight
        (body,), (headers,) = servers[2].requests, servers[2].headers
    assert (done.call, done.failed, done.truncated, done.right) == (0, False, False, True)
    assert (done.text, done.output_tokens) == ("42", 2)
    assert done.prompt_tokens is not None
    assert 0 <= done.submit_s < done.admitted_s < done.first_token_s <= done.finish_s
    assert body["priority"] == pytest.approx((began + 50.25) * 1e6, abs=0.2e6)
    assert body["model"] == load_pool("b200-2gpu").models[2].name
    (line,) = records(log)
    assert line["request_id"] == headers["x-request-id"]
    expected = {"model": "qwen-14b", "status": "ok", "right": True, "error": None, "attempts": 1}
    expected |= {"input_toks": done.prompt_tokens, "output_toks": 2, "priority": body["priority"]}
    expected |= {"phase": "final", "topology": "Chain", "strategy": "Concise"}
    assert line.items() >= expected.items()
    times = ["submit_ts", "sent_ts", "queued_ts", "scheduled_ts", "first_token_ts"]
    times += ["last_token_ts", "end_ts"]
    assert [line[name] for name in times] == sorted(line[name] for name in times)
    assert line["arrival_time"] == pytest.approx(time.time(), abs=30.0)
    assert (prompts.seen[0][2]) == pool.config.models[2].server.max_model_len - 16


def test_answers_are_kept_for_their_query_and_handed_on() -> None:
    prompts = Prompts()
    echo: Script = lambda r, n: Answer(r["messages"][0]["content"][:5])  # noqa: E731
    with opened(echo, right_if_42, prompts=prompts) as (backend, _, _):
        ask(backend, call(0, node=0), call(1, node=0, query=1))
        # Node 1 reads 0; node 2 handed on what 0 wrote; node 3 has no answer.
        ask(backend, call(2, node=3, reads=(0, 2, 1), sources=(0, 0, 1)))
        ask(backend, call(3, node=0, phase=1, reads=(0,), sources=(0,)))
        ask(backend, call(4, phase=FINAL, reads=(0, 3), sources=(0, 3)))
        ask(backend, call(5, node=1, query=1, reads=(0,), sources=(0,)))
        assert set(backend._answers) == {1}  # that of query 0 is dropped
    first, second = {0: "0/0/0"}, {0: "0/0/1", 3: "0/3/0"}
    assert [seen[1] for seen in prompts.seen] == [{}, {}, first, first, second, {0: "1/0/0"}]


def test_grading() -> None:
    """Off the loop; an answer that cannot be graded is not wrong but ungraded."""
    threads = set[str]()

    def judge(task: int, text: str) -> bool:
        threads.add(threading.current_thread().name)
        if text == "bug":
            raise RuntimeError("cannot be")
        return text == "42"

    with opened(lambda r, n: Answer(["42", "41", "bug"][n], tokens=1), judge) as (backend, _, _):
        calls = [call(number, query=number, phase=FINAL) for number in range(3)]
        assert [ask(backend, each)[0].right for each in calls] == [True, False, None]
    assert threads and all(name.startswith("vllm-judge") for name in threads)


def test_a_call_that_fails_waits_before_it_is_sent_again() -> None:
    """Twice as long each time; another call has its own pauses."""
    with opened(Answer(status=503), retry_wait_s=0.1) as (backend, _, servers):
        took_s = []
        for again in (call(0), call(1, model=1), call(2, query=1)):
            began_s = time.monotonic()
            assert ask(backend, again)[0].retryable
            took_s.append(time.monotonic() - began_s)
        assert took_s[0] >= 0.05 and took_s[1] >= 0.1 and took_s[2] >= 0.05
        assert [len(server.requests) for server in servers] == [2, 1, 0, 0, 0]


def test_every_call_completes_once_whatever_happens(tmp_path: Path) -> None:
    """A hundred calls to servers that fail in many ways; the log has a line for each."""
    ways = [Answer("42"), Answer(finish="abort"), Answer(status=500), Answer(reset_after=1)]
    ways += [Answer(status=503), Answer(hang=True), Answer(garble_after=0), Answer(finish="length")]
    log = tmp_path / "log"
    script: Script = lambda r, n: ways[n % len(ways)]  # noqa: E731
    with opened(script, right_if_42, log=log, call_s=5.0, answer_s=20.0) as (backend, _, _):
        done = ask(backend, *[call(n, query=n, model=n % 5) for n in range(100)])
        assert backend.wait(backend.now_s() + 0.05) == []
    assert sorted(completion.call for completion in done) == list(range(100))
    assert sorted(line["call"] for line in records(log)) == list(range(100))
    assert 0 < sum(not completion.failed for completion in done) < 100
    for completion in done:
        assert completion.finish_s >= completion.submit_s >= 0
        assert completion.failed == (completion.text is None)
        assert completion.failed == math.isnan(completion.first_token_s) or completion.failed


@pytest.mark.parametrize("call_timeout_s", [None, 0.3])
def test_a_call_that_times_out_is_sent_again_where_clients_do(call_timeout_s: float | None) -> None:
    with five(lambda *_: Answer("42", first_s=30.0)) as servers, live(servers, call_s=0.3) as pool:
        (done,) = ask(pool.open(Prompts(), call_timeout_s=call_timeout_s), call())
    assert done.failed and done.retryable is (call_timeout_s is not None)
    assert done.finish_s - done.submit_s == pytest.approx(0.3, abs=0.25)


def test_a_sleeping_server_gets_no_request() -> None:
    with opened(Answer(first_s=0.2)) as (backend, _, servers):
        backend.submit(call(0, model=1))
        until(lambda: servers[1].requests)
        servers[1].script = lambda r, n: Answer(hang=True)
        backend.submit(call(1, model=1))
        until(lambda: len(servers[1].requests) == 2)
        servers[1].asleep = True
        done = wait_for(backend, 2)  # the second was given up: it would have hung
        assert {completion.call: completion.failed for completion in done}[1]
        until(lambda: backend.models_up() == 0b11101)
        done = ask(backend, *(call(number, model=1) for number in range(2, 6)))
        assert all(completion.failed for completion in done)
        assert len(servers[1].requests) == 2
        servers[1].asleep = False
        servers[1].script = lambda r, n: Answer()
        until(lambda: backend.models_up() == 0b11111)
        assert not ask(backend, call(6, model=1))[0].failed


def test_a_server_that_sleeps_already_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with five() as servers:
        servers[0].asleep = True
        config = pool_at([server.url for server in servers])
        with VllmServers(config, LiveSettings(**QUICK)) as pool:
            assert pool.watcher.up == 0b11110
    assert "deepseek-32b is down: asleep" in caplog.text and "failed" not in caplog.text


def test_a_call_after_the_loop_has_stopped_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = LoopThread("stopped")
    stopped.stop()
    with opened() as (backend, pool, _):
        with monkeypatch.context() as patch:
            patch.setattr(pool.loop, "loop", stopped.loop)
            backend.submit(call())
        (done,) = backend.wait(5.0 + backend.now_s())
        assert done.failed and not done.retryable


def test_closing_gives_up_what_is_in_flight(tmp_path: Path) -> None:
    before = threading.active_count()
    log = tmp_path / "log"
    with five(lambda r, n: Answer(hang=True)) as servers:
        inside = threading.active_count()
        with live(servers, log=log, max_in_flight=3) as pool:
            backend = pool.open(Prompts())
            for number in range(8):
                backend.submit(call(number))
            until(lambda: len(servers[0].requests) == 3)
            backend.submit(call(8, model=1))
            backend.close()  # the last one has perhaps not been begun
            backend.close()
            assert backend.wait(None) == []
            backend.submit(call(9))
            until(lambda: servers[0].open == 0)  # they were told
            again = pool.open(Prompts())  # the pool goes on
            servers[0].script = lambda r, n: Answer()
            again.submit(call(0))
            assert not again.wait(None)[0].failed
        pool.close()
        assert threading.active_count() == inside
        with pytest.raises(InfraMindError, match="closed"):
            pool.open(Prompts())
        until(lambda: not any(server.connections for server in servers))  # no socket is left
    assert threading.active_count() == before
    found = records(log)
    ended = [(0, number) for number in range(9)]
    assert sorted((line["episode"], line["call"]) for line in found) == [*ended, (1, 0)]
    assert [line["status"] for line in found].count("cancelled") == 9
    assert len({line["request_id"] for line in found}) == 10


FAST = 3000.0  # queries a minute


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_a_stream_with_all_six_topologies(execution: str, tmp_path: Path) -> None:
    prompts = Prompts()
    log = tmp_path / "log.jsonl"
    with (
        five(lambda r, n: Answer("It is 42.", first_s=0.005)) as servers,
        live(servers, log=log) as pool,
    ):
        run = sweep_on(pool, prompts, level="joint", execution=execution, num_queries=18)
        sweep = play(run, at_random(run, 3), rate_per_min=FAST)
        run.close()
        until(lambda: not any(server.open for server in servers))
    completed, calls = sweep.completed, sweep.calls
    assert set(completed["topology"]) == set(range(6))
    assert len(completed) == 18
    assert (completed["solved"] == 1).all()
    assert completed["failed_calls"].sum() == 0
    # What the servers counted is what the records say.
    assert len(calls) == completed["calls"].sum() == sum(len(s.requests) for s in servers)
    found = records(log)
    assert [line["status"] for line in found] == ["ok"] * len(calls)
    by_key = {tuple(c[k] for k in ["query", "node", "phase"]): c for c in calls}
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
    for made, answers, _ in prompts.seen:
        assert set(answers) == set(made.reads) == set(made.sources)
        assert set(answers.values()) <= {"It is 42."}


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
        run = sweep_on(pool, Prompts(), num_queries=40, retries=2)

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

        sweep = play(run, decide, rate_per_min=FAST)
        run.close()
    completed, calls = sweep.completed, sweep.calls
    assert len(completed) == 40
    assert (completed["solved"] == 1).all()  # whatever failed was answered elsewhere
    assert completed["failed_calls"].sum() > 0
    assert set(calls["model"][calls["failed"] == 1]) == {0}
    up = sweep.contexts["models_up"]
    assert (up[:14] == 0b11111).all() and (up == 0b11110).any() and up[-1] == 0b11111
    found = records(log)
    assert len(found) == len(calls)
    assert ("deepseek-32b", "ok") in {(line["model"], line["status"]) for line in found}
    assert {line["status"] for line in found} <= {"ok", "unreachable", "broken", "down"}


ALL = ",".join(model.name for model in load_pool("b200-2gpu").models)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


SCRIPT = """
import sys
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.config import LiveSettings
from inframind_gym.simulator.server.pool import load_pool
from tests.live.vllm_server.live_play import Prompts, call

settings = LiveSettings(sampling={"ignore_eos": True})
with VllmServers(load_pool(sys.argv[1]), settings, log=sys.argv[2]) as pool:
    pool.watcher.wait_up(60.0)
    backend = pool.open(Prompts(), judge=lambda task, text: True)
    for number in range(60):
        tokens = 4 if number % 2 else 4000
        backend.submit(call(number, query=number, model=number % 2, max_tokens=tokens))
    done = 0
    while done < 30:
        done += len(backend.wait(None))
    print("waiting", flush=True)
    while True:
        backend.wait(None)
"""


@contextlib.contextmanager
def waiting(log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with 30 answers of a second server, that waits for 30 of a first that is mute."""
    hang = Answer(hang=True)
    with FakeServer(model=ALL) as quick, FakeServer(lambda r, n: hang, model=ALL) as mute:
        pool = pool_file(log.parent, [mute.url, *[quick.url] * 4])
        command = [sys.executable, "-c", SCRIPT, pool, str(log)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, env=ENV, **pipes) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "waiting\n", process.communicate()
                yield process
            finally:
                process.kill()


@needs_proc
def test_ctrl_c_leaves_no_process_and_loses_no_record(tmp_path: Path) -> None:
    with waiting(tmp_path / "log.jsonl") as process:
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "was destroyed" not in errors and "never retrieved" not in errors
    ended = [line["status"] for line in each_call_once(tmp_path / "log.jsonl")]
    assert Counter(ended) == {"ok": 30, "cancelled": 30}


def test_a_kill_loses_no_record(tmp_path: Path) -> None:
    """Of what had ended: each line was written at once, whole; the next run appends."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"call": -1, "sta')  # the machine went down here, once
    with waiting(log) as process:
        process.kill()
        process.communicate(timeout=60)
    torn, *lines = log.read_text(encoding="utf-8").splitlines()
    assert torn == '{"call": -1, "sta'
    assert {json.loads(line)["status"] for line in lines} == {"ok"}
    assert sorted(json.loads(line)["call"] for line in lines) == list(range(1, 60, 2))
