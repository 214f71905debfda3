"""The watcher over servers that come, go, sleep and talk nonsense."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import InfraMindError
from inframind_gym.live.probe import DownError, Probe
from inframind_gym.live.settings import LiveSettings, ServerAddress
from inframind_gym.live.watcher import MetricsWatcher
from tests.live.vllm_server.fake import FakeServer, until


def watch(*servers: FakeServer, **options: Any) -> MetricsWatcher:
    given: dict[str, Any] = {"health_s": 0.02, "answer_s": 0.5, "misses": 2, **options}
    others = {name: given.pop(name) for name in ("poll_s", "on_change") if name in given}
    found = [ServerAddress(alias=f"s{i}", url=s.url, model="m") for i, s in enumerate(servers)]
    return MetricsWatcher(found, LiveSettings(**given), **({"poll_s": 0.05} | others))


def test_metrics_are_polled_and_counted_from_the_beginning_of_a_sweep() -> None:
    with FakeServer() as one, FakeServer() as two, watch(one, two, poll_s=3600.0) as watcher:
        watcher.wait_up(10.0)
        assert watcher.up == 0b11
        one.finished = [100.0, 50.0]  # before the sweep
        beginning = watcher.begin()
        empty = watcher.telemetry(beginning)
        assert (empty.polls, list(empty.depth_req), list(empty.taken_s)) == (0, [0, 0], [0, 0])
        assert all(math.isnan(e2e_s) for e2e_s in empty.e2e_s)
        one.finished += [2.0, 4.0]
        one.open = 5
        watcher._loop.run(watcher._poll())
        seen = watcher.telemetry(beginning)
        assert seen.polls == 1
        assert list(seen.depth_req) == [6.0, 1.0]  # running and waiting
        assert list(seen.kv_frac) == [0.25, 0.25]
        assert seen.e2e_s[0] == pytest.approx(3.0)  # nothing of the 150 s
        assert math.isnan(seen.e2e_s[1])
        assert all(taken_s > 0 for taken_s in seen.taken_s)
        watcher._loop.run(watcher._poll())
        assert watcher.telemetry(beginning).e2e_s[0] == pytest.approx(3.0)  # held
        later = watcher.begin()
        watcher._loop.run(watcher._poll())
        assert math.isnan(watcher.telemetry(later).e2e_s[0])  # of a sweep, not of the last


def test_the_first_poll_is_one_interval_after_the_beginning() -> None:
    with FakeServer() as server, watch(server, poll_s=0.3) as watcher:
        watcher.wait_up(10.0)
        time.sleep(0.2)
        beginning = watcher.begin()
        until(lambda: watcher.telemetry(beginning).polls == 1)
        assert time.monotonic() - beginning.at_s >= 0.3


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
        assert "Connect" in status[0].reason and "None" not in status[0].reason
        assert [s.listens for s in status] == [False, True]
        polls = watcher.polls
        until(lambda: watcher.polls > polls + 2)
        assert watcher.telemetry(beginning).e2e_s[0] == pytest.approx(1.0)
        one.start()
        until(lambda: watcher.up == 0b11)
        assert watcher.status()[0].listens
        one.finished = [3.0]
        until(lambda: watcher.telemetry(beginning).e2e_s[0] == pytest.approx(3.0))
    assert [change for change in changes if change[0] == 0] == [(0, True), (0, False), (0, True)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"health": 503}, "/health says 503"),
        ({"asleep": True}, "asleep"),
        ({"dev": False, "asleep": True}, "asleep"),  # only its metrics show it
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
        vars(one).update(fault)
        if "model" in fault:
            one.start()
        until(lambda: watcher.up == 0b10)
        until(lambda: reason in watcher.status()[0].reason)
        status = watcher.status()[0]
        assert status.asleep == (reason == "asleep") and status.listens
        with pytest.raises(InfraMindError, match=r"s0 .*: "):
            watcher.wait_up(0.01)
        vars(one).update(good)
        until(lambda: watcher.up == 0b11)


@pytest.mark.parametrize("finds", ["up", "down"])
def test_of_two_looks_at_once_what_began_before_a_change_counts_for_nothing(
    finds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `begin` and `release` make them while the watcher looks by itself."""
    meet = Probe.meet

    async def story() -> None:
        answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
        begun = iter(answers)

        async def slow(self: Probe) -> Any:
            await next(begun)
            return await meet(self)

        with monkeypatch.context() as patched:
            patched.setattr(Probe, "meet", slow)
            gone = DownError("no answer to /metrics")
            watcher._failed(0, gone, "poll")
            early, late = (asyncio.ensure_future(watcher._check(0)) for _ in answers)
            await asyncio.sleep(0)  # both have begun
            answers[0].set_result(None)
            await early
            assert watcher.up == 1
            if finds == "up":  # but a poll takes it down before the late look is answered
                watcher._failed(0, gone, "poll")
                answers[1].set_result(None)
            else:
                answers[1].set_exception(DownError("no connection"))
            await late
        assert watcher.up == (0 if finds == "up" else 1)
        await watcher._check(0)  # nothing is stuck
        assert watcher.up == 1

    with FakeServer() as server, watch(server, poll_s=3600.0, health_s=3600.0) as watcher:
        watcher.wait_up(10.0)
        watcher._loop.run(story())


