"""Requests through the gateway: pass-through, routing, streams, retries, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

pytest.importorskip("httptools")
pytest.importorskip("openai")
import openai

from tests.live.gateway.rig import Rig, chat, code, running, settled
from tests.live.vllm_server.fake import Answer, records, until


def client(rig: Rig, key: str = "unused", **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, **options)


def test_openais_sdk_unchanged(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("It is 42.", tokens=3)) as rig:
        sdk = client(rig)
        names = [model.id for model in sdk.models.list()]
        assert names[:2] == ["inframind/auto", "inframind/team"]
        assert {rig.alias(2), "Coder"} <= set(names)
        question: Any = [{"role": "user", "content": "6 * 7?"}]
        whole = sdk.chat.completions.create(model="Coder", messages=question)
        assert whole.choices[0].message.content == "It is 42."
        text = ""
        with sdk.chat.completions.create(
            model="inframind/auto",
            messages=question,
            stream=True,
            extra_body={"inframind": {"budget_s": 30.0, "domain": "Math"}},
        ) as stream:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""  # no chunk without a choice
        assert text == "It is 42."
        told = sdk.chat.completions.with_raw_response.create(
            model="inframind/auto", messages=question, extra_headers={"X-InfraMind-Budget-S": "50"}
        ).headers
        assert told["x-inframind-model"] in rig.gateway.pool.aliases
        assert told["x-inframind-strategy"] in ("Flash", "Concise", "DeepThink")
        assert float(told["x-inframind-predicted-s"]) > 0
        with pytest.raises(openai.NotFoundError, match="no such model"):
            sdk.chat.completions.create(model="gpt-5", messages=question)
        with pytest.raises(openai.NotFoundError, match="routes chat completions"):
            sdk.embeddings.create(model="x", input="y")
        settled(rig)


def test_a_models_own_name_passes_through(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        before = time.time()
        status, headers, _ = rig.ask(
            model=rig.alias(3), temperature=0.5, priority=-5, inframind={"budget_s": 60}
        )
        assert status == 200
        assert headers["x-inframind-model"] == rig.alias(3)
        sent = rig.servers[3].requests[0]
        assert sent["model"] == "Llama8"
        assert sent["messages"] == chat()["messages"]  # no strategy is added
        assert sent["temperature"] == 0.5
        assert "inframind" not in sent and "max_tokens" not in sent
        # Its deadline, not what the client would like to be.
        assert sent["priority"] / 1e6 == pytest.approx(before + 60.0, abs=2.0)


def test_fields_that_the_gateway_does_not_read_pass_through(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "a_field_of_tomorrow": {"deep": [1]},
    }
    with running(tmp_path) as rig:
        for model in (rig.alias(2), "inframind/auto"):
            assert rig.ask(model=model, **fields)[0] == 200
        for sent in (request for server in rig.servers for request in server.requests):
            assert {name: sent[name] for name in fields} == fields
            assert sent["messages"] == chat()["messages"]  # tools: no strategy is added


@pytest.mark.parametrize("field", ["n", "tools", "logprobs", "response_format", "stop"])
def test_a_team_names_the_field_that_it_cannot_honour(field: str, tmp_path: Path) -> None:
    given = {"n": 2, "tools": [{"type": "function"}], "logprobs": True, "stop": ["x"]}
    with running(tmp_path) as rig:
        team = {"model": "inframind/team", field: given.get(field, {"type": "json_object"})}
        answer = rig.ask(**team)
        assert code(answer) == (400, "unsupported_field")
        assert json.loads(answer[2])["error"]["param"] == field
        assert not any(server.requests for server in rig.servers)


def test_a_routed_call_is_told_its_strategy_and_bounded(tmp_path: Path) -> None:
    with running(tmp_path, policy="static:qwen-14b:Flash") as rig:
        rig.ask()
        sent = next(server for server in rig.servers if server.requests).requests[0]
        assert sent["messages"][0] == {
            "role": "system",
            "content": "Go straight to the answer. No reasoning.",
        }
        assert sent["max_tokens"] == 2048
        rig.ask(response_format={"type": "json_object"})
        sent = next(server for server in rig.servers if server.requests).requests[1]
        assert sent["messages"] == chat()["messages"]


@pytest.mark.parametrize("policy", ["bid_price", "round_robin", "lowest_expected_latency"])
def test_policies_route(policy: str, tmp_path: Path) -> None:
    with running(tmp_path, policy=policy) as rig:
        for _ in range(6):
            assert rig.ask()[0] == 200
        assert sum(len(server.requests) for server in rig.servers) == 6


def test_tokens_pass_one_by_one(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("abcdef", tokens=6, each_s=0.05)) as rig:

        async def read() -> list[float]:
            times = []
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{rig.url}/v1/chat/completions", json=chat(stream=True)) as response,
            ):
                async for line in response.content:
                    if b'"content": "' in line and b'"content": ""' not in line:
                        times.append(time.monotonic())
            return times

        times = asyncio.run(read())
        assert len(times) == 6
        gaps = [b - a for a, b in pairwise(times)]
        assert median(gaps) > 0.02  # a busy machine hands two of them on at once


@pytest.mark.parametrize(
    ("broken", "stream"),
    [
        (Answer(status=500), False),
        (Answer(status=503), True),
        (Answer(garble_after=0), False),
        (Answer(garble_after=0), True),
        (Answer(reset_after=0), True),
        (Answer(finish=None, done=False, tokens=0), True),
    ],
)
def test_a_failure_before_the_first_token_is_answered_elsewhere(
    broken: Answer, stream: bool, tmp_path: Path
) -> None:
    tried: list[int] = []

    def script(request: dict[str, Any], number: int) -> Answer:
        tried.append(number)
        return broken if len(tried) == 1 else Answer("42")

    with running(tmp_path, script, log=str(tmp_path / "log.jsonl")) as rig:
        status, headers, body = rig.ask(stream=stream)
        assert status == 200
        assert b"42" in body or b'"content": "4"' in body
        assert headers["x-inframind-attempt"] == "2"
        assert sorted(len(server.requests) for server in rig.servers) == [0, 0, 0, 1, 1]
        settled(rig)
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["attempts"], line["http"]) == (2, 200)


def test_a_stream_that_breaks_off_ends_with_an_error(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("abcdef", tokens=6, reset_after=3)) as rig:
        status, _, body = rig.ask(stream=True)
        assert status == 200
        events = [event for event in body.split(b"\n\n") if event]
        assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "server_broken"
        assert b"[DONE]" not in body
        assert sum(len(server.requests) for server in rig.servers) == 1  # never answered twice
        with pytest.raises(openai.APIError):
            for _ in client(rig).chat.completions.create(
                model="inframind/auto", messages=chat()["messages"], stream=True
            ):
                pass
        settled(rig)


def test_no_server_answers(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer(status=500)) as rig:
        answer = rig.ask()
        assert code(answer) == (502, "server_error")
        assert sum(len(server.requests) for server in rig.servers) == 3
        assert code(rig.ask(model="Coder")) == (502, "server_error")


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (
            Answer(status=400, message="This model's maximum context length is 7 tokens: a secret"),
            (400, "context_length_exceeded"),
        ),
        (Answer(status=422, message="a secret"), (422, "server_refused")),
    ],
)
def test_what_a_server_refuses_is_the_requests_fault_and_told_in_our_words(
    refused: Answer, expected: tuple[int, str], tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    with running(tmp_path, lambda r, n: refused, log=str(log)) as rig:
        answer = rig.ask()
        assert code(answer) == expected
        assert sum(len(server.requests) for server in rig.servers) == 1
        assert rig.gateway.breakers.closed() == 31
        settled(rig)
    assert b"secret" not in answer[2] and "secret" not in log.read_text()


@pytest.mark.parametrize("count", [-5, 10**12, True, "7"])
@pytest.mark.parametrize("stream", [False, True])
def test_impossible_usage_is_a_servers_fault(count: Any, stream: bool, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": count}
    piece = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    events = (piece | {"usage": usage}, b"[DONE]")
    with running(tmp_path, lambda r, n: Answer(events=events)) as rig:
        for server in rig.servers:
            server.usage = usage
        assert code(rig.ask(stream=stream)) == (502, "server_garbled")
        settled(rig)


def test_the_limit_of_an_answer_holds_for_all_of_it(tmp_path: Path) -> None:
    slow = Answer("abcdef" * 100, tokens=500, each_s=0.05)
    with running(tmp_path, lambda r, n: slow, limits={"answer_s": 1.0}) as rig:
        began_s = time.monotonic()
        status, _, body = rig.ask(stream=True)
        last = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))
        assert (status, last["error"]["code"]) == (200, "server_timeout")
        assert time.monotonic() - began_s < 3.0
        settled(rig)


def test_an_error_within_a_stream_is_told_in_our_words(tmp_path: Path) -> None:
    broken = Answer("abcdef", tokens=6, each_s=0.05, error_after=3)
    log = tmp_path / "log.jsonl"
    with running(tmp_path, lambda r, n: broken, log=str(log)) as rig:
        status, _, body = rig.ask(stream=True)
        assert status == 200 and b"server_aborted" in body and b"EngineCore" not in body
        settled(rig)
    assert "EngineCore" not in log.read_text()


def test_a_server_that_dies_and_one_that_sleeps_are_left(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.servers[0].kill()
        rig.servers[1].asleep = True
        until(lambda: rig.gateway.usable() == 0b11100)
        for _ in range(10):
            assert rig.ask()[0] == 200
        assert code(rig.ask(model="R1")) == (503, "no_server")
        rig.servers[0].start()
        until(lambda: rig.gateway.usable() == 0b11101)
        assert rig.ask(model="R1")[0] == 200


def test_a_hung_server_gives_its_requests_back(tmp_path: Path) -> None:
    hung: list[int] = []

    def script(request: dict[str, Any], number: int) -> Answer:
        hung.append(number)
        return Answer(hang=len(hung) == 1)

    with running(tmp_path, script) as rig:

        async def ask() -> int:
            async with aiohttp.ClientSession() as session:
                post = session.post(f"{rig.url}/v1/chat/completions", json=chat())
                waiting = asyncio.ensure_future(post.__aenter__())
                while not hung:
                    await asyncio.sleep(0.01)
                server = next(s for s in rig.servers if s.open)
                server.mute |= {"/health", "/metrics", "/is_sleeping", "/v1/models"}
                response = await waiting
                return response.status

        assert asyncio.run(ask()) == 200
        settled(rig)


def test_servers_that_go_down_are_not_held_against_a_request(tmp_path: Path) -> None:
    """It is answered where as many of them go down beneath it as it has attempts."""
    asked: list[int] = []

    def script(request: dict[str, Any], number: int) -> Answer:
        asked.append(number)
        return Answer(hang=len(asked) <= 2)

    with running(tmp_path, script, limits={"attempts": 2}) as rig:

        async def ask() -> int:
            async with aiohttp.ClientSession() as session:
                post = session.post(f"{rig.url}/v1/chat/completions", json=chat())
                waiting = asyncio.ensure_future(post.__aenter__())
                for count in (1, 2):
                    while len(asked) < count:
                        await asyncio.sleep(0.01)
                    (server,) = (s for s in rig.servers if s.open and not s.asleep)
                    server.asleep = True
                response = await waiting
                return response.status

        assert asyncio.run(ask()) == 200
        assert len(asked) == 3
        settled(rig)


def test_the_breaker_leaves_a_server_that_fails_alone(tmp_path: Path) -> None:
    def script(request: dict[str, Any], number: int) -> Answer:
        return Answer(status=500) if request["model"] == "Coder" else Answer()

    settings: dict[str, Any] = {"breaker": {"failures": 2, "open_s": 60.0}}
    with running(tmp_path, script, **settings) as rig:
        assert rig.ask(model="Coder")[0] == 502
        asked = len(rig.servers[2].requests)
        assert code(rig.ask(model="Coder")) == (503, "no_server")
        for _ in range(10):
            assert rig.ask()[0] == 200
        assert len(rig.servers[2].requests) == asked


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_server(stream: bool, tmp_path: Path) -> None:
    slow = Answer("abcdef" * 50, tokens=100, each_s=0.1)
    with running(tmp_path, lambda r, n: slow, log=str(tmp_path / "log.jsonl")) as rig:

        async def leave() -> None:
            async with aiohttp.ClientSession() as session:
                post = session.post(f"{rig.url}/v1/chat/completions", json=chat(stream=stream))
                waiting = asyncio.ensure_future(post.__aenter__())
                while not any(server.open for server in rig.servers):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.15)
                if waiting.done():
                    waiting.result().close()
                waiting.cancel()

        asyncio.run(leave())
        until(lambda: sum(server.dropped for server in rig.servers) == 1, 5.0)
        settled(rig)
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["status"], line["http"]) == ("cancelled", 499)


def test_a_transfer_without_an_end_is_an_answer(tmp_path: Path) -> None:
    with running(tmp_path, log=str(tmp_path / "log.jsonl")) as rig:
        for server in rig.servers:
            server.lingers_s = 3.0  # after [DONE]
        status, _, body = rig.ask(stream=True)
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        settled(rig)
        assert rig.gateway.breakers.closed() == 31
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["status"], line["http"], line["output_toks"]) == ("ok", 200, 3)


def test_a_server_without_a_token_is_left_in_time(tmp_path: Path) -> None:
    limits = {"answer_s": 1.0}
    with running(tmp_path, lambda r, n: Answer(hang=True), limits=limits) as rig:
        began_s = time.monotonic()
        assert code(rig.ask(stream=True)) == (502, "server_timeout")
        assert time.monotonic() - began_s < 5.0
        settled(rig)


def test_a_budget_that_cannot_be_met_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        refused = rig.ask(headers={"X-InfraMind-Budget-S": "0.02"})
        assert code(refused) == (429, "budget_unreachable")
        assert int(refused[1]["retry-after"]) >= 1
        refused = rig.ask(headers={"X-InfraMind-Budget-S": "0.02"}, model="inframind/team")
        assert code(refused) == (429, "budget_unreachable")
        assert rig.ask(headers={"X-InfraMind-Budget-S": "0.5"}, max_tokens=4)[0] == 200
        assert code(rig.ask(headers={"X-InfraMind-Budget-S": "soon"})) == (400, "invalid_budget")
    with running(tmp_path, admission="best_effort") as rig:
        assert rig.ask(headers={"X-InfraMind-Budget-S": "0.02"})[0] == 200


def test_a_team_answers(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("It is 42."), policy="bid_price") as rig:
        status, headers, body = rig.ask(model="inframind/team", inframind={"domain": "Math"})
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == "It is 42."
        assert headers["x-inframind-plan"]
        calls = sum(len(server.requests) for server in rig.servers)
        assert calls >= 2  # an agent and the deciding call
        status, _, body = rig.ask(model="inframind/team", stream=True)
        assert b"It is 42." in body and body.endswith(b"data: [DONE]\n\n")
        settled(rig)


def test_what_fails_is_told_without_addresses_and_texts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    garbled = Answer("a secret", tokens=3, garble_after=0)
    with running(tmp_path, lambda r, n: garbled, log=str(log)) as rig:
        refused = rig.ask(model="Coder", stream=True)
        assert code(refused) == (502, "server_garbled")
        rig.servers[2].kill()
        refused = rig.ask(model="Coder", stream=True)
        assert refused[0] in (502, 503)
        assert b"127.0.0.1" not in refused[2]
        settled(rig)
    errors = [line["error"] for line in records(log)]
    assert "garbled" in errors[0]
    assert not any("{" in error or "127.0.0.1" in error for error in errors)


def test_a_team_that_is_given_up_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log.jsonl"
    slow = Answer("42", first_s=1.0)
    with running(tmp_path, lambda r, n: slow, policy="bid_price", log=str(log)) as rig:

        async def leave() -> None:
            async with aiohttp.ClientSession() as session:
                asked = session.post(
                    f"{rig.url}/v1/chat/completions", json=chat(model="inframind/team")
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asked, 0.5)

        asyncio.run(leave())
        settled(rig)
        assert rig.ask(model="inframind/team")[0] == 200
        gc.collect()
        settled(rig)
    assert "never retrieved" not in caplog.text
    lines = records(log)
    assert {line["status"] for line in lines} >= {"cancelled", "whole"}
    assert all(line.get("right") is None for line in lines)  # nobody has graded them
