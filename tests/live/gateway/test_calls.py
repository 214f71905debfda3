"""Requests through the gateway: pass-through, routing, streams, retries, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import Callable
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


def client(rig: Rig) -> Any:
    return openai.OpenAI(base_url=f"{rig.url}/v1", api_key="unused", max_retries=0)


def ask_and(rig: Rig, while_asked: Callable[[asyncio.Future[Any]], Any], **fields: Any) -> Any:
    """Status of a request; None where `while_asked`, which runs beside it, has cancelled it."""

    async def ask() -> int | None:
        async with aiohttp.ClientSession() as session:
            post = session.post(f"{rig.url}/v1/chat/completions", json=chat(**fields))
            asking = asyncio.ensure_future(post.__aenter__())
            await while_asked(asking)
            with contextlib.suppress(asyncio.CancelledError):
                return int((await asking).status)
        return None

    return asyncio.run(ask())


def test_openais_sdk_unchanged(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("It is 42.", tokens=3)) as rig:
        sdk = client(rig)
        names = [model.id for model in sdk.models.list()]
        assert names[:2] == ["inframind/auto", "inframind/team"]
        assert {"qwen-14b", "Qwen/Qwen2.5-Coder-14B-Instruct"} <= set(names)
        whole = sdk.chat.completions.create(**chat(model="Qwen/Qwen2.5-Coder-14B-Instruct"))
        assert whole.choices[0].message.content == "It is 42."
        extra = {"inframind": {"budget_s": 30.0, "domain": "Math"}}
        with sdk.chat.completions.create(**chat(stream=True, extra_body=extra)) as stream:
            # No chunk is without a choice.
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "It is 42."
        budget = chat(extra_headers={"X-InfraMind-Budget-S": "50"})
        headers = sdk.chat.completions.with_raw_response.create(**budget).headers
        assert headers["x-inframind-model"] in rig.gateway.pool.aliases
        assert headers["x-inframind-strategy"] in ("Flash", "Concise", "DeepThink")
        assert float(headers["x-inframind-predicted-s"]) > 0
        with pytest.raises(openai.NotFoundError, match="no such model"):
            sdk.chat.completions.create(**chat(model="gpt-5"))
        settled(rig)


def test_what_the_gateway_does_not_read_passes_through(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": True, "temperature": 0.5, "later": {"deep": [1]}}
    fields["tools"] = [{"type": "function", "function": {"name": "add"}}]
    with running(tmp_path) as rig:
        before = time.time()
        status, headers, _ = rig.ask(
            model=rig.alias(3), priority=-5, inframind={"budget_s": 60}, **fields
        )
        assert (status, headers["x-inframind-model"]) == (200, rig.alias(3))
        assert rig.ask(**fields)[0] == 200
        sent = rig.servers[3].requests[0]
        assert sent["model"] == "meta-llama/Llama-3.1-8B-Instruct"
        assert "inframind" not in sent and "max_tokens" not in sent
        # Its deadline, not what the client would like to be.
        assert sent["priority"] / 1e6 == pytest.approx(before + 60.0, abs=2.0)
        for sent in (request for server in rig.servers for request in server.requests):
            assert {name: sent[name] for name in fields} == fields
            assert sent["messages"] == chat()["messages"]  # tools: no strategy is added


def test_a_routed_call_is_given_its_strategy_and_a_bound(tmp_path: Path) -> None:
    with running(tmp_path, policy="static:qwen-14b:Flash") as rig:
        rig.ask()
        rig.ask(response_format={"type": "json_object"})
        first, second = next(s for s in rig.servers if s.requests).requests
        instruction = "Go straight to the answer. No reasoning."
        assert first["messages"][0] == {"role": "system", "content": instruction}
        assert first["max_tokens"] == 2048
        assert second["messages"] == chat()["messages"]
    with running(tmp_path, policy="static:qwen-14b:Flash", strategies="off") as rig:
        rig.ask()
        (sent,) = next(s for s in rig.servers if s.requests).requests
        assert sent["messages"] == chat()["messages"]


def test_tokens_pass_one_by_one(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("abcdef", tokens=6, each_s=0.05)) as rig:
        times = []
        for chunk in client(rig).chat.completions.create(**chat(stream=True)):
            times += [time.monotonic()] * bool(chunk.choices[0].delta.content)
        assert len(times) == 6
        assert median(b - a for a, b in pairwise(times)) > 0.02


@pytest.mark.parametrize(
    ("broken", "stream"),
    [
        (Answer(status=401), False),  # the key of one server
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
        assert (status, headers["x-inframind-attempt"]) == (200, "2")
        assert b"42" in body or b'"content": "4"' in body
        assert sorted(len(server.requests) for server in rig.servers) == [0, 0, 0, 1, 1]
        settled(rig)
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["attempts"], line["http"]) == (2, 200)


SECRET = "a secret of 127.0.0.1: EngineCore"
LONG = f"maximum context length {SECRET}"
REFUSED = [
    (400, LONG, "context_length_exceeded"),
    (413, f"Request Entity Too Large {SECRET} (parameter=n, value=2)", "server_refused"),
    (422, SECRET, "server_refused"),
]


@pytest.mark.parametrize(("status", "message", "name"), REFUSED)
def test_what_a_server_refuses_is_the_requests_fault(
    status: int, message: str, name: str, tmp_path: Path
) -> None:
    refused = Answer(status=status, message=message, param="body.n" if status == 413 else None)
    with running(tmp_path, lambda r, n: refused, log=str(tmp_path / "log.jsonl")) as rig:
        answer = rig.ask(n=2)
        assert code(answer) == (status, name)
        assert (b"check its field 'n'" in answer[2]) == (status == 413)
        assert sum(len(server.requests) for server in rig.servers) == 1
        settled(rig)
    assert b"secret" not in answer[2] and "secret" not in (tmp_path / "log.jsonl").read_text()


def test_a_request_goes_to_a_server_that_takes_it(tmp_path: Path) -> None:
    long, policy = Answer(status=400, message=LONG), "static:qwen-14b:Flash"
    cold = Answer(status=400, message="must be non-negative", param="temperature")
    with running(tmp_path, lambda r, n: cold if "temperature" in r else long, policy=policy) as rig:
        for model in rig.gateway.pool.models[:3]:
            object.__setattr__(model.server, "max_model_len", 4096)
        for name in ("inframind/team", "inframind/auto"):
            answer = rig.ask(model=name)
            assert code(answer) == (400, "context_length_exceeded")
            refused = rig.ask(model=name, temperature=-1)
            assert code(refused) == (400, "server_refused") and b"'temperature'" in refused[2]
        assert b"the prompt (or max_tokens 2048) is longer than" in answer[2]
        for server in rig.servers[3:]:
            server.asleep = True
        until(lambda: rig.gateway.watcher.up == 0b111)
        refused = rig.ask()  # those that take it are only down
        assert code(refused) == (503, "no_server") and refused[1]["retry-after"] == "5"
        rig.servers[3].script, rig.servers[3].asleep = lambda r, n: Answer("42"), False
        until(lambda: rig.gateway.watcher.up == 0b1111)
        assert rig.ask()[1]["x-inframind-attempt"] == "2"
        settled(rig)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (Answer("abcdef", tokens=6, reset_after=3), b"server_broken"),
        (Answer(SECRET, tokens=6, each_s=0.05, error_after=3), b"server_aborted"),
        (Answer("abcdef" * 100, tokens=500, each_s=0.05), b"server_timeout"),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error_and_is_not_answered_twice(
    broken: Answer, name: bytes, tmp_path: Path
) -> None:
    log, limits = tmp_path / "log.jsonl", {"answer_s": 1.0}
    with running(tmp_path, lambda r, n: broken, log=str(log), limits=limits) as rig:
        status, _, body = rig.ask(stream=True)
        assert status == 200 and name in body.split(b"\n\n")[-2]
        assert b"[DONE]" not in body and b"EngineCore" not in body
        assert sum(len(server.requests) for server in rig.servers) == 1
        with pytest.raises(openai.APIError):
            list(client(rig).chat.completions.create(**chat(stream=True)))
        settled(rig)
    assert "EngineCore" not in log.read_text()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [-5, 10**12, True, "7"])
def test_impossible_usage_is_a_servers_fault(count: Any, stream: bool, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": count}
    piece = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    events = (piece | {"usage": usage}, b"[DONE]")
    message = {"role": "assistant", "content": "x"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    whole = json.dumps({"choices": [choice], "usage": usage}).encode()
    with running(tmp_path, lambda r, n: Answer(events=events, whole=whole)) as rig:
        assert code(rig.ask(stream=stream)) == (502, "server_garbled")
        settled(rig)


def test_servers_that_die_sleep_or_hang_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inframind_gym.live.gateway.proxy._PAUSE_S", 0.1)
    with running(tmp_path) as rig:
        rig.servers[0].kill()
        rig.servers[1].asleep = True
        until(lambda: rig.gateway.watcher.up == 0b11100)
        for _ in range(10):
            assert rig.ask()[0] == 200
        refused = rig.ask(model="deepseek-32b")
        assert code(refused) == (503, "no_server") and b"127.0.0.1" not in refused[2]
        rig.servers[0].start()
        until(lambda: rig.gateway.watcher.up == 0b11101)
        assert rig.ask(model="deepseek-32b")[0] == 200
        rig.servers[2].script = lambda r, n: Answer(hang=True)
        object.__setattr__(rig.gateway.config.limits, "answer_s", 1.0)
        refused = rig.ask(model="qwen-14b", stream=True)
        assert code(refused) == (502, "server_timeout") and b"after 1 attempts" in refused[2]
        rig.servers[2].script = lambda r, n: Answer(reset_after=0)
        assert code(rig.ask(model="qwen-14b", stream=True)) == (502, "server_unreachable")
        settled(rig)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_server(stream: bool, tmp_path: Path) -> None:
    slow = Answer("abcdef" * 50, tokens=100, each_s=0.1)
    with running(tmp_path, lambda r, n: slow, log=str(tmp_path / "log.jsonl")) as rig:

        async def leave(asking: asyncio.Future[Any]) -> None:
            while not any(server.open for server in rig.servers):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.15)
            if asking.done():
                asking.result().close()
            asking.cancel()

        ask_and(rig, leave, stream=stream)
        until(lambda: sum(server.dropped for server in rig.servers) == 1, 5.0)
        settled(rig)
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["status"], line["http"]) == ("cancelled", 499)


def test_a_transfer_without_an_end_is_an_answer(tmp_path: Path) -> None:
    slow = Answer("42", lingers_s=3.0)  # after [DONE]
    with running(tmp_path, lambda r, n: slow, log=str(tmp_path / "log.jsonl")) as rig:
        status, _, body = rig.ask(stream=True)
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        settled(rig)
    (line,) = records(tmp_path / "log.jsonl")
    assert (line["status"], line["http"], line["output_toks"]) == ("ok", 200, 3)


def test_a_budget_that_cannot_be_met_is_refused(tmp_path: Path) -> None:
    short = {"X-InfraMind-Budget-S": "0.02"}
    with running(tmp_path) as rig:
        for model in ("inframind/auto", "inframind/team"):
            refused = rig.ask(headers=short, model=model)
            assert code(refused) == (429, "budget_unreachable")
            assert int(refused[1]["retry-after"]) >= 1
        lines = rig.ask(path="/metrics")[2].decode().splitlines()
        queries = [line for line in lines if line.startswith("inframind_queries_total")]
        assert len(queries) == 2  # one for each name, and neither counts as in its budget
        assert all('in_budget="false",outcome="failed"' in line for line in queries)
        assert rig.ask(headers={"X-InfraMind-Budget-S": "0.5"}, max_tokens=4)[0] == 200
        assert code(rig.ask(headers={"X-InfraMind-Budget-S": "soon"})) == (400, "invalid_budget")
    with running(tmp_path, admission="best_effort") as rig:
        assert rig.ask(headers=short)[0] == 200


@pytest.mark.parametrize("speed", [1.0, 5.0])
def test_a_team_answers(speed: float, tmp_path: Path) -> None:
    answer, log = Answer("It is 42."), tmp_path / "log.jsonl"
    settings = {"policy": "bid_price", "speed": speed, "log": str(log)}
    with running(tmp_path, lambda r, n: answer, **settings) as rig:
        status, headers, body = rig.ask(model="inframind/team", inframind={"domain": "Math"})
        assert (status, bool(headers["x-inframind-plan"])) == (200, True)
        assert json.loads(body)["choices"][0]["message"]["content"] == "It is 42."
        calls = sum(len(server.requests) for server in rig.servers)
        assert calls >= 2  # an agent and the deciding call
        settled(rig)
        assert len(records(log)) == calls + 1
        own: dict[str, Any] = {"temperature": 0.5, "max_tokens": 3, "inframind": None}
        status, _, body = rig.ask(model="inframind/team", stream=True, **own)
        assert b"It is 42." in body and body.endswith(b"data: [DONE]\n\n")
        sent = [request for server in rig.servers for request in server.requests]
        most = [request["max_tokens"] for request in sent if request.get("temperature") == 0.5]
        assert len(most) == len(sent) - calls and most.count(3) == 1  # of the deciding call
        calls = len(sent)
        for field in ({"n": 2}, {"tools": [{"type": "function"}]}, {"stop": ["x"]}):
            refused = rig.ask(model="inframind/team", **field)
            assert code(refused) == (400, "unsupported_field")
            assert json.loads(refused[2])["error"]["param"] in field
        assert sum(len(server.requests) for server in rig.servers) == calls
        settled(rig)


def test_teams_that_come_at_once_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path, lambda r, n: Answer("42", first_s=0.5), policy="bid_price") as rig:

        async def ask_all() -> None:
            url, body = f"{rig.url}/v1/chat/completions", chat(model="inframind/team")

            async def ask(session: aiohttp.ClientSession) -> int:
                async with session.post(url, json=body) as response:
                    await response.read()
                    return response.status

            async with aiohttp.ClientSession() as session:
                for _ in range(2):  # on connections that are there already: in one round of a loop
                    asked = [ask(session) for _ in range(12)]
                    assert sorted(await asyncio.gather(*asked)) == [200] * 2 + [429] * 10

        asyncio.run(ask_all())
        settled(rig)


def test_a_teams_call_that_stalls_is_sent_again(tmp_path: Path) -> None:
    seen: list[Any] = []

    def script(request: dict[str, Any], number: int) -> Answer:
        first = request["messages"] not in seen
        seen.append(request["messages"])
        return Answer("42", tokens=2, each_s=30.0 if first else 0.0)

    with running(tmp_path, script, policy="bid_price", limits={"stall_s": 0.3}) as rig:
        assert rig.ask(model="inframind/team")[0] == 200
        assert all(seen.count(messages) == 2 for messages in seen)
        settled(rig)


def test_a_team_that_is_given_up_leaves_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inframind_gym.live.gateway.team._BEAT_S", 0.3)
    monkeypatch.setattr("inframind_gym.live.gateway.team._PATIENCE_S", 0.1)
    log, slow = tmp_path / "log.jsonl", Answer("42", first_s=1.0)
    with running(tmp_path, lambda r, n: slow, policy="bid_price", log=str(log)) as rig:

        async def leave(asking: asyncio.Future[Any]) -> None:
            await asyncio.sleep(0.5)
            asking.cancel()

        assert ask_and(rig, leave, model="inframind/team") is None
        settled(rig)
        body = rig.ask(model="inframind/team", stream=True)[2]
        assert body.startswith(b": working\n\n") and body.endswith(b"data: [DONE]\n\n")

        def leave_all(request: dict[str, Any], number: int) -> Answer:
            for server in rig.servers:
                server.asleep = True
            return Answer()

        for server in rig.servers:
            server.script = leave_all
        refused = rig.ask(model="inframind/team")
        assert code(refused) == (503, "team_failed") and refused[1]["retry-after"] == "5"
        gc.collect()
        settled(rig)
    assert "never retrieved" not in caplog.text
    assert {line["status"] for line in records(log)} >= {"cancelled", "whole"}
