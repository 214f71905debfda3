"""Ports of live servers are taken as they are free, and given back."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import instance_pool, live_placement_config, served_models
from inframind_gym.live.placement.server import VllmServer
from inframind_gym.simulator.placement.cards import load_cluster
from inframind_gym.simulator.server.pool import load_pool


def vllm_server(tmp_path: Path) -> VllmServer:
    live = live_placement_config({"pool": "cpu-tiny"})
    pool = load_pool(live.pool)
    cluster, cards = load_cluster(live.cluster)
    served = served_models(pool, cluster, cards)
    one = instance_pool(pool, cluster, served[0], cards[0], 0)
    return VllmServer(one, live.live, str(tmp_path), str(tmp_path / "no_python"))


def test_ports_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = vllm_server(tmp_path)
    for _ in range(3):
        with pytest.raises(InfraMindError, match="no such interpreter"):
            server.start(lambda: False)
    assert not VllmServer._ports
    monkeypatch.setattr(VllmServer, "_start", lambda self, port, cancelled: port)
    ports = {vllm_server(tmp_path).start(lambda: False) for _ in range(5)}
    assert len(ports) == 5 and ports == VllmServer._ports
    server.start(lambda: False)
    server.stop()
    assert ports == VllmServer._ports
    VllmServer._ports.clear()


def test_no_port_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(count: int) -> list[int]:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("inframind_gym.live.placement.server.free_ports", none)
    with pytest.raises(InfraMindError, match=r"no free port.*in use.*ip_local_port_range"):
        vllm_server(tmp_path).start(lambda: False)
