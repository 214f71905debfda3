"""Live placement over servers that pretend: phases, drains, roll-backs, deaths."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.placement.state import LOAD, OFFLOAD, WAKE
from tests.live.launch.play import ENV
from tests.live.vllm_server.fake import Answer, until
from tests.placement.live_toys import (
    LLAMA3,
    LLAMA8,
    QWEN,
    SLEEP,
    Stage,
    on_gpu_0,
    open_choice,
    stage,
)
from tests.placement.toys import card, write_cluster


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Stage]:
    """A live cluster in which Qwen is awake on GPU 0, and nothing else anywhere."""
    with stage(tmp_path, initial="empty") as found:
        on_gpu_0(found, 0)
        yield found


@pytest.mark.slow
def test_random_decisions_under_demand(tmp_path: Path) -> None:
    """Everything is switched all the time: no call is lost, cut or sent to a sleeper."""
    rng = np.random.default_rng(0)
    with stage(tmp_path, routing_interval_s=0.1, decision_interval_s=0.3) as play:
        live = play.live
        play.begin(1)
        assert [row.count("active") for row in map(play.states, range(2))] == [1, 1]
        for _ in range(25):
            context = live.contexts(np.zeros(1, np.int64))
            assert (live.held_mb(np.zeros(1, np.int64)) <= live.world.gpu["vram_mb"]).all()
            assert play.seen.min() >= 0.0 and np.isfinite(play.seen).all()
            play.decide(*open_choice(rng, context.mask[0]))
            for g in range(2):
                assert play.states(g).count("active") <= 1
        summary = live.summary(0)
        assert summary["jobs"] > 10
        assert summary["failed_calls"] == summary["lost_calls"] == 0
        assert summary["failed_wakes"] == summary["failed_loads"] == 0
        assert min(play.counters[k] for k in ("wakes", "loads", "sleeps", "offloads")) > 0
        served = sum(len(fake.requests) for fake in play.fakes)
        assert served == live.state.episode[0]["requests_done"] + len(live.traffic._flights)
        assert all(request["ignore_eos"] for fake in play.fakes for request in fake.requests)
        # A second episode goes on with the models that are there.
        play.begin(2)
        assert any("active" in play.states(g) for g in range(2))
        assert live.state.episode[0]["requests_done"] == 0
        play.decide(0, 0)


@pytest.mark.parametrize(
    "fault", [{"refuses": {"/wake_up": 500}}, {"dies_of": {"/wake_up"}}, {"mute": {"/wake_up"}}]
)
def test_a_server_that_does_not_wake_is_stopped(tmp_path: Path, fault: dict[str, Any]) -> None:
    with stage(tmp_path, initial="empty", live={"wake_s": 0.5, "backoff_s": 30.0}) as play:
        on_gpu_0(play, 0)
        play.decide(LLAMA8, 0)
        play.until(lambda: play.states(0) == ["slept", "active", "absent"])
        vars(play.fake(0, 0)).update(fault)
        play.ask(0)
        play.decide(QWEN, 0)
        play.until(lambda: play.counters["failed_wakes"])
        assert play.states(0) == ["absent", "slept", "absent"]
        assert play.servers[0, 0].fake is None  # and its memory is free
        last = play.live.transitions[-1]
        assert (last.phase, last.now) == ("wake", "absent") and "/wake_up" in last.why
        mask = play.live.contexts(np.zeros(1, np.int64)).mask[0]
        assert list(mask[0]) == [True, False, True, True]  # closed to it for a while
        assert not play.done
        play.wake(LLAMA8)  # the other one can wake up
        play.live.instance(0, 0).closed_until_s = 0.0
        play.decide(0, 0)
        play.decide(QWEN, 0)
        play.until(lambda: play.done == 1)  # loaded again
        assert play.states(0) == ["active", "slept", "absent"]


def test_a_server_is_drained_before_it_sleeps(play: Stage) -> None:
    play.servers[0, 0].script = lambda r, n: Answer(tokens=5, each_s=0.3)
    play.ask(0, 3)
    play.until(lambda: play.fake(0, 0).open == 3)
    play.decide(LLAMA8, 0)
    play.ask(0)
    assert play.states(0)[:2] == ["draining", "queued"]
    assert "/sleep" not in "".join(play.fake(0, 0).paths)
    play.until(lambda: play.states(0)[:2] == ["slept", "active"])
    assert play.done == 3 and play.summary("failed_calls") == [0]
    assert play.fake(0, 0).open_at_sleep == [0]
    assert len(play.fake(0, 0).requests) == 3


@pytest.mark.parametrize(
    "bad", [Answer(finish="abort"), Answer(finish=None), Answer(status=500), Answer(reset_after=1)]
)
def test_an_answer_that_is_cut_is_asked_for_again(play: Stage, bad: Answer) -> None:
    play.servers[0, 0].script = lambda r, n: bad if n == 0 else Answer("whole")
    play.ask(0)
    play.until(lambda: play.done == 1)
    assert play.summary("failed_calls", "lost_calls") == [1, 0]


def test_a_call_is_given_up_in_the_end(tmp_path: Path) -> None:
    with stage(tmp_path, initial="empty", live={"retries": 2}) as play:
        on_gpu_0(play, 0)
        play.servers[0, 0].script = lambda r, n: Answer(finish="abort")
        play.ask(0)
        play.until(lambda: play.done == 1)
        assert len(play.fake(0, 0).requests) == 3
        assert play.summary("failed_calls", "lost_calls") == [3, 1]
        assert play.live.state.episode[0]["jobs_late"] == 1
        play.servers[0, 0].script = lambda r, n: Answer(status=400)
        play.ask(0)
        play.until(lambda: play.done == 2)
        assert len(play.fake(0, 0).requests) == 4
        assert play.summary("failed_calls", "lost_calls") == [4, 2]


@pytest.mark.parametrize("was", ["active", "slept", "draining"])
def test_a_server_that_dies(play: Stage, was: str) -> None:
    first, asked = play.fake(0, 0), 0 if was == "slept" else 6
    if was == "slept":
        play.wake(LLAMA8)
    else:
        play.servers[0, 0].script = lambda r, n: Answer(hang=True)
        play.ask(0, asked)
        play.until(lambda: first.open == 6)
    if was == "draining":
        play.decide(LLAMA8, 0)
        assert play.states(0)[0] == "draining"
    first.kill()
    play.until(lambda: play.states(0)[0] == "absent")
    # One that drains is empty when its calls have failed, and cannot be put to sleep.
    assert {("lost", "qwen-14b", "absent"), ("sleep", "qwen-14b", "absent")} & set(play.phases())
    play.settle()
    play.servers[0, 0].script = lambda r, n: Answer()
    play.decide(QWEN, 0)
    play.until(lambda: play.states(0)[0] == "active" and play.done == asked)
    assert play.summary("lost_calls") == [0] and play.fake(0, 0) is not first
    assert len(play.fake(0, 0).requests) == asked  # each answered once


def test_times_are_learned_and_a_first_sleep_is_not(play: Stage) -> None:
    seen = play.live.state.seen_s[0]
    believed = seen.copy()
    assert believed[0, 2] != play.live.cards[0].t_load_s  # the load was observed
    assert believed[0, 2] == pytest.approx(0.7 * 28.0, rel=0.2)
    play.wake(LLAMA8)
    assert seen[0, 1] == believed[0, 1]
    play.wake(QWEN)
    assert seen[0, WAKE] != believed[0, WAKE]
    play.wake(LLAMA8)
    assert seen[0, 1] != believed[0, 1]
    play.wake(LLAMA3)  # there is no room for a third: one of the sleepers is stopped
    assert sorted(play.states(0)) == ["absent", "active", "slept"]
    assert (seen[:, OFFLOAD] != believed[:, OFFLOAD]).sum() == 1


def test_times_outlive_their_process_where_the_weights_are_the_same(tmp_path: Path) -> None:
    with stage(tmp_path, initial="empty") as play:
        on_gpu_0(play, 0)
        learned = play.live.state.seen_s[0].copy()
        priors = play.live.world.model["time_s"][:, : learned.shape[1]].copy()
        kept = play.live._times_file
        assert learned[0, LOAD] < priors[0, LOAD]
    with stage(tmp_path, initial="empty") as play:
        play.begin(jobs=False)
        np.testing.assert_allclose(play.live.state.seen_s[0], learned)
    kept.write_text(kept.read_text().replace("tiny-4x256", "another"))
    with stage(tmp_path, initial="empty") as play:
        play.begin(jobs=False)
        np.testing.assert_allclose(play.live.state.seen_s[0, 0], priors[0])
    kept.write_text("{")
    with stage(tmp_path, initial="empty") as play:
        play.begin(jobs=False)
        np.testing.assert_allclose(play.live.state.seen_s[0], priors)
        kept.unlink()
        kept.mkdir()  # cannot be written
        on_gpu_0(play, 0)


def test_a_model_over_two_gpus(tmp_path: Path) -> None:
    cards = [
        card("qwen-14b", slots=4, slept_mem_tp1_MB=1_000),
        card("llama-8b", tp_min=2, slept_mem_tpg1_MB=1_000),
    ]
    with stage(tmp_path, initial="empty", cluster=write_cluster(tmp_path, cards, gpus=2)) as play:
        play.begin(jobs=False)
        play.decide(1, 1)
        play.until(lambda: play.states(0)[0] == play.states(1)[0] == "active")
        play.decide(2, 0)  # half a group
        assert play.live.state.episode[0]["illegal"] == 1
        play.ask(1)
        play.decide(2, 2)
        play.until(lambda: play.done == 1)
        assert play.states(0) == ["slept", "active"] and play.states(1)[0] == "slept"
        assert len(play.fake(0, 1).requests) == 1 and (1, 1) not in play.servers


def test_servers_that_do_not_start(tmp_path: Path) -> None:
    with stage(tmp_path) as play:
        for server in (play.make(g, m) for g in range(2) for m in range(3)):
            server.start_fails = "no memory"
        with pytest.raises(InfraMindError, match=r"(?s)no server came up:.*on GPU 0: no memory"):
            play.begin()
        play.make(0, 0).start_fails = play.make(0, 1).start_fails = ""
        play.make(0, 2).start_fails = ""
        play.begin()  # with one of the two it goes on
        assert [play.states(g).count("active") for g in range(2)] == [1, 0]
    with pytest.raises(InfraMindError, match="closed"):
        play.decide(0, 0)


def test_a_pool_has_one_placement_at_a_time(tmp_path: Path) -> None:
    with stage(tmp_path, initial="empty") as one, stage(tmp_path, initial="empty") as other:
        one.begin()
        with pytest.raises(InfraMindError, match="another command is starting or stopping"):
            other.begin()
        one.live.close()
        other.begin()


def test_closing_in_the_middle(tmp_path: Path) -> None:
    """Of a start, a sleep that hangs, and calls: nothing is left, nobody waits for ever."""
    before = threading.active_count()
    with stage(tmp_path, initial="empty", live={"sleep_s": 600.0}) as play:
        on_gpu_0(play, 0)
        play.fake(0, 0).mute = {SLEEP}
        play.ask(2)
        play.decide(LLAMA8, QWEN)
        assert play.states(0)[0] == "sleeping"
        began_s = time.monotonic()
        play.live.close()
        assert time.monotonic() - began_s < 60.0
        play.live.close()
    until(lambda: threading.active_count() <= before, 20.0)


def test_ctrl_c_at_any_time_while_it_closes_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, main = threading.Thread.start, threading.get_ident()

    def interrupt() -> None:
        signal.pthread_kill(main, signal.SIGINT)

    def interrupted(thread: threading.Thread) -> None:
        interrupt()
        start(thread)

    with stage(tmp_path, initial="empty") as play:
        play.begin(jobs=False)
        play.decide(QWEN, LLAMA8)
        play.settle()
        servers = [server for server in play.servers.values() if server.fake is not None]
        assert len(servers) == 2
        for server in servers:
            monkeypatch.setattr(server, "stop", lambda end=server.stop: (interrupt(), end()))
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play.live.close()
        assert [server.fake for server in servers] == [None, None]


FORGOTTEN = """
import sys
from pathlib import Path
from tests.placement.live_toys import Stage, on_gpu_0

play = Stage(Path(sys.argv[1]), initial="empty")
on_gpu_0(play, 0)
server = play.servers[0, 0]
end = server.stop
server.stop = lambda: (end(), print("stopped"))
"""


def test_a_program_that_forgets_to_close_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORGOTTEN, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
