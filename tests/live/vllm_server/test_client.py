"""The client against a server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.live.client import ChatRequest, ChatResult, Client
from inframind_gym.live.settings import LiveSettings, ServerAddress
from tests.live.vllm_server.fake import Answer, FakeServer, until

T = TypeVar("T")
QUICK: dict[str, Any] = {"retry_wait_s": 0.01, "retry_wait_most_s": 0.02}
MESSAGES = [{"role": "user", "content": "What is 6 times 7?"}]


def request(**changes: Any) -> ChatRequest:
    fields: dict[str, Any] = {
        "server": 0,
        "messages": MESSAGES,
        "max_tokens": 16,
        "limit_s": 20.0,
    }
    return ChatRequest(**(fields | changes))


def with_client(
    act: Callable[[Client], Awaitable[T]],
    *urls: str,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> T:
    async def scene() -> T:
        servers = [ServerAddress(alias=f"s{i}", url=url, model="m") for i, url in enumerate(urls)]
        client = Client(servers, LiveSettings(**(QUICK | (settings or {}))), **options)
        await client.open()
        try:
            return await act(client)
        finally:
            assert client.in_flight == 0
            await client.close()

    return asyncio.run(scene())


def ask(server: FakeServer, settings: dict[str, Any] | None = None, **changes: Any) -> ChatResult:
    return with_client(
        lambda client: client.chat(request(**changes)), server.url, settings=settings
    )


def test_an_answer_and_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    metrics = {"time_to_first_token_ms": 20.0, "queue_time_ms": 5.0}
    with FakeServer(lambda r, n: Answer("It is 42.", tokens=4, first_s=0.05, metrics=metrics)) as s:
        result = ask(
            s,
            {"temperature": 0.5, "sampling": {"ignore_eos": True}},
            priority=1_790_000_000_123_456,
            seed=7,
            request_id="run-1",
        )
        (body,) = s.requests
        (headers,) = s.headers
    assert (result.status, result.text, result.error) == ("ok", "It is 42.", None)
    assert (result.output_tokens, result.attempts) == (4, 1)
    assert result.prompt_tokens and result.prompt_tokens > 0
    assert result.sent_s and result.first_token_s and result.last_token_s
    assert result.submit_s <= result.sent_s < result.first_token_s <= result.last_token_s
    assert result.first_token_s - result.sent_s >= 0.05
    assert result.finish_s == result.last_token_s
    assert result.scheduled_s == pytest.approx(result.first_token_s - 0.02)
    assert result.queued_s == pytest.approx(result.first_token_s - 0.025)
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": 16,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "priority": 1_790_000_000_123_456,
        "seed": 7,
    }
    assert (headers["x-request-id"], headers["authorization"]) == ("run-1", "Bearer secret")


@pytest.mark.parametrize(
    ("answer", "status", "error", "attempts"),
    [
        (Answer(finish="length"), "truncated", None, 1),
        (Answer(text="", tokens=0), "ok", None, 1),  # ended at once: an answer, if an empty one
        (Answer(finish="abort"), "aborted", "finish_reason abort", 1),
        (Answer(finish=None), "broken", "the answer has no end", 1),
        (Answer(finish=None, tokens=0, done=False), "broken", "stopped short", 1),
        (Answer(done=False), "broken", "stopped short", 1),
        (Answer(reset_after=2, tokens=5), "broken", "", 1),
        (Answer(reset_after=0), "unreachable", "", 3),
        (Answer(garble_after=1), "broken", "garbled", 1),
        (Answer(error_after=1), "broken", "EngineCore died", 1),
        (Answer(status=503, message="loading"), "busy", "HTTP 503: loading", 3),
        (Answer(status=429), "busy", "HTTP 429", 3),
        (Answer(status=500, message="dead"), "server_error", "HTTP 500: dead", 1),
        (Answer(status=400, message="priority must be int"), "rejected", "priority must be", 1),
        (Answer(status=404, message="The model `m` does not exist."), "rejected", "not exist", 1),
        (
            Answer(
                status=400,
                message="This model's maximum context length is 64 tokens. However, your prompt "
                "contains 80 input tokens, which exceeds this limit",
            ),
            "too_long",
            "80 input tokens",
            1,
        ),
        (
            Answer(
                status=400,
                message="The decoder prompt (length 80) is longer than the maximum model length",
            ),
            "too_long",
            "",
            1,
        ),
    ],
)
def test_what_comes_of_a_request(
    answer: Answer, status: str, error: str | None, attempts: int
) -> None:
    with FakeServer(lambda r, n: answer) as server:
        result = ask(server)
    assert result.status == status, result
    assert result.attempts == attempts == len(server.requests)
    if error is None:
        assert result.error is None
    else:
        assert error in (result.error or "")
    assert (result.text is None) == (status not in ("ok", "truncated"))


def said(delta: Any = None, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"delta": {"content": "42"} | (delta or {}), "finish_reason": finish}]
    } | more


DONE = b"[DONE]"


@pytest.mark.parametrize(
    "events",
    [
        (said(usage=5), DONE),
        (said(metrics="x"), DONE),
        (said({"content": ["x"]}), DONE),
        (said(finish=7), DONE),
        ({"choices": [{"delta": "x", "finish_reason": "stop"}]}, DONE),
        ({"choices": None}, DONE),
        (None,),
        (b"[" * 200_000,),
        (b'{"choices":[],"usage":{"completion_tokens":' + b"9" * 5000 + b"}}", DONE),
    ],
)
def test_nonsense_is_a_broken_answer(events: tuple[Any, ...]) -> None:
    with FakeServer(lambda r, n: Answer(events=events)) as server:
        result = ask(server)
    assert (result.status, result.text) == ("broken", None)
    assert "garbled" in (result.error or "") and len(result.error or "") < 400


@pytest.mark.parametrize(
    "count", [10**30, 3 * 10**9, 1 << 25, -4, True, 3.5, "7", None, float("inf")]
)
def test_numbers_of_tokens_that_cannot_be_are_not_known(count: Any) -> None:
    usage = {"completion_tokens": count, "prompt_tokens": count}
    with FakeServer(lambda r, n: Answer(events=(said(usage=usage), DONE))) as server:
        result = ask(server)
    assert (result.status, result.text) == ("ok", "42")
    assert (result.output_tokens, result.prompt_tokens, result.pieces) == (None, None, 1)


def test_characters_that_come_in_halves() -> None:
    """JSON can escape half of a character: with the other half it is one, alone it is nothing."""
    events = (
        *(said({"content": half}, finish=None) for half in ("\ud83d", "\ude00", " \ud800")),
        said(),
        DONE,
    )
    with FakeServer(lambda r, n: Answer(events=events)) as server:
        result = ask(server)
    assert (result.status, result.text) == ("ok", "\U0001f600 \ufffd42")


def test_a_retry_can_succeed() -> None:
    answers = [
        Answer(status=503),
        Answer(status=429, headers={"Retry-After": "0.2"}),
        Answer("late"),
    ]
    with FakeServer(lambda r, n: answers[n]) as server:
        result = ask(server)
    assert (result.status, result.text, result.attempts) == ("ok", "late", 3)
    assert result.sent_s is not None and result.sent_s - result.submit_s >= 0.2


def test_no_retry_beyond_the_time_limit() -> None:
    with FakeServer(lambda r, n: Answer(status=429, headers={"Retry-After": "60"})) as server:
        result = ask(server, limit_s=5.0)
    assert (result.status, result.attempts) == ("busy", 1)
    assert result.finish_s - result.submit_s < 5.0


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    suspects: list[int] = []
    result = with_client(
        lambda client: client.chat(request()), f"http://127.0.0.1:{port}", suspect=suspects.append
    )
    assert (result.status, result.attempts) == ("unreachable", 3)
    assert suspects == [0, 0, 0]


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(tokens=1000, each_s=0.02)])
def test_the_time_limit(answer: Answer) -> None:
    with FakeServer(lambda r, n: answer) as server:
        result = ask(server, limit_s=0.15)
        assert result.status == "timeout"
        assert result.text is None
        until(lambda: server.dropped)  # the server is told, by the end of the connection


def test_a_stale_connection_is_no_failure() -> None:
    """The server was restarted while connections to it idled."""
    with FakeServer() as server:

        async def act(client: Client) -> list[str]:
            first = await asyncio.gather(*(client.chat(request()) for _ in range(5)))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            again = await asyncio.gather(*(client.chat(request()) for _ in range(5)))
            return [result.status for result in first + again]

        assert with_client(act, server.url) == ["ok"] * 10


def test_caps_and_the_order_of_those_that_wait() -> None:
    with FakeServer(lambda r, n: Answer(first_s=0.02)) as server, FakeServer() as other:

        async def act(client: Client) -> list[ChatResult]:
            ranks = [50, 51, 9, 3, 7, 1, 5]
            calls = [
                asyncio.ensure_future(client.chat(request(rank=rank, priority=rank)))
                for rank in ranks
            ]
            await asyncio.sleep(0)
            calls.append(asyncio.ensure_future(client.chat(request(server=1))))
            return list(await asyncio.gather(*calls))

        results = with_client(act, server.url, other.url, settings={"max_in_flight_per_server": 2})
        assert server.most == 2
        assert {result.status for result in results} == {"ok"}
        sent = [body["priority"] for body in server.requests]
    assert sorted(sent[:2]) == [50, 51]
    # Two run at a time: neighbours can come in either order.
    waited = sent[2:]
    assert all(abs(waited.index(rank) - i) <= 1 for i, rank in enumerate([1, 3, 5, 7, 9]))


def test_a_server_that_goes_down() -> None:
    """Those that wait are told at once; those in flight only where no answer will come."""
    with FakeServer(lambda r, n: Answer(first_s=0.3) if n < 2 else Answer(hang=True)) as server:

        async def act(client: Client) -> list[list[str]]:
            calls = [asyncio.ensure_future(client.chat(request())) for _ in range(5)]
            while len(server.requests) < 2:
                await asyncio.sleep(0.005)
            client.server_down(0, "s0 is down: test", give_up=False)
            waited = await asyncio.gather(*calls[2:])
            flying = await asyncio.gather(*calls[:2])
            asleep = [asyncio.ensure_future(client.chat(request())) for _ in range(2)]
            while len(server.requests) < 4:
                await asyncio.sleep(0.005)
            client.server_down(0, "s0 is down: asleep", give_up=True)
            given_up = await asyncio.gather(*asleep)
            assert all(r.error == "s0 is down: asleep" for r in given_up)
            return [[r.status for r in results] for results in (waited, flying, given_up)]

        found = with_client(act, server.url, settings={"max_in_flight_per_server": 2})
    assert found == [["down"] * 3, ["ok"] * 2, ["down"] * 2]
