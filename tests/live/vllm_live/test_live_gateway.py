"""The gateway in front of real vLLM: routed and by name, streamed and whole, logged."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("httptools")

from inframind_gym.live.config import server_url
from tests.live.gateway.rig import process
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import records, until

pytestmark = pytest.mark.live
MESSAGES = [{"role": "user", "content": "What is six times seven?"}]


async def first_token_ms(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    """Time to the first token of a stream, which is read to its end."""
    began_s, first_s, ended = time.monotonic(), None, False
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if first_s is None and b'"content":"' in line and b'"content":""' not in line:
                first_s = time.monotonic()
            ended = ended or line.strip() == b"data: [DONE]"
    assert ended and first_s is not None
    return 1e3 * (first_s - began_s)


def test_requests_are_answered_through_the_gateway(rig: LiveRig, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    model = rig.config.models[0]
    body = {"messages": MESSAGES, "max_tokens": 16, "ignore_eos": True, "stream": True}

    async def play(url: str) -> dict[str, list[float]]:
        ways = {
            "direct": (server_url(model), model.name),
            "by name": (url, model.alias),
            "routed": (url, "inframind/auto"),
        }
        took: dict[str, list[float]] = {way: [] for way in ways}
        async with aiohttp.ClientSession() as session:
            for _ in range(20):  # in turns: the machine is busy with other things too
                for way, (base, name) in ways.items():
                    took[way].append(await first_token_ms(session, base, {**body, "model": name}))
            whole: dict[str, Any] = {"model": model.alias, "messages": MESSAGES, "n": 2}
            whole |= {"max_tokens": 8, "ignore_eos": True}
            async with session.post(f"{url}/v1/chat/completions", json=whole) as response:
                answer = await response.json()
                assert response.status == 200
                assert response.headers["x-inframind-model"] == model.alias
            assert [choice["index"] for choice in answer["choices"]] == [0, 1]
            assert answer["usage"]["completion_tokens"] == 16
        return took

    settings = {"log": str(log), "admission": "best_effort", "workload": "math"}
    with process(tmp_path, rig.path, **settings) as (url, _):
        took = asyncio.run(play(url))
        until(lambda: len(records(log)) == 41)  # the last line follows its answer
    medians = {way: sorted(times)[len(times) // 2] for way, times in took.items()}
    print("time to the first token, median ms:", json.dumps(medians))
    lines = records(log)
    assert {line["http"] for line in lines} == {200}
    assert {line["output_toks"] for line in lines} == {16}  # of the last: twice 8
    assert all(line["first_token_ts"] for line in lines if line["stream"])
    until(lambda: rig.load(0) == (0, 0))
