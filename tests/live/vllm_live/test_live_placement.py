"""Placement with real vLLM: drained, put to sleep, woken up, started, killed, and nothing left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.live.client import ask
from inframind_gym.live.config import PlacementLiveConfig
from inframind_gym.live.placement.cluster import LivePlacement
from tests.live.launch.play import session
from tests.live.vllm_live.rig import read_metrics, reason_to_skip
from tests.placement.live_toys import LLAMA3, LLAMA8, QWEN, Play
from tests.placement.toys import write_demand
from tests.simulator.vllm_scheduler.rerecord import VLLM_PYTHON

pytestmark = pytest.mark.live
LIMIT_S = 600.0  # for servers to come up, on two busy cores


class Room(Play):
    """A live cluster in a folder of its own."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.state = folder / "state"
        given = {"state": str(self.state), "python": str(VLLM_PYTHON), "initial": "empty"}
        given |= {"routing_interval_s": 0.2, "decision_interval_s": 0.4, **arguments}
        given["demand"] = write_demand(folder, topologies={"IO": 1}, num_agents={1: 1})
        super().__init__(
            LivePlacement(PlacementLiveConfig.model_validate(given), on_transition=print)
        )

    def until(self, true: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        super().until(true, limit_s)

    def url(self, g: int, m: int) -> str:
        return self.live.instance(g, m).server.url

    def finished(self, g: int, m: int) -> int:
        """Requests that ended on a server, however they did."""
        reading = read_metrics(self.url(g, m))
        return int(reading.finished_req + reading.running_req + reading.waiting_req)

    def leaders(self) -> dict[str, int]:
        """Processes that were started, by the folder of their instance."""
        return {
            file.parent.name: json.loads(file.read_text())[0]["pid"]
            for file in self.state.glob("*/state.json")
        }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path / "cache"))
    yield tmp_path


def test_models_are_switched(folder: Path) -> None:
    room = Room(folder)
    with room.live as live:
        room.begin(jobs=False)
        room.decide(QWEN, LLAMA8)
        room.until(lambda: room.states(0)[0] == room.states(1)[1] == "active")
        room.ask(0, 5)
        room.ask(1, 5)
        room.until(lambda: room.done == 10)
        assert room.summary("failed_calls") == [0]
        started = room.leaders()

        # A third model wants the slot: the call in flight is answered whole, later ones wait.
        room.ask(0, tokens=900)
        room.until(lambda: room.finished(0, 0) == 6)
        room.decide(LLAMA3, 0)
        room.ask(0)
        room.until(lambda: room.states(0) == ["slept", "absent", "active"])
        assert room.done == 11 and room.finished(0, 0) == 6

        # Back again: from sleep this takes no time.
        room.decide(QWEN, 0)
        room.until(lambda: room.done == 12)
        assert room.finished(0, 0) == 7
        assert room.states(0) == ["active", "absent", "slept"]
        assert room.summary("failed_calls") == [0]

        # Somebody else puts a server to sleep: half an answer. It is stopped, and loaded again.
        room.ask(1, tokens=900)
        room.until(lambda: room.finished(1, 1) == 6)
        ask(room.url(1, 1) + "/sleep?level=1&mode=abort", method="POST", limit_s=60.0)
        room.until(lambda: room.states(1)[1] == "absent")
        assert room.summary("failed_calls")[0] >= 1 and room.done == 12
        room.decide(0, LLAMA8)
        room.until(lambda: room.done == 13)
        assert room.summary("lost_calls") == [0]

        # A sleeper is killed, and its engine outlives it: nothing of it is left, and it is told.
        sleeper = room.leaders()["cpu-tiny+llama-3b+0"]
        os.kill(sleeper, signal.SIGKILL)
        room.until(lambda: room.states(0)[2] == "absent")
        assert session(sleeper) == set()
        assert live.counters(0)["failed_wakes"] == 0
    print("learned, s (wake, sleep, load, offload):", live.state.seen_s[0].round(3).tolist())
    assert room.leaders() == {}
    assert [pid for leader in started.values() for pid in session(leader)] == []
