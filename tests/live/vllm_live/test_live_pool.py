"""`inframind pool` with real vLLM: what is up, what sleeps, what is killed, what is left."""

from __future__ import annotations

import os
import signal

import pytest

from tests.live.launch.play import session
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import until
from tests.live.vllm_server.live_play import Prompts, call

pytestmark = pytest.mark.live


def test_a_sleeping_server_gets_no_request(rig: LiveRig) -> None:
    with rig.pool(sampling={"ignore_eos": True}, health_s=0.2) as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0, model=1, max_tokens=4000))
        until(lambda: rig.load(1) == (1, 0))
        rig.post(1, "/sleep?level=1&mode=keep")
        (cut,) = backend.wait(backend.now_s() + 30.0)
        assert cut.failed  # it would have hung until the server wakes up
        assert backend.models_up() == 0b101
        (row,) = [row for row in rig.status() if row["alias"] == "llama-8b"]
        assert row["state"] == "asleep"
        backend.submit(call(1, model=1))
        (failed,) = backend.wait(backend.now_s() + 30.0)
        assert failed.failed and rig.load(1) == (0, 0)
        rig.post(1, "/wake_up")
        until(lambda: backend.models_up() == 0b111)
        backend.submit(call(2, model=1))
        (answered,) = backend.wait(backend.now_s() + 30.0)
        assert not answered.failed


def test_a_dead_engine_takes_its_server_out(rig: LiveRig) -> None:
    """The engine alone is killed: the front end answers 500 and ends; `up` brings it back."""
    leader = rig.leaders()[2]
    engine = min(session(leader) - {leader}, key=lambda pid: "Engine" not in _name(pid))
    with rig.pool(health_s=0.2) as pool:
        backend = pool.open(Prompts())
        backend.submit(call(0, model=2, max_tokens=4000))
        until(lambda: rig.load(2) == (1, 0))
        os.kill(engine, signal.SIGKILL)
        (done,) = backend.wait(backend.now_s() + 60.0)
        assert done.failed
        until(lambda: backend.models_up() == 0b011)
        rig.up()
        until(lambda: backend.models_up() == 0b111)
        backend.submit(call(1, model=2))
        (answered,) = backend.wait(backend.now_s() + 60.0)
        assert not answered.failed
    assert session(leader) == set()


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read()
