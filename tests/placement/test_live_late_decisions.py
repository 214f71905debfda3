"""Calls go on while a policy thinks; and callers that keep them waiting are counted."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import ActionError
from tests.placement.live_toys import HELLO, LLAMA8, QWEN, Stage, stage


def test_calls_are_answered_while_a_policy_thinks(play: Stage) -> None:
    """The policy waits for an answer: nobody would give it if the cluster waited for the policy."""
    live = play.live
    late, answer = live.late_decisions, live.ask("qwen-14b", HELLO, 5)

    def think() -> Any:
        assert answer.result(timeout=20.0).status == "ok"
        later = live.ask("qwen-14b", HELLO, 5)  # comes and is answered within one decision
        assert later.result(timeout=20.0).status == "ok"
        time.sleep(1.0)
        return [LLAMA8, 0]

    before_s, unrouted_s = live.now_s()[0], live.unrouted_s
    live.decide_by(think)
    assert live.now_s()[0] - before_s > 1.0
    assert live.late_decisions == late + 1 and live.unrouted_s == unrouted_s
    assert live.summary(0)["late_decisions"] == late + 1
    assert play.states(0)[0] != "active" and live.state.episode[0]["illegal"] == 0
    play.until(lambda: play.states(0)[:2] == ["slept", "active"])


def test_a_decision_that_has_become_impossible_is_not_carried_out(
    play: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, may_end = play.servers[0, 0], threading.Event()
    stop = server.stop
    monkeypatch.setattr(server, "stop", lambda: (may_end.wait(20.0), stop()))

    def think() -> Any:
        play.fake(0, 0).kill()
        over_s = time.monotonic() + 20.0
        while play.states(0)[0] != "vanishing" and time.monotonic() < over_s:
            time.sleep(0.02)
        return [QWEN, 0]  # let it stay

    play.live.decide_by(think)
    assert play.states(0)[0] == "vanishing" and play.live.state.episode[0]["illegal"] == 1
    may_end.set()
    play.settle()
    assert play.states(0) == ["absent"] * 3


def test_a_caller_that_is_late_is_counted(tmp_path: Path) -> None:
    with stage(tmp_path, initial="empty") as play:
        play.live.begin(0)
        late = play.live.late_decisions
        play.decide(0, 0)
        time.sleep(0.7)
        play.decide(0, 0)
        assert play.live.summary(0)["late_decisions"] >= late + 1
        assert play.live.summary(0)["unrouted_s"] >= 0.7
        play.live.begin(1)
        assert play.live.late_decisions == 0 and play.live.unrouted_s == 0.0


def test_a_decision_of_another_form_is_refused(play: Stage) -> None:
    wrong: list[Any] = [[0, 9], [0, -1], [1], None]
    live, before = play.live, play.states(0)
    for decision in wrong:
        with pytest.raises(ActionError):
            live.decide(decision)
        with pytest.raises(ActionError):
            live.decide_by(lambda made=decision: made)
    assert play.states(0) == before
    live.decide([0, 0])  # and it goes on
