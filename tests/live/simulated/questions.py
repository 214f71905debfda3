"""Questions that real and simulated servers are asked, to compare the forms of their answers.

`python -m tests.live.simulated.questions URL > tests/live/simulated/vllm_0_32.json` records those
of a real server (the model `tiny-1x64` of the pool `cpu-tiny`).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp

RECORDED = Path(__file__).with_name("vllm_0_32.json")
MODEL = "tiny-1x64"
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_USER = {"role": "user", "content": "Hello there"}
_FOUR = {"max_tokens": 4, "ignore_eos": True}
_USAGE = {"include_usage": True}


def _chat(**body: Any) -> tuple[str, str, Any]:
    return "POST", _CHAT, {"model": MODEL, "messages": [_USER], **body}


def _text(**body: Any) -> tuple[str, str, Any]:
    return "POST", _TEXT, {"model": MODEL, "prompt": "Hello there", **body}


QUESTIONS: dict[str, tuple[str, str, Any]] = {
    "chat": _chat(**_FOUR),
    "chat, streamed": _chat(**_FOUR, stream=True),
    "chat, usage": _chat(**_FOUR, stream=True, stream_options=_USAGE),
    "chat, usage always": _chat(
        **_FOUR, stream=True, stream_options={**_USAGE, "continuous_usage_stats": True}
    ),
    "chat, parts": _chat(**_FOUR, messages=[{**_USER, "content": [{"type": "text", "text": "H"}]}]),
    "chat, no model": ("POST", _CHAT, {"messages": [_USER], **_FOUR}),
    "chat, unknown field": _chat(**_FOUR, frobnicate=1),
    "chat, new name": _chat(max_completion_tokens=4, ignore_eos=True),
    "text": _text(**_FOUR),
    "text, streamed": _text(**_FOUR, stream=True),
    "text, usage": _text(**_FOUR, stream=True, stream_options=_USAGE),
    "other model": _chat(model="nope"),
    "too many tokens": _chat(max_tokens=100_000),
    "no room": _chat(messages=[{**_USER, "content": "Hello " * 20}], max_tokens=4090),
    "too long": _chat(messages=[{**_USER, "content": "Hello " * 5000}]),
    "no tokens": _chat(max_tokens=0),
    "tokens of letters": _chat(max_tokens="x"),
    "priority with a fraction": _chat(priority=1.5),
    "no answers": _chat(n=0),
    "no messages": _chat(messages=[]),
    "messages missing": ("POST", _CHAT, {"model": MODEL}),
    "prompt missing": ("POST", _TEXT, {"model": MODEL}),
    "cold": _chat(temperature=-1),
    "options without stream": _chat(**_FOUR, stream_options=_USAGE),
    "more than most": _chat(max_tokens=2, min_tokens=5),
    "no JSON": ("POST", _CHAT, b"{nope"),
    "no object": ("POST", _CHAT, b"[1]"),
    "wrong method": ("GET", _CHAT, None),
    "no such path": ("GET", "/nope", None),
    "embeddings": ("POST", "/v1/embeddings", {"model": MODEL, "input": "x"}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "ping": ("GET", "/ping", None),
    "version": ("GET", "/version", None),
    "load": ("GET", "/load", None),
    "tokenize": ("POST", "/tokenize", {"model": MODEL, "prompt": "Hello there"}),
    "tokenize, chat": ("POST", "/tokenize", {"model": MODEL, "messages": [_USER]}),
    "sleep": ("POST", "/sleep?level=1", None),
    "asleep": ("GET", "/is_sleeping", None),
    "health of a sleeper": ("GET", "/health", None),
    "wake up": ("POST", "/wake_up", None),
    "awake": ("GET", "/is_sleeping", None),
    "wake up, weights": ("POST", "/wake_up?tags=weights", None),
    "level 9": ("POST", "/sleep?level=9", None),
    "mode foo": ("POST", "/sleep?level=1&mode=foo", None),
    "metrics": ("GET", "/metrics", None),
}


async def answers(url: str) -> dict[str, Any]:
    """Ask all of them, one after the other: status, kind of content and what it says."""
    found = {}
    async with aiohttp.ClientSession() as session:
        for name, (method, path, body) in QUESTIONS.items():
            data = body if isinstance(body, bytes) or body is None else json.dumps(body)
            headers = {} if data is None else {"Content-Type": "application/json"}
            async with session.request(method, url + path, data=data, headers=headers) as response:
                text = await response.text()
                kind = response.headers.get("Content-Type", "").partition(";")[0]
                found[name] = {"status": response.status, "kind": kind, "says": _read(kind, text)}
    return found


def _read(kind: str, text: str) -> Any:
    """JSON, the events of a stream, or names and labels of metrics, without values."""
    if kind == "application/json" and text:
        return json.loads(text)
    if kind == "text/event-stream":
        assert text.endswith("data: [DONE]\n\n")
        return [json.loads(event[6:]) for event in text.split("\n\n")[:-2]]
    if kind != "text/plain":
        return text
    samples = set()
    for name, labels in re.findall(r"^(vllm:\w+){(.*)} ", text, re.MULTILINE):
        kept = [label for label in labels.split(",") if not label.startswith(("model_", "engine="))]
        if name != "vllm:cache_config_info":
            samples.add(f"{name}{{{','.join(sorted(kept))}}}")
    return sorted(samples)


def form(value: Any) -> Any:
    """A value with its keys in their order, and types in place of what they hold."""
    if isinstance(value, dict):
        return [(key, form(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [form(each) for each in value[:1]]
    return "number" if type(value) in (int, float) else type(value).__name__


if __name__ == "__main__":
    print(json.dumps(asyncio.run(answers(sys.argv[1])), indent=1, ensure_ascii=False))
