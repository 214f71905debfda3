"""Simulated servers at work: pace, order, streams, disconnects, sleep, faults, repetition."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

import aiohttp
import numpy as np

from inframind_gym.live.backend import Connections
from inframind_gym.live.chat import ChatResult
from inframind_gym.live.config import LiveSettings, ServerAddress
from inframind_gym.live.watcher import Reading, parse_metrics
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import cards
from tests.live.simulated.play import served, tiny_pool

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MEASURED = load_pool("b200-2gpu")
Session = aiohttp.ClientSession
SETTINGS = LiveSettings(sampling={"ignore_eos": True}, health_s=3600.0)


def play(scene: Callable[[Session], Coroutine[Any, Any, Any]], loop: Any = asyncio) -> Any:
    async def all_of_it() -> Any:
        async with aiohttp.ClientSession() as session:
            return await asyncio.wait_for(scene(session), 60.0)

    return loop.run(all_of_it())


async def chat(session: Session, url: str, **body: Any) -> dict[str, Any]:
    async with session.post(url + CHAT, json={"messages": HELLO, **body}) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def reading(session: Session, url: str) -> Reading:
    async with session.get(f"{url}/metrics") as response:
        return parse_metrics(await response.text(), time.monotonic())


async def until_load(session: Session, url: str, running: int, waiting: int) -> None:
    while True:
        now = await reading(session, url)
        if (now.running_req, now.waiting_req) == (running, waiting):
            return
        await asyncio.sleep(0.01)


async def fault(session: Session, url: str, **query: Any) -> None:
    async with session.post(f"{url}/fault", params={"for_s": 60.0, **query}) as response:
        assert response.status == 200, await response.text()


def test_latencies_are_the_kernels() -> None:
    """Poisson arrivals with deadlines as priorities, over HTTP and through the kernel alone.

    In one of five runs at the latest: what a busy machine adds is no kernel's.
    """
    pool, rng, n, speed = MEASURED, np.random.default_rng(0), 60, 2.0
    arrival_s = np.cumsum(rng.exponential(0.15, n))
    model, prompt = rng.integers(0, len(pool.models), n), rng.integers(50, 2000, n)
    output = np.minimum(rng.lognormal(5.0, 0.8, n).astype(int) + 1, 300)
    priority = rng.integers(0, 10**6, n)
    kernel = replay_requests(cards(pool), model, arrival_s, prompt, output, priority)
    with served(pool, speed=speed) as urls:
        servers = [
            ServerAddress(alias=each.alias, url=url, model=each.name)
            for each, url in zip(pool.models, urls, strict=True)
        ]

        async def scene() -> list[ChatResult]:
            began_s = time.monotonic() + 0.05

            async def one(i: int) -> ChatResult:
                await asyncio.sleep(began_s + arrival_s[i] / speed - time.monotonic())
                said = [{"role": "user", "content": "x" * (4 * (int(prompt[i]) - 4))}]
                asked = int(model[i]), said, int(output[i]), 600.0
                return await client.chat(*asked, priority=int(priority[i]))

            return await asyncio.gather(*map(one, range(n)))

        client = Connections(servers, SETTINGS, urls.loop, poll_s=60.0)
        for _ in range(5):
            results = urls.loop.run(scene())
            assert [result.status for result in results] == ["truncated"] * n
            took_s = [speed * (result.last_token_s - result.submit_s) for result in results]
            expected_s = np.median(kernel["finish_s"] - arrival_s)
            if np.median(took_s) == pytest.approx(expected_s, rel=0.05):
                client.close()
                return
    pytest.fail("five times")


def test_the_queue_is_in_the_order_of_priorities() -> None:
    with served(MEASURED, speed=20.0) as servers:

        async def scene(session: Session) -> list[int]:
            ended: list[int] = []

            async def one(priority: int, tokens: int) -> None:
                await chat(
                    session, servers[0], max_tokens=tokens, ignore_eos=True, priority=priority
                )
                ended.append(priority)

            first = [asyncio.ensure_future(one(0, 2_000)) for _ in range(16)]
            await until_load(session, servers[0], 16, 0)
            late = [asyncio.ensure_future(one(p, 50)) for p in (3, 1, 2) for _ in range(16)]
            await until_load(session, servers[0], 16, 48)
            await asyncio.gather(*first, *late)
            return ended

        ended = np.array(play(scene))  # neighbours change places where the client is slow
        places = [np.flatnonzero(ended == priority).mean() for priority in range(4)]
    assert places == sorted(places)


def test_who_goes_away_takes_the_request_along() -> None:
    with served(MEASURED) as servers:

        async def scene(session: Session) -> Reading:
            body = {"max_tokens": 10_000, "ignore_eos": True}
            calls = (chat(session, servers[0], **body, stream=s) for s in [False, True] * 9)
            tasks = [asyncio.ensure_future(call) for call in calls]
            await until_load(session, servers[0], 16, 2)
            for task in tasks:
                task.cancel()
            await until_load(session, servers[0], 0, 0)
            return await reading(session, servers[0])

        assert play(scene).finished_req == 18


def test_a_sleeper_ends_what_runs_and_holds_what_comes() -> None:
    with served(tiny_pool()) as servers:
        url = servers[0]

        async def scene(session: Session) -> None:
            body = {"max_tokens": 4000, "ignore_eos": True}
            running = asyncio.ensure_future(chat(session, url, **body))
            await until_load(session, url, 1, 0)
            await session.post(f"{url}/sleep?level=1")
            cut = await running
            assert cut["choices"][0]["finish_reason"] == "abort"
            assert 0 < cut["usage"]["completion_tokens"] < 4000
            asked = (chat(session, url, max_tokens=3, ignore_eos=True) for _ in range(2))
            held = asyncio.gather(*asked)
            await asyncio.sleep(0.1)
            now = await reading(session, url)
            assert (now.asleep, now.running_req, now.waiting_req) == (True, 0, 0)
            assert not held.done()
            await session.post(f"{url}/wake_up")
            choices = [answer["choices"][0] for answer in await held]
            assert [choice["finish_reason"] for choice in choices] == ["length"] * 2
            assert choices[0]["message"] != choices[1]["message"]  # each draws its own
            last = asyncio.ensure_future(chat(session, url, max_tokens=100, ignore_eos=True))
            await until_load(session, url, 1, 0)
            await session.post(f"{url}/sleep?mode=wait")
            assert last.done() or (await asyncio.wait_for(last, 1.0))
            assert (await last)["usage"]["completion_tokens"] == 100

        play(scene)


@pytest.mark.parametrize(
    ("query", "status", "after"),
    [
        ({"kind": "kill", "for_s": 3.0}, ("down", "unreachable"), ("broken", "unreachable")),
        ({"kind": "hang"}, ("timeout",), ("timeout",)),
        ({"kind": "error"}, ("busy",), ("truncated",)),
        ({"kind": "garbage"}, ("garbled", "down"), ("garbled",)),
    ],
)
def test_a_fault_is_met_by_clients(query: Any, status: Any, after: Any) -> None:
    """By one that comes, and by one whose answer is under way; the next model takes no notice."""
    with served(MEASURED, speed=5.0) as servers:
        address = ServerAddress(alias="m", url=servers[0], model=MEASURED.models[0].name)
        client = Connections([address], SETTINGS, servers.loop, poll_s=60.0)

        async def scene(session: Session) -> tuple[ChatResult, ChatResult]:
            before = await reading(session, servers[0])
            under_way = asyncio.ensure_future(client.chat(0, HELLO, 300, 4.0))
            await until_load(session, servers[0], 1, 0)
            await fault(session, servers[0], **query)
            await asyncio.sleep(0.1)  # one that is killed answers first
            patience_s = 0.5 if query["kind"] == "hang" else 10.0
            came = await client.chat(0, HELLO, 5, patience_s)
            old = await under_way
            if query["kind"] != "kill":
                await fault(session, servers[0], kind="none")
            while (await client.chat(0, HELLO, 5, 5.0)).status != "truncated":
                client.watcher.suspect(0)
                await asyncio.sleep(0.1)  # it heals
            assert "choices" in await chat(session, servers[1], max_tokens=1)
            now = await reading(session, servers[0])  # one that was killed is a new one
            assert (now.started > before.started) == (query["kind"] == "kill")
            return came, old

        came, old = play(scene, servers.loop)
        client.close()
    assert came.status in status and old.status in after


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, {"messages": HELLO, "max_tokens": 2, "frobnicate": 1}, 200),
        ("POST", CHAT, {"messages": [{"role": "user", "content": [{"text": "H"}]}]}, 200),
        ("POST", CHAT, b"{nope", 400),
        ("POST", CHAT, b"[1]", 400),
        ("POST", CHAT, {}, 400),
        ("POST", CHAT, {"messages": []}, 400),
        ("POST", CHAT, {"messages": HELLO, "model": "nope"}, 404),
        ("POST", CHAT, {"messages": HELLO, "max_tokens": 0}, 400),
        ("POST", CHAT, {"messages": HELLO, "max_tokens": "x"}, "body.max_tokens"),
        ("POST", CHAT, {"messages": HELLO, "max_tokens": 9999}, "max_tokens"),
        ("POST", CHAT, {"messages": HELLO, "priority": 1.5}, 400),
        ("POST", CHAT, {"messages": HELLO, "n": 2}, 400),
        ("POST", CHAT, {"messages": [{"role": "user", "content": "Hello " * 9000}]}, 400),
        ("GET", CHAT, None, 405),
        ("GET", "/nope", None, 404),
        ("POST", "/fault?kind=hnag&for_s=1", None, 400),
        ("POST", "/fault?kind=hang&for_s=x", None, 400),
        ("GET", "/health", None, 200),
    ],
)
def test_statuses(method: str, path: str, body: Any, status: int | str, pool: Any) -> None:
    async def scene(session: Session) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        async with session.request(method, pool[2] + path, data=data) as response:
            text, code = await response.text(), response.status
            return code if isinstance(status, int) else json.loads(text)["error"]["param"]

    assert play(scene) == status


@pytest.fixture(scope="module")
def pool() -> Any:
    with served(tiny_pool(), speed=50.0) as servers:
        yield servers
