"""The machine of a live placement: who has the pool."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import InfraMindError
from inframind_gym.live.placement import machine
from inframind_gym.live.config import live_placement_config
from inframind_gym.live.placement.cluster import Machine
from inframind_gym.live.loop import LoopThread
from inframind_gym.simulator.placement.cards import load_cluster
from inframind_gym.simulator.server.pool import load_pool


def idle(state: Path) -> Machine:
    """One on which no server is made."""
    cluster, cards = load_cluster("cpu-tiny")
    return Machine(
        config=live_placement_config({"pool": "cpu-tiny", "state": str(state)}),
        pool=load_pool("cpu-tiny"),
        cluster=cluster,
        cards=cards,
        served=(),
        make_server=None,
        seen=lambda g, m, up: None,
    )


def test_one_machine_at_a_time_has_the_pool(tmp_path: Path) -> None:
    one, other = idle(tmp_path), idle(tmp_path)
    one.open()
    with pytest.raises(InfraMindError, match="another command is starting or stopping"):
        other.open()
    assert one.is_open and not other.is_open
    one.close()
    other.open()
    other.close()


def test_one_that_cannot_begin_gives_the_pool_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(name: str) -> LoopThread:
        raise RuntimeError("can't start new thread")

    one, other = idle(tmp_path), idle(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(machine, "LoopThread", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            one.open()
    assert not one.is_open
    other.open()
    other.close()
