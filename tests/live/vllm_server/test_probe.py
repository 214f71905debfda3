"""Asking a server, whatever it answers; without a server, a thread or a clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("aiohttp")

import aiohttp

from inframind_gym.live.probe import DownError, Probe, fetch
from inframind_gym.live.settings import ServerAddress

METRICS = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
GOOD: dict[str, tuple[int, str]] = {
    "/health": (200, ""),
    "/is_sleeping": (200, '{"is_sleeping": false}'),
    "/metrics": (200, METRICS),
    "/v1/models": (200, '{"data": [{"id": "l"}, {"id": "m"}]}'),
}
ADDRESS = ServerAddress(alias="s", url="http://s", model="m")


def probe(asked: list[str], **answers: tuple[int, str]) -> Probe:
    found = GOOD | {f"/{path.replace('__', '/')}": answer for path, answer in answers.items()}

    async def get(path: str) -> tuple[int, str]:
        asked.append(path)
        return found[path]

    return Probe(ADDRESS, get)


def test_one_that_is_up() -> None:
    asked: list[str] = []
    reading = asyncio.run(probe(asked).meet())
    assert (reading.running_req, reading.waiting_req) == (2.0, 1.0)
    assert asked == list(GOOD)


def test_sleep_is_not_asked_of_one_that_does_not_tell() -> None:
    asked: list[str] = []
    shy = probe(asked, is_sleeping=(404, "Not Found"))

    async def scene() -> None:
        await shy.check()
        await shy.check()
        assert asked == ["/health", "/is_sleeping", "/health"]
        shy.reset()
        await shy.check()
        assert asked[3:] == ["/health", "/is_sleeping"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"health": (500, "")}, "/health says 500"),
        ({"is_sleeping": (200, '{"is_sleeping": true}')}, "asleep"),
        ({"is_sleeping": (200, "[" * 200_000)}, "/is_sleeping answers"),
        ({"is_sleeping": (200, "[]")}, "/is_sleeping answers"),
        ({"metrics": (404, "")}, "/metrics says 404"),
        ({"metrics": (200, "<html>")}, "num_requests_running"),
        ({"v1__models": (401, "")}, "/v1/models says 401"),
        ({"v1__models": (200, "[" * 200_000)}, "no list of models"),
        ({"v1__models": (200, '{"data": 5}')}, "no list of models"),
        ({"v1__models": (200, '{"data":' + "9" * 5000 + "}")}, "no list of models"),
        ({"v1__models": (200, '{"data": []}')}, "serves nothing, not m"),
        ({"v1__models": (200, '{"data": [{"id": "n"}]}')}, "serves n, not m"),
    ],
)
def test_one_that_is_down(answers: dict[str, Any], reason: str) -> None:
    with pytest.raises(DownError) as caught:
        asyncio.run(probe([], **answers).meet())
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200
    assert caught.value.asleep == (reason == "asleep")
    assert caught.value.listens and caught.value.at_once


@pytest.mark.parametrize("error", [OSError(), OSError(111, "Connection refused")])
def test_one_that_is_not_there(error: OSError) -> None:
    """Errors of several addresses, as of localhost, have a text and no number."""

    class Session:
        timeout = aiohttp.ClientTimeout(total=1.0)

        def request(self, method: str, url: str, **_: object) -> Any:
            raise aiohttp.ClientConnectorError(None, error)  # type: ignore[arg-type]

    with pytest.raises(DownError) as caught:
        asyncio.run(fetch(Session(), "http://s", "/health"))  # type: ignore[arg-type]
    assert str(caught.value) == f"no connection ({error.strerror or 'OSError'})"
    assert not caught.value.listens
