"""The gateway in front of real vLLM: routed and by name, streamed and whole, logged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

pytest.importorskip("httptools")

from tests.live.gateway.rig import process
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import records, until

pytestmark = pytest.mark.live
MESSAGES = [{"role": "user", "content": "What is six times seven?"}]


def test_requests_are_answered_through_the_gateway(rig: LiveRig, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    model = rig.config.models[0]
    body = {"messages": MESSAGES, "max_tokens": 16, "ignore_eos": True}

    async def play(url: str) -> None:
        chat = f"{url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session:
            for name in [model.alias, "inframind/auto"] * 5:
                streamed = body | {"model": name, "stream": True}
                async with session.post(chat, json=streamed) as response:
                    text = await response.text()
                assert response.status == 200 and text.endswith("data: [DONE]\n\n"), text
            whole = body | {"model": model.alias, "n": 2, "max_tokens": 8}
            async with session.post(chat, json=whole) as response:
                answer = await response.json()
            assert response.status == 200
            assert response.headers["x-inframind-model"] == model.alias
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["usage"]["completion_tokens"] == 16

    settings = {"log": str(log), "admission": "best_effort", "workload": "math"}
    with process(tmp_path, rig.path, **settings) as (url, _):
        asyncio.run(play(url))
        until(lambda: len(records(log)) == 11)  # the last line follows its answer
    lines = records(log)
    assert {line["http"] for line in lines} == {200}
    assert {line["output_toks"] for line in lines} == {16}  # of the last: twice 8
    assert all(line["first_token_ts"] for line in lines if line["stream"])
    until(lambda: rig.load(0) == (0, 0))
