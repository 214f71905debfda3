"""Answers of vLLM's OpenAI front end (0.32), whole and streamed; lorem ipsum, a word a token.

Fields and their order are those of the real front end, which `tests/live/simulated` compares.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from typing import Any, Final

from inframind_gym.live.simulated.asking import Ask

FINGERPRINT: Final = "inframind-simulated"  # vLLM puts its version there
_TEXT: Final = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut "
    "labore et dolore magna aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris "
    "nisi aliquip ex ea commodo consequat duis aute irure in reprehenderit voluptate velit esse "
    "cillum fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt culpa qui "
    "officia deserunt mollit anim id est laborum"
)
_LOREM: Final = _TEXT.split()
_END: Final = b"data: [DONE]\n\n"


class Answer:
    """The answer to one request: its words, and its bytes.

    Args:
        ask: the request.
        key: of the random words.
        name: end of its id; None: random.
    """

    def __init__(self, ask: Ask, key: str, name: str | None) -> None:
        self.ask = ask
        self._first = random.Random(key).randrange(len(_LOREM))
        kind, prefix = ("chat.completion", "chatcmpl") if ask.chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{prefix}-{name or uuid.uuid4().hex[:16]}",
            "object": kind,
            "created": int(time.time()),
            "model": ask.model,
        }
        head = self._head | ({"object": f"{kind}.chunk"} if ask.chat else {})
        self._start = b"data: " + _dump(head)[:-1]

    def words(self, begin: int, end: int, total: int) -> str:
        """Return tokens `begin` to `end` of `total`."""
        if self.ask.text is not None:
            text = self.ask.text
            return text[len(text) * begin // total : len(text) * end // total]
        size = len(_LOREM)
        words = [_LOREM[(self._first + i) % size] for i in range(begin, end)]
        return (" " if begin else "") + " ".join(words) if words else ""

    def whole(self, tokens: int, total: int, reason: str, metrics: dict[str, Any] | None) -> bytes:
        """Return the body of an answer that is not streamed."""
        text = self.words(0, tokens, total)
        ends = {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": None}
        usage = self._usage(tokens) | {"prompt_tokens_details": None}
        usage |= {"completion_tokens_details": None}
        named = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
        sent = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": metrics}
        prompt: dict[str, Any] = {"prompt_logprobs": None, "prompt_token_ids": None}
        if not self.ask.chat:
            choice = {"index": 0, "text": text, **ends, **prompt, "routed_experts": None}
            return _dump(self._head | {"choices": [choice]} | named | sent)
        empty = ("refusal", "annotations", "audio", "function_call", "reasoning")
        message = {"role": "assistant", "content": text, **dict.fromkeys(empty)}
        choice = {"index": 0, "message": message, **ends, "routed_experts": None}
        prompt["prompt_text"] = None
        return _dump(self._head | {"choices": [choice]} | named | prompt | sent)

    def opening(self) -> bytes:
        """Return the event that names the role; completions have none."""
        if not self.ask.chat:
            return b""
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        choice |= {"logprobs": None, "finish_reason": None}
        more = {"prompt_token_ids": None, "prompt_text": None}
        return self._event([choice], 0, more)

    def piece(self, begin: int, end: int, total: int, reason: str | None) -> bytes:
        """Return the event of tokens `begin` to `end`; a reason: it is the last."""
        text, ask = self.words(begin, end, total), self.ask
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": text}} if ask.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if reason is not None or not ask.chat:
            choice["stop_reason"] = None
        choice |= {} if ask.chat else {"prompt_token_ids": None}
        choice["token_ids"] = None
        last = {"system_fingerprint": FINGERPRINT} if reason and not ask.usage else {}
        return self._event([choice], end, last)

    def closing(self, tokens: int, metrics: dict[str, Any] | None) -> bytes:
        """Return the events after the last token."""
        if not self.ask.usage:
            return _END
        more: dict[str, Any] = {"usage": self._usage(tokens), "system_fingerprint": FINGERPRINT}
        if metrics is not None:
            more["metrics"] = {k: v for k, v in metrics.items() if v is not None}
        return self._event([], None, more) + _END

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.ask.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }

    def _event(self, choices: list[Any], tokens: int | None, more: dict[str, Any]) -> bytes:
        end: dict[str, Any] = {"choices": choices}
        if tokens is not None and self.ask.usage_always:
            end["usage"] = self._usage(tokens) | {"completion_tokens_details": None}
        return b"%b,%b\n\n" % (self._start, _dump(end | more)[1:])


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
