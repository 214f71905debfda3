"""The gateway in front of real vLLM: routed and by name, streamed and whole, logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

pytest.importorskip("httptools")

from inframind_gym.live.client import DownError, ask
from inframind_gym.live.config import server_url
from inframind_gym.live.processes import free_ports
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import records, until

pytestmark = pytest.mark.live
MESSAGES = [{"role": "user", "content": "What is six times seven?"}]


@contextlib.contextmanager
def gateway(file: Path, **settings: Any) -> Iterator[None]:
    """`inframind serve`, ready, until the end of the block."""
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    program = "from inframind_gym.cli import app; app()"
    started = subprocess.Popen([sys.executable, "-c", program, "serve", "--config", str(file)])

    def ready() -> bool:
        assert started.poll() is None
        with contextlib.suppress(DownError):
            ask(f"http://127.0.0.1:{settings['port']}/ready")
            return True
        return False

    try:
        until(ready, 120.0)
        yield
    finally:
        started.terminate()
        started.wait(30)


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
    (port,) = free_ports(1)
    log = tmp_path / "access.jsonl"
    model = rig.config.models[0]
    body = {"messages": MESSAGES, "max_tokens": 16, "ignore_eos": True, "stream": True}
    url = f"http://127.0.0.1:{port}"

    async def play() -> dict[str, list[float]]:
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

    settings = {"pool": str(rig.path), "policy": "least_loaded", "port": port, "log": str(log)}
    settings |= {"admission": "best_effort", "workload": "math"}
    with gateway(tmp_path / "gateway.yaml", **settings):
        took = asyncio.run(play())
    medians = {way: sorted(times)[len(times) // 2] for way, times in took.items()}
    print("time to the first token, median ms:", json.dumps(medians))
    lines = records(log)
    assert len(lines) == 41 and {line["http"] for line in lines} == {200}
    assert {line["output_toks"] for line in lines} == {16}  # of the last: twice 8
    assert all(line["first_token_ts"] for line in lines if line["stream"])
    until(lambda: rig.load(0) == (0, 0))
