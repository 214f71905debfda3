"""Requests to vLLM's OpenAI front end (0.32), as far as simulated servers go, and its errors.

The words of errors are those of the real front end, which `tests/live/simulated` compares.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.workflow.topology import STRATEGY_INSTRUCTIONS

_CHARS_A_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # of the chat template, for each message
_INT64: Final = 2**63
_UNSIMULATED: Final = ("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs")


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
    strategy: str | None  # whose instruction is in the system's message


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
    room = max_model_len - prompt_tokens
    max_tokens = room if wanted is None else min(wanted, room)
    if least > max_tokens:
        raise RefusedError(
            400, f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}."
        )
    if n is not None and n < 1:
        raise RefusedError(400, f"n must be at least 1, got {n}.")
    if n is not None and n > 1:
        raise RefusedError(400, f"n must be 1 on a simulated server, got {n}.", "n")
    for name in _UNSIMULATED:
        if body.get(name):
            raise RefusedError(400, f"{name}: a simulated server has none.", name)
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
        strategy=_strategy(body["messages"][0]) if chat else None,
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
        raise invalid(
            "body.1", "json_invalid", "JSON decode error", "<dict of 0 items>", {"error": why}
        ) from None
    if not isinstance(body, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        size = f" of {len(body)} items" if isinstance(body, list) else ""
        raise invalid("body", "model_attributes_type", words, f"<{type(body).__name__}{size}>")
    return body


def count_tokens(body: dict[str, Any], key: str) -> int:
    """Return the tokens of a prompt: four characters are one, a message has four more.

    Raises:
        RefusedError: there is no prompt.
    """
    if key == "prompt" and not body.get(key):
        words = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise RefusedError(400, words, key)
    if key not in body:
        raise invalid(f"body.{key}", "missing", "Field required", f"<dict of {len(body)} items>")
    prompt = body[key]
    if key == "prompt":
        return len(prompt) if isinstance(prompt, list) else max(len(split_tokens(str(prompt))), 1)
    if not isinstance(prompt, list) or not all(isinstance(each, dict) for each in prompt):
        words = "Input should be a valid list"
        raise invalid(f"body.{key}", "list_type", words, repr(prompt)[:50])
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


def _strategy(first: dict[str, Any]) -> str | None:
    """Return the strategy whose instruction the first message holds, or None."""
    if first.get("role") != "system":
        return None
    text = text_of(first)
    return next((name for name, words in STRATEGY_INSTRUCTIONS.items() if words in text), None)


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
    prompt_tokens = min(prompt_tokens, most + 1)  # as far as vLLM counts
    limit = f"This model's maximum context length is {most} tokens. However, "
    if prompt_tokens >= most:
        raise RefusedError(
            400,
            f"{limit}your prompt contains at least {prompt_tokens} input tokens, which exceeds "
            "this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={prompt_tokens})",
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
        raise invalid(f"body.{key}", "int_from_float", words, str(value))
    words = "Input should be a valid integer, unable to parse string as an integer"
    raise invalid(f"body.{key}", "int_parsing", words, str(value))


def invalid(
    where: str, kind: str, words: str, given: str, context: dict[str, Any] | None = None
) -> RefusedError:
    """Return the error of a body, or a query, of the wrong form."""
    found: dict[str, Any] = {"type": kind, "loc": where, "msg": words, "input": given}
    found |= {} if context is None else {"ctx": context}
    return RefusedError(400, f"1 validation error:\n  {found}", where, "Bad Request")
