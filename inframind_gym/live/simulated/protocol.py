"""Requests and answers of vLLM's OpenAI front end (0.32), as far as simulated servers go.

Fields, their order and the words of errors are those of the real front end, which
`tests/live/simulated` compares. Text is lorem ipsum, a word a token.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.errors import InfraMindError

FINGERPRINT: Final = "inframind-simulated"  # vLLM puts its version there
_CHARS_A_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # of the chat template, for each message
_TEXT: Final = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut "
    "labore et dolore magna aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris "
    "nisi aliquip ex ea commodo consequat duis aute irure in reprehenderit voluptate velit esse "
    "cillum fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt culpa qui "
    "officia deserunt mollit anim id est laborum"
)
_LOREM: Final = _TEXT.split()
_INT64: Final = 2**63
_END: Final = b"data: [DONE]\n\n"


class RefusedError(InfraMindError):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        body: JSON of the answer.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat completion, or a completion, that was asked for."""

    model: str
    chat: bool
    prompt_tokens: int
    max_tokens: int
    priority: int
    seed: int | None
    stream: bool
    usage: bool  # of a stream, in a piece of its own
    usage_always: bool  # and in every piece
    ignore_eos: bool
    min_tokens: int
    text: str | None  # instead of lorem, and
    tokens: int | None  # instead of a length that is drawn: `simulated` in the body


def read_ask(data: bytes, path: str, served: str, max_model_len: int) -> Ask:
    """Check the body of a request to `/v1/chat/completions` or `/v1/completions`.

    Args:
        data: the body.
        path: of the request.
        served: name of the model.
        max_model_len: tokens of prompt and output.

    Raises:
        RefusedError: it is none that vLLM would take; the words are vLLM's.
    """
    body = read_json(data)
    chat = path.endswith("/chat/completions")
    model = body.get("model") or served
    if model != served:
        message = f"The model `{model}` does not exist. Valid aliases: {served}."
        raise RefusedError(404, message, "model", "NotFoundError")
    prompt_tokens = count_tokens(body, "messages" if chat else "prompt")
    wanted = _whole(body, "max_completion_tokens" if chat else "max_tokens")
    wanted = _whole(body, "max_tokens") if wanted is None else wanted
    if wanted is None and not chat:
        wanted = 16
    priority, n = _whole(body, "priority") or 0, _whole(body, "n")
    least, seed = _whole(body, "min_tokens") or 0, _whole(body, "seed")
    stream, options = bool(body.get("stream")), body.get("stream_options")
    _check_length(prompt_tokens, wanted, max_model_len)
    max_tokens = max_model_len - prompt_tokens if wanted is None else wanted
    if least > max_tokens:
        raise RefusedError(
            400, f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}."
        )
    if n is not None and n < 1:
        raise RefusedError(400, f"n must be at least 1, got {n}.")
    if n is not None and n > 1:
        raise RefusedError(400, f"n must be 1 on a simulated server, got {n}.")
    if options is not None and not stream:
        raise RefusedError(
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise RefusedError(
            400,
            f"temperature must be non-negative, got {float(temperature)}. "
            f"(parameter=temperature, value={float(temperature)})",
            "temperature",
        )
    options = options if isinstance(options, dict) else {}
    given = body.get("simulated")
    given = given if isinstance(given, dict) else {}
    return Ask(
        model=model,
        chat=chat,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        priority=priority,
        seed=seed,
        stream=stream,
        usage=bool(options.get("include_usage")),
        usage_always=bool(options.get("continuous_usage_stats")),
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=least,
        text=None if given.get("text") is None else str(given["text"]),
        tokens=_whole(given, "tokens"),
    )


def read_json(data: bytes) -> dict[str, Any]:
    """Read a body.

    Raises:
        RefusedError: it is no JSON object.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = str(error).partition(":")[0]
        raise _invalid(
            "1", "json_invalid", "JSON decode error", "<dict of 0 items>", {"error": why}
        ) from None
    if not isinstance(body, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid("", "model_attributes_type", words, f"<{type(body).__name__}>")
    return body


def count_tokens(body: dict[str, Any], key: str) -> int:
    """Return the tokens of a prompt: four characters are one, a message has four more.

    Raises:
        RefusedError: there is no prompt.
    """
    if key not in body:
        raise _invalid(key, "missing", "Field required", f"<dict of {len(body)} items>")
    prompt = body[key]
    if key == "prompt":
        return len(prompt) if isinstance(prompt, list) else max(len(split_tokens(str(prompt))), 1)
    if not isinstance(prompt, list) or not all(isinstance(each, dict) for each in prompt):
        words = "Input should be a valid list"
        raise _invalid(key, "list_type", words, repr(prompt)[:50])
    if not prompt:
        words = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise RefusedError(400, words)
    return sum(_MESSAGE_TOKENS + len(split_tokens(text_of(each))) for each in prompt)


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message, also of one in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def split_tokens(text: str) -> range:
    """Return where the tokens of a text begin."""
    return range(0, len(text), _CHARS_A_TOKEN)


def _check_length(prompt_tokens: int, wanted: int | None, most: int) -> None:
    if wanted is not None and wanted < 1:
        raise RefusedError(
            400,
            f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    if wanted is not None and wanted > most:
        raise RefusedError(
            400,
            f"max_tokens={wanted} cannot be greater than max_model_len={most}. Please request "
            f"fewer output tokens. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    limit = f"This model's maximum context length is {most} tokens. However, "
    if prompt_tokens >= most:
        raise RefusedError(
            400,
            f"{limit}your prompt contains at least {prompt_tokens} input tokens, which exceeds "
            "this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    if wanted is not None and prompt_tokens + wanted > most:
        raise RefusedError(
            400,
            f"{limit}you requested {wanted} output tokens and your prompt contains at least "
            f"{prompt_tokens} input tokens, for a total of at least {prompt_tokens + wanted} "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            f"output tokens. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )


def _whole(body: dict[str, Any], key: str) -> int | None:
    """Return a whole number, or None where there is none."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
        return value
    if isinstance(value, float):
        words = "Input should be a valid integer, got a number with a fractional part"
        raise _invalid(key, "int_from_float", words, str(value))
    words = "Input should be a valid integer, unable to parse string as an integer"
    raise _invalid(key, "int_parsing", words, str(value))


def _invalid(
    key: str, kind: str, words: str, given: str, context: dict[str, Any] | None = None
) -> RefusedError:
    """Return the error of a body of the wrong form."""
    where = f"body.{key}" if key else "body"
    found: dict[str, Any] = {"type": kind, "loc": where, "msg": words, "input": given}
    found |= {} if context is None else {"ctx": context}
    return RefusedError(400, f"1 validation error:\n  {found}", where, "Bad Request")


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
        last = {"system_fingerprint": FINGERPRINT} if reason and ask.chat and not ask.usage else {}
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
