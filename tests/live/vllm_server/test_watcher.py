"""The watcher over servers that come, go, sleep and talk nonsense; what they say of themselves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveSettings, ServerAddress
from inframind_gym.live.watcher import DownError, Means, MetricsWatcher, parse_metrics
from tests.live.vllm_server.fake import FakeServer, until


def watch(*servers: FakeServer, **options: Any) -> MetricsWatcher:
    given: dict[str, Any] = {"health_s": 0.02, "answer_s": 0.5, "misses": 2, **options}
    others = {name: given.pop(name) for name in ("poll_s", "on_change") if name in given}
    found = [ServerAddress(alias=f"s{i}", url=s.url, model="m") for i, s in enumerate(servers)]
    return MetricsWatcher(found, LiveSettings(**given), **({"poll_s": 0.05} | others))


def test_a_watcher_has_a_thread_while_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer() as server:
        before = threading.active_count()
        watcher = watch(server)
        watcher.close()
        assert threading.active_count() == before
        for _ in range(2):
            watcher.open()
            assert threading.active_count() == before + 1
            watcher.close()
            assert threading.active_count() == before

        async def interrupted(*_: Any) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(watcher, "_check", interrupted)
        with pytest.raises(concurrent.futures.CancelledError):
            watcher.open()
        assert threading.active_count() == before


def test_metrics_are_polled_and_counted_from_the_beginning_of_a_sweep() -> None:
    with FakeServer() as one, FakeServer() as two, watch(one, two, poll_s=0.2) as watcher:

        def poll() -> None:
            before = watcher.polls
            until(lambda: watcher.polls > before)

        watcher.wait_up(10.0)
        assert watcher.up == 0b11
        one.finished = [100.0, 50.0]  # before the sweep
        beginning = watcher.begin()
        empty = watcher.telemetry(beginning)
        assert (empty.polls, list(empty.depth_req), list(empty.taken_s)) == (0, [0, 0], [0, 0])
        assert all(math.isnan(e2e_s) for e2e_s in empty.e2e_s)
        one.finished += [2.0, 4.0]
        one.open = 5
        poll()
        seen = watcher.telemetry(beginning)
        assert seen.polls == 1
        assert list(seen.depth_req) == [6.0, 1.0]  # running and waiting
        assert list(seen.kv_frac) == [0.25, 0.25]
        assert seen.e2e_s[0] == pytest.approx(3.0)  # nothing of the 150 s
        assert math.isnan(seen.e2e_s[1])
        assert all(taken_s > 0 for taken_s in seen.taken_s)
        poll()
        assert watcher.telemetry(beginning).e2e_s[0] == pytest.approx(3.0)  # held
        later = watcher.begin()
        poll()
        assert math.isnan(watcher.telemetry(later).e2e_s[0])  # of a sweep, not of the last


def test_a_server_that_is_killed_and_returns() -> None:
    changes: list[tuple[int, bool]] = []
    with (
        FakeServer() as one,
        FakeServer() as two,
        watch(one, two, on_change=lambda m, up, asleep, why: changes.append((m, up))) as watcher,
    ):
        watcher.wait_up(10.0)
        beginning = watcher.begin()
        one.finished = [1.0] * 10
        until(lambda: watcher.telemetry(beginning).e2e_s[0] == pytest.approx(1.0))
        one.kill()
        until(lambda: watcher.up == 0b10)
        status = watcher.status()
        assert [s.up for s in status] == [False, True]
        assert "Connect" in status[0].reason
        polls = watcher.polls
        until(lambda: watcher.polls > polls + 2)
        assert watcher.telemetry(beginning).e2e_s[0] == pytest.approx(1.0)
        one.start()
        until(lambda: watcher.up == 0b11)
        one.finished = [3.0]
        until(lambda: watcher.telemetry(beginning).e2e_s[0] == pytest.approx(3.0))
    assert [change for change in changes if change[0] == 0] == [(0, True), (0, False), (0, True)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"health": 503}, "/health says 503"),
        ({"asleep": True}, "asleep"),
        ({"mute": {"/health"}}, "no answer to /health"),
        ({"mute": {"/metrics"}}, "no answer to /metrics"),
        ({"model": "n"}, "serves n, not m"),  # asked when it comes up
    ],
)
def test_what_makes_a_server_unusable(fault: dict[str, Any], reason: str) -> None:
    with FakeServer() as one, FakeServer() as two, watch(one, two, answer_s=0.1) as watcher:
        watcher.wait_up(10.0)
        good = {name: getattr(one, name) for name in fault}
        if "model" in fault:
            one.kill()
            until(lambda: watcher.up == 0b10)
        for name, value in fault.items():
            setattr(one, name, value)
        if "model" in fault:
            one.start()
        until(lambda: watcher.up == 0b10)
        until(lambda: reason in watcher.status()[0].reason)
        assert watcher.status()[0].asleep == (reason == "asleep")
        with pytest.raises(InfraMindError, match=r"s0 .*: "):
            watcher.wait_up(0.01)
        for name, value in good.items():
            setattr(one, name, value)
        until(lambda: watcher.up == 0b11)


def test_one_missed_answer_is_forgiven() -> None:
    changes: list[bool] = []
    options: dict[str, Any] = {"on_change": lambda m, up, s, w: changes.append(up), "misses": 3}
    with FakeServer() as server, watch(server, answer_s=0.1, **options) as watcher:
        watcher.wait_up(10.0)
        server.mute = {"/health"}
        asked = server.paths.count("/health")
        until(lambda: server.paths.count("/health") > asked)
        server.mute = set()
        asked = len(server.paths)
        until(lambda: len(server.paths) > asked + 6)
        assert changes == [True]


def text(
    running: float = 3, waiting: float = 2, e2e: tuple[float, float] = (0.0, 0.0), **more: float
) -> str:
    lines = [
        f'vllm:num_requests_running{{engine="0"}} {running}',
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}',
        f'vllm:e2e_request_latency_seconds_sum{{engine="0"}} {e2e[0]}',
        f'vllm:e2e_request_latency_seconds_count{{engine="0"}} {e2e[1]}',
        *(f"{name} {value}" for name, value in more.items()),
    ]
    return "\n".join(lines) + "\n"


def test_engines_are_summed() -> None:
    both = text(3, 2, (10.0, 4)) + text(1, 0, (2.0, 2)).replace('engine="0"', 'engine="1"')
    both += 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    for engine, awake in ((0, 1.0), (1, 0.0)):
        both += f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="awake"}} {awake}\n'
    reading = parse_metrics(both, 0.0)
    assert (reading.running_req, reading.waiting_req) == (4, 2)
    assert (reading.e2e_s, reading.finished_req) == (12.0, 6)
    assert reading.kv_frac == pytest.approx(0.4)
    assert reading.asleep is True  # one that sleeps is enough
    assert parse_metrics(text(), 0.0).asleep is None


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        ("", "has no vllm:num_requests_running"),
        ("<html>It works!</html>", "has no vllm:num_requests_running"),
        (text()[:-60], "has no|cannot be read"),
        (text().splitlines()[0] + "\n", "has no vllm:num_requests_waiting"),
        (text(running=math.nan), "is nan"),
        (text(waiting=-1), "is -1"),
        (text().replace(" 3", " three"), "cannot be read"),
        (text().replace(" 3", " 3" + 400 * "0"), "cannot be read"),
        (text().replace('engine="0"}', 'engine="0'), "cannot be read"),
        ("\0\xff" * 100, "has no"),
    ],
)
def test_garbage(garbage: str, message: str) -> None:
    with pytest.raises(DownError, match=message):
        parse_metrics(garbage, 0.0)


def test_means_are_those_of_what_finished_in_between() -> None:
    latency = Means()
    latency.update(parse_metrics(text(e2e=(100.0, 10)), 5.0))
    assert not latency.mean_s  # of what was before, nothing is known
    started = {"process_start_time_seconds": 1e9}
    for e2e, taken_s, mean, more in (
        ((106.0, 12), 10.0, (3.0, 10.0), {}),
        ((106.0, 12), 15.0, (3.0, 10.0), {}),  # held
        ((107.0, 13), 20.0, (1.0, 20.0), {}),
        ((8.0, 4), 25.0, (2.0, 25.0), {}),  # a restart: no negative difference
        ((9.0, 5), 30.0, (1.0, 30.0), started),
        # Restarted, and it counts further than the one before did already.
        ((60.0, 6), 35.0, (10.0, 35.0), {"process_start_time_seconds": 2e9}),
    ):
        latency.update(parse_metrics(text(e2e=e2e, **more), taken_s))
        assert (latency.mean_s["e2e_s"], latency.taken_s) == mean
