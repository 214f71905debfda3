"""The backend over fake servers: calls in, completions and a log out."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.backend import VllmBackend
from inframind_gym.live.request_log import RequestLogWriter
from inframind_gym.live.servers import VllmServers
from inframind_gym.live.settings import LiveSettings, server_url
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Backend, Call, Completion
from inframind_gym.simulator.workflow.graphs import FINAL
from tests.live.vllm_server.fake import Answer, until
from tests.live.vllm_server.live_play import Prompts, call, five, live, right_if_42


def wait_for(backend: VllmBackend, count: int) -> list[Completion]:
    done: list[Completion] = []
    while len(done) < count:
        done += backend.wait(None)
    return done


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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
        assert backend.wait(backend.now_s() - 1.0) == []
        assert backend.wait(None) == []  # nothing is in flight
        (body,), (headers,) = servers[2].requests, servers[2].headers
    assert (done.call, done.failed, done.truncated, done.right) == (0, False, False, True)
    assert (done.text, done.output_tokens) == ("42", 2)
    assert done.prompt_tokens is not None
    assert 0 <= done.submit_s < done.admitted_s < done.first_token_s <= done.finish_s
    assert body["priority"] == pytest.approx((began + 50.25) * 1e6, abs=0.2e6)
    assert isinstance(body["priority"], int) and body["priority"] < 2**53
    assert body["model"] == load_pool("b200-2gpu").models[2].name
    assert body["max_tokens"] == 16
    (line,) = lines(log)
    assert line["request_id"] == headers["x-request-id"]
    expected = {
        "model": "qwen-14b",
        "status": "ok",
        "input_toks": done.prompt_tokens,
        "output_toks": 2,
        "priority": body["priority"],
        "phase": "final",
        "topology": "Chain",
        "strategy": "Concise",
        "right": True,
        "error": None,
        "attempts": 1,
    }
    assert {name: line[name] for name in expected} == expected
    times = ["submit_ts", "sent_ts", "queued_ts", "scheduled_ts", "first_token_ts"]
    times += ["last_token_ts", "end_ts"]
    assert [line[name] for name in times] == sorted(line[name] for name in times)
    assert line["arrival_time"] == pytest.approx(time.time(), abs=30.0)
    assert (prompts.seen[0][2]) == pool.config.models[2].server.max_model_len - 16


def test_fcfs_sends_no_priority() -> None:
    with five() as servers, live(servers) as pool:
        backend = pool.open(Prompts(), scheduler="fcfs")
        backend.submit(call(priority=0.0))
        (done,) = backend.wait(None)
        assert "priority" not in servers[0].requests[0]
    assert done.right is None  # nobody judges


def test_priorities_of_late_work_are_exact() -> None:
    """The scheduler edf_late_last adds 1e9 s to a deadline: still below 2**53."""
    with five() as servers, live(servers) as pool:
        backend = pool.open(Prompts(), scheduler="edf_late_last")
        for number, priority in enumerate((50.0, 50.000002, 50.0 + 1e9)):
            backend.submit(call(number, priority=priority))
            wait_for(backend, 1)
        first, second, late = (body["priority"] for body in servers[0].requests)
    assert first < second < late < 2**53
    assert late - first == pytest.approx(1e15, abs=2)


def test_answers_are_kept_for_their_query_and_handed_on() -> None:
    prompts = Prompts()
    with (
        five(lambda r, n: Answer(r["messages"][0]["content"][:5])) as servers,
        live(servers) as pool,
    ):
        backend = pool.open(prompts, right_if_42)
        backend.submit(call(0, node=0))
        backend.submit(call(1, node=0, query=1))
        wait_for(backend, 2)
        # Node 1 reads 0; node 2 handed on what 0 wrote; node 3 has no answer.
        backend.submit(call(2, node=3, reads=(0, 2, 1), sources=(0, 0, 1)))
        wait_for(backend, 1)
        backend.submit(call(3, node=0, phase=1, reads=(0,), sources=(0,)))
        wait_for(backend, 1)
        backend.submit(call(4, phase=FINAL, reads=(0, 3), sources=(0, 3)))
        wait_for(backend, 1)
        backend.submit(call(5, node=1, query=1, reads=(0,), sources=(0,)))
        wait_for(backend, 1)
        assert set(backend._answers) == {1}  # that of query 0 is forgotten
    assert [seen[1] for seen in prompts.seen] == [
        {},
        {},
        {0: "0/0/0"},
        {0: "0/0/0"},
        {0: "0/0/1", 3: "0/3/0"},  # its second answer
        {0: "1/0/0"},
    ]


def test_a_deciding_call_that_failed_can_be_sent_again() -> None:
    prompts = Prompts()

    def script(request: dict[str, Any], number: int) -> Answer:
        return Answer(status=500) if number == 1 else Answer("42")

    with five(script) as servers, live(servers) as pool:
        backend = pool.open(prompts, right_if_42)
        backend.submit(call(0))
        wait_for(backend, 1)
        for number in (1, 2):
            backend.submit(call(number, phase=FINAL, reads=(0,), sources=(0,)))
            (done,) = wait_for(backend, 1)
            assert done.failed == (number == 1)
    assert prompts.seen[1][1] == prompts.seen[2][1] == {0: "42"}


def test_a_prompt_that_is_too_long_is_cut_further(tmp_path: Path) -> None:
    prompts = Prompts()
    answers = [
        Answer(status=400, message="This model's maximum context length is 100 tokens."),
        Answer("42"),
        *[Answer(status=400, message="This model's maximum context length is 100 tokens.")] * 3,
    ]
    with five(lambda r, n: answers[n]) as servers, live(servers, log=tmp_path / "log") as pool:
        backend = pool.open(prompts)
        backend.submit(call(0))
        (done,) = wait_for(backend, 1)
        assert not done.failed
        backend.submit(call(1))
        (done,) = wait_for(backend, 1)
        assert done.failed and done.right is False and done.text is None
    room = 16384 - 16
    limits = [limit for _, _, limit in prompts.seen]
    assert limits == [room, 3 * room // 4, room, 3 * room // 4, room // 2]
    assert [(line["status"], line["attempts"]) for line in lines(tmp_path / "log")] == [
        ("ok", 2),
        ("too_long", 3),
    ]


def test_a_prompt_that_cannot_be_made_short_enough(tmp_path: Path) -> None:
    class Short(Prompts):
        def messages(self, call: Call, *more: Any) -> Any:
            if more[1] < 16384 - 16 or call.id == 1:
                raise InfraMindError("the question alone is longer")
            return super().messages(call, *more)

    too_long = Answer(status=400, message="longer than the maximum model length of 100")
    with five(lambda r, n: too_long) as servers, live(servers, log=tmp_path / "log") as pool:
        backend = pool.open(Short())
        for number in range(2):
            backend.submit(call(number))
            assert wait_for(backend, 1)[0].failed
    assert [
        (line["status"], line["error"], line["attempts"]) for line in lines(tmp_path / "log")
    ] == [
        ("too_long", "HTTP 400: longer than the maximum model length of 100", 1),
        ("too_long", "the question alone is longer", 0),
    ]


def test_grading() -> None:
    """Off the loop; an answer that cannot be graded is not wrong but ungraded."""
    threads: set[str] = set()

    def judge(task: int, text: str) -> bool:
        threads.add(threading.current_thread().name)
        if text == "bug":
            raise RuntimeError("cannot be")
        if text == "slow":
            time.sleep(0.5)
        return text == "42"

    texts = ["42", "41", "bug", "slow"]
    with (
        five(lambda r, n: Answer(texts[n], tokens=1)) as servers,
        live(servers, judge_s=0.1) as pool,
    ):
        backend = pool.open(Prompts(), judge)
        found = []
        for number in range(4):
            backend.submit(call(number, query=number, phase=FINAL))
            found += [done.right for done in wait_for(backend, 1)]
        assert found == [True, False, None, None]
    assert threads and all(name.startswith("vllm-judge") for name in threads)


def test_judging_is_timed_and_not_the_wait_for_a_judge() -> None:
    """Six answers at once for one judge: the last one waits longer than it may take."""

    def judge(task: int, text: str) -> bool:
        time.sleep(0.1)
        return True

    with five() as servers, live(servers, judges=1, judge_s=0.3) as pool:
        backend = pool.open(Prompts(), judge)
        for number in range(6):
            backend.submit(call(number, query=number, phase=FINAL))
        assert [done.right for done in wait_for(backend, 6)] == [True] * 6
        assert pool.ungraded == 0


def test_a_judge_that_hangs_holds_up_no_run() -> None:
    over = threading.Event()

    def judge(task: int, text: str) -> bool:
        return over.wait(30.0)

    limits = {"judge_s": 0.1, "floor_s": 0.2, "cap_s": 0.3}
    with five() as servers, live(servers, judges=1, **limits) as pool:
        backend = pool.open(Prompts(), judge)
        for number in range(3):
            backend.submit(call(number, query=number, phase=FINAL))
        assert [done.right for done in wait_for(backend, 3)] == [None] * 3
        assert pool.ungraded == 3
        over.set()


@pytest.mark.parametrize(
    ("answer", "retryable"),
    [
        (Answer(status=400), False),
        (Answer(status=400, message="longer than the maximum model length of 100"), False),
        (Answer(hang=True), False),  # it has had all the time that there is
        (Answer(status=500), True),
        (Answer(reset_after=1), True),
    ],
)
def test_what_can_be_sent_again(answer: Answer, retryable: bool) -> None:
    limits = {"floor_s": 0.2, "grace_s": 0.0}
    with five(lambda r, n: answer) as servers, live(servers, **limits) as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0, deadline_s=0.0))
        (done,) = wait_for(backend, 1)
        assert (done.failed, done.retryable) == (True, retryable)


def test_all_attempts_at_a_call_are_bounded() -> None:
    """Three at each server, however often the driver tries the next one."""
    with five(lambda r, n: Answer(status=503)) as servers, live(servers) as pool:
        backend = pool.open(Prompts())
        again = []
        for number in range(3):
            backend.submit(call(number, model=number))
            again += [done.retryable for done in wait_for(backend, 1)]
        backend.submit(call(3, query=1))  # another call has its own
        again += [done.retryable for done in wait_for(backend, 1)]
        assert again == [True, False, False, True]
        assert [len(server.requests) for server in servers] == [6, 3, 3, 0, 0]


HALF = "bad \\ \ud800 text"  # a backslash, and half of a character


@pytest.mark.parametrize("way", ["HTTP", "stream"])
def test_an_error_with_half_a_character_is_logged_and_completes(way: str, tmp_path: Path) -> None:
    error = {"error": {"message": HALF}}
    answer = Answer(status=500, message=HALF) if way == "HTTP" else Answer(events=(error,))
    with five(lambda r, n: answer) as servers, live(servers, log=tmp_path / "log") as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0))
        (done,) = backend.wait(backend.now_s() + 10.0)
    assert done.failed
    (line,) = lines(tmp_path / "log")
    assert HALF in line["error"]


def test_a_log_that_cannot_be_written_costs_no_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(self: RequestLogWriter, record: object) -> None:
        raise RuntimeError("cannot be")

    monkeypatch.setattr(RequestLogWriter, "write", bug)
    with five() as servers, live(servers, log=tmp_path / "log") as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0))
        (done,) = backend.wait(backend.now_s() + 10.0)
    assert not done.failed


def test_a_bug_in_the_prompts_costs_a_call_and_no_run(tmp_path: Path) -> None:
    class Broken(Prompts):
        def messages(self, *arguments: Any) -> Any:
            raise RuntimeError("no such role")

    with five() as servers, live(servers, log=tmp_path / "log") as pool:
        backend = pool.open(Broken())
        backend.submit(call(0))
        (done,) = backend.wait(None)
    assert done.failed
    (line,) = lines(tmp_path / "log")
    assert (line["status"], line["error"]) == ("fault", "RuntimeError: no such role")
    assert line["arrival_time"] is None and line["first_token_ts"] is None


def test_every_call_completes_once_whatever_happens(tmp_path: Path) -> None:
    """A hundred calls to servers that fail in many ways; the log has a line for each."""
    ways = [
        Answer("42"),
        Answer(finish="abort"),
        Answer(status=500),
        Answer(reset_after=1),
        Answer(status=503),
        Answer(hang=True),
        Answer(garble_after=0),
        Answer(finish="length"),
    ]
    log = tmp_path / "log"
    with (
        five(lambda r, n: ways[n % len(ways)]) as servers,
        live(servers, log=log, floor_s=1.5, grace_s=0.0) as pool,
    ):
        backend = pool.open(Prompts(), right_if_42)
        for number in range(100):
            backend.submit(call(number, query=number, model=number % 5, deadline_s=0.0))
        done = wait_for(backend, 100)
        assert backend.wait(backend.now_s() + 0.05) == []
    assert sorted(completion.call for completion in done) == list(range(100))
    assert sorted(line["call"] for line in lines(log)) == list(range(100))
    assert 0 < sum(not completion.failed for completion in done) < 100
    for completion in done:
        assert completion.finish_s >= completion.submit_s >= 0
        assert completion.failed == (completion.text is None)
        assert completion.failed == math.isnan(completion.first_token_s) or completion.failed


def test_time_limits() -> None:
    settings = LiveSettings(grace_s=10.0, floor_s=30.0, cap_s=100.0)
    assert [settings.limit_s(left_s) for left_s in (-500.0, 0.0, 25.0, 500.0)] == [30, 30, 35, 100]
    for wrong in (
        {"floor_s": 200.0, "cap_s": 100.0},
        {"sampling": {"stream": False}},
        {"retires": 3},
    ):
        with pytest.raises(ValueError):
            LiveSettings(**wrong)


def test_waiting_ends_at_the_time_that_was_given() -> None:
    with five(lambda r, n: Answer(hang=True)) as servers, live(servers) as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0))
        until_s = backend.now_s() + 0.1
        assert backend.wait(until_s) == []
        assert backend.now_s() >= until_s


def test_waiting_can_be_ended_from_within() -> None:
    class EnoughError(Exception):
        pass

    def enough() -> None:
        if over.is_set():
            raise EnoughError

    over = threading.Event()
    with five(lambda r, n: Answer(hang=n == 0)) as servers, live(servers) as pool:
        pool.on_wait = enough
        backend = pool.open(Prompts())
        backend.submit(call(0))
        until(lambda: servers[0].requests)
        threading.Timer(0.3, over.set).start()
        with pytest.raises(EnoughError):
            backend.wait(None)
        over.clear()
        backend.submit(call(1))
        assert [done.call for done in wait_for(backend, 1)] == [1]  # the other one goes on


def test_a_sleeping_server_gets_no_request() -> None:
    with five(lambda r, n: Answer(first_s=0.2)) as servers, live(servers) as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0, model=1))
        until(lambda: servers[1].requests)
        servers[1].script = lambda r, n: Answer(hang=True)
        backend.submit(call(1, model=1))
        until(lambda: len(servers[1].requests) == 2)
        servers[1].asleep = True
        done = wait_for(backend, 2)  # the second was given up: it would have hung
        assert {completion.call: completion.failed for completion in done}[1]
        until(lambda: backend.models_up() == 0b11101)
        for number in range(2, 6):
            backend.submit(call(number, model=1))
        assert all(completion.failed for completion in wait_for(backend, 4))
        assert len(servers[1].requests) == 2
        servers[1].asleep = False
        servers[1].script = lambda r, n: Answer()
        until(lambda: backend.models_up() == 0b11111)
        backend.submit(call(6, model=1))
        assert not backend.wait(None)[0].failed


def test_closing_gives_up_what_is_in_flight(tmp_path: Path) -> None:
    before = threading.active_count()
    log = tmp_path / "log"
    with five(lambda r, n: Answer(hang=True)) as servers:
        inside = threading.active_count()
        with live(servers, log=log, max_in_flight_per_server=3) as pool:
            backend = pool.open(Prompts())
            for number in range(8):
                backend.submit(call(number))
            until(lambda: len(servers[0].requests) == 3)
            backend.submit(call(8, model=1))
            backend.close()  # the last one has perhaps not been begun
            backend.close()
            assert backend.wait(None) == []
            backend.submit(call(9))
            assert pool.client.in_flight == 0
            until(lambda: servers[0].open == 0)  # they were told
            again = pool.open(Prompts())  # the pool goes on
            servers[0].script = lambda r, n: Answer()
            again.submit(call(0))
            assert not again.wait(None)[0].failed
        pool.close()
        assert threading.active_count() == inside
        with pytest.raises(InfraMindError, match="closed"):
            pool.open(Prompts())
        until(lambda: not any(server._writers for server in servers))  # no socket is left
    assert threading.active_count() == before
    found = lines(log)
    assert sorted((line["sweep"], line["call"]) for line in found) == [
        *((0, number) for number in range(9)),
        (1, 0),
    ]
    assert [line["status"] for line in found].count("cancelled") == 9
    assert len({line["request_id"] for line in found}) == 10


def test_opening_a_sweep_closes_the_one_before() -> None:
    with five(lambda r, n: Answer(hang=True)) as servers, live(servers) as pool:
        first = pool.open(Prompts())
        first.submit(call(0))
        second = pool.open(Prompts())
        assert first._closed and not second._closed
        assert second.now_s() < first.now_s()
        assert second.telemetry().polls == 0


def test_addresses() -> None:
    model = load_pool("b200-2gpu").models[0]
    assert server_url(model) == "http://127.0.0.1:8001"
    for url in ("http://gpu:9/", "http://gpu:9/v1", "http://gpu:9/v1/", "http://gpu:9"):
        assert server_url(model.model_copy(update={"url": url})) == "http://gpu:9"
    pool = load_pool("b200-2gpu")
    nowhere = pool.model_copy(update={"models": (model.model_copy(update={"port": None}),)})
    with pytest.raises(ConfigError, match="where is it served"):
        VllmServers(nowhere)
