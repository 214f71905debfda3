"""Loads on the gateway: what is counted of their requests, and faults of servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools")

from benchmarks import gateway_load
from benchmarks.gateway_load import break_servers, first_tokens, send
from inframind_gym.live import client
from tests.live.gateway.rig import running
from tests.live.simulated.play import served, tiny_pool
from tests.live.vllm_server.fake import Answer

BREAKS_OFF = Answer("4 and 2", each_s=0.1, error_after=2)


@pytest.mark.parametrize(
    ("answer", "outcomes"),
    [(Answer(), {"in time": 20}), (BREAKS_OFF, {"in time": 10, "failed": 10})],
)
def test_requests_end_once(answer: Answer, outcomes: dict[str, int], tmp_path: Path) -> None:
    with running(tmp_path, lambda request, number: answer, admission="best_effort") as rig:
        assert asyncio.run(send(rig.url, 50.0, 20, break_servers([], 0.0))) == outcomes
        took_s = asyncio.run(first_tokens(rig.url, "inframind/auto", 2, 6))
    assert len(took_s) == 6 and min(took_s) > 0.0


def test_servers_break_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, str]] = []

    async def fetch(session: Any, url: str, path: str, *, method: str) -> str:
        text = await real(session, url, path, method=method)
        sent.append((servers.index(url), path.partition("&")[0]))
        return text

    real = client.fetch
    monkeypatch.setattr(gateway_load, "fetch", fetch)
    monkeypatch.setattr(gateway_load, "BROKEN_S", 0.1)
    with served(tiny_pool()) as servers, pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(break_servers(servers, 0.15), 3.0))
    assert [fault for fault in sent if "kill" not in fault[1]][:5] == [
        (1, "/fault?kind=hang"),
        (2, "/sleep?level=1"),
        (2, "/wake_up"),
        (0, "/fault?kind=garbage"),
        (1, "/fault?kind=error"),
    ]


def test_servers_go_down_where_the_gateway_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def refuse(*arguments: Any, **named: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(gateway_load, "run", lambda command, **named: ran.append(command[4]))
    monkeypatch.setattr(gateway_load, "Popen", refuse)
    with pytest.raises(OSError, match="no more processes"), gateway_load.serving("bid_price"):
        pass
    assert ran == ["up", "down"]