@pytest.mark.parametrize("finds", ["metrics", "silence"])
def test_a_poll_that_began_before_a_server_went_down_counts_for_nothing(
    finds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Probe.metrics

    async def story() -> None:
        answer = asyncio.get_running_loop().create_future()

        async def slow(self: Probe) -> Any:
            reading = await metrics(self)
            await answer
            return reading

        with monkeypatch.context() as patched:
            patched.setattr(Probe, "metrics", slow)
            polling = asyncio.ensure_future(watcher._poll())
            await asyncio.sleep(0.2)
            patched.setattr(Probe, "metrics", metrics)
            watcher._failed(0, DownError("/health says 503"), "check")
            await watcher._check(0)
            reading = watcher._servers[0].reading
            assert watcher.up == 1
            if finds == "metrics":
                answer.set_result(None)
            else:
                answer.set_exception(DownError("no connection"))
            await polling
        assert watcher.up == 1
        assert watcher._servers[0].reading is reading  # not one from before

    with FakeServer() as server, watch(server, poll_s=3600.0, health_s=3600.0) as watcher:
        watcher.wait_up(10.0)
        watcher._loop.run(story())


@pytest.mark.parametrize("broken", ["metrics", "check", "on_change"])
def test_no_bug_ends_the_watching(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def bug(self: Probe) -> Any:
        nonlocal calls
        calls += 1
        raise AttributeError("cannot be")

    def on_change(*_: object) -> None:
        nonlocal calls
        calls += 1
        if broken == "on_change":
            raise AttributeError("cannot be")

    with FakeServer() as server, watch(server, on_change=on_change) as watcher:
        watcher.wait_up(10.0)
        calls = 0
        if broken == "on_change":
            server.health = 503
            until(lambda: watcher.up == 0)
        else:
            with monkeypatch.context() as patched:
                patched.setattr(Probe, broken, bug)
                until(lambda: watcher.up == 0 and calls > 3)
                assert "AttributeError: cannot be" in watcher.status()[0].reason
        server.health = 200
        until(lambda: watcher.up == 1)
        polls = watcher.polls
        until(lambda: watcher.polls > polls)
    assert calls and "cannot be" in caplog.text
    assert len(caplog.records) <= 4  # once a change, not once a look


def test_one_missed_answer_is_forgiven() -> None:
    changes: list[bool] = []
    with (
        FakeServer() as server,
        watch(
            server, answer_s=0.1, misses=3, on_change=lambda m, up, s, w: changes.append(up)
        ) as watcher,
    ):
        watcher.wait_up(10.0)
        server.mute = {"/health"}
        asked = server.paths.count("/health")
        until(lambda: server.paths.count("/health") > asked)
        server.mute = set()
        asked = len(server.paths)
        until(lambda: len(server.paths) > asked + 6)
        assert changes == [True]


def test_hold_and_release() -> None:
    changes: list[tuple[bool, str]] = []
    with (
        FakeServer() as server,
        watch(server, on_change=lambda m, up, s, why: changes.append((up, why))) as watcher,
    ):
        watcher.wait_up(10.0)
        watcher.hold(0, "will be put to sleep")
        assert watcher.up == 0
        assert watcher.status()[0].reason == "will be put to sleep"
        polls = watcher.polls
        until(lambda: watcher.polls > polls + 1)
        assert watcher.up == 0
        watcher.release(0)
        assert watcher.up == 1
    assert changes == [(True, ""), (False, "will be put to sleep")]


def test_a_slow_server_does_not_hold_up_the_others_looks() -> None:
    with FakeServer() as one, FakeServer() as two, watch(one, two, answer_s=1.0) as watcher:
        watcher.wait_up(10.0)
        one.mute = {"/health"}
        two.kill()
        until(lambda: watcher.up == 0b01, 0.9)  # before the first answer fails to come


def test_nothing_is_left_behind() -> None:
    before = threading.active_count()
    with FakeServer() as server:
        inside = threading.active_count()
        watcher = watch(server)
        watcher.wait_up(10.0)
        assert threading.active_count() == inside + 1
        watcher.close()
        watcher.close()
        until(lambda: threading.active_count() == inside)
        until(lambda: not server.connections)
    assert threading.active_count() == before
