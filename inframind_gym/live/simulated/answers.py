"""Requests to simulated servers, and answers: lorem ipsum, a word a token, in OpenAI's form."""

from __future__ import annotations

import json
import math
import random
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from inframind_gym.live.guard import RequestError
from inframind_gym.live.watcher import SIMULATED
from inframind_gym.simulator.workflow.topology import STRATEGY_INSTRUCTIONS
from inframind_gym.simulator.workload import WorkloadConfig, load_profiles

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
END: Final = b"data: [DONE]\n\n"


class AnswerLengths:
    """Draws the tokens of answers: log-normal, as a workload says of each model and strategy.

    Profiles of the workload are drawn by their weights, its models are found by the pool's aliases;
    one that it does not know has the geometric mean of those that it does.
    """

    def __init__(self, workload: WorkloadConfig, aliases: Sequence[str]) -> None:
        profiles = load_profiles(workload).values()
        self._weights = [each.weight for each in profiles]
        self._log_medians: list[list[float]] = []  # by profile and model
        self._sigmas = []
        self._factors = [each.profile.output.strategy_factor for each in profiles]
        for _, profile in profiles:
            known = {a: math.log(m.output_tokens_median) for a, m in profile.models.items()}
            mean = math.fsum(known.values()) / len(known)
            self._log_medians.append([known.get(alias, mean) for alias in aliases])
            self._sigmas.append(math.hypot(profile.output.sigma_query, profile.output.sigma_call))

    def draw(self, model: int, key: str, strategy: str | None = None) -> int:
        """Return the tokens of an answer: a function of the arguments.

        A strategy is the one whose instruction the prompt holds.
        """
        rng = random.Random(key)
        (profile,) = rng.choices(range(len(self._weights)), self._weights)
        tokens = rng.lognormvariate(self._log_medians[profile][model], self._sigmas[profile])
        factor = 1.0 if strategy is None else self._factors[profile][strategy]
        return max(1, round(factor * tokens))


_Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Tokens = Annotated[int, Field(ge=1, lt=2**63)]


class _Message(BaseModel):
    role: str = ""
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """The text, also of a message in parts."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class _StreamOptions(BaseModel):
    include_usage: bool = False  # in a piece of its own


class Request(BaseModel):
    """A chat completion that is wanted: the fields that are read."""

    model: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    n: Literal[1] | None = None
    priority: _Int64 = 0
    seed: _Int64 | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: four characters are one, a message has four more."""
        return sum(
            _MESSAGE_TOKENS - (-len(message.text) // _CHARS_A_TOKEN) for message in self.messages
        )

    @property
    def strategy(self) -> str | None:
        """The strategy whose instruction is in the system's message."""
        if self.messages[0].role != "system":
            return None
        system = self.messages[0].text
        return next((n for n, words in STRATEGY_INSTRUCTIONS.items() if words in system), None)


def read_request(data: bytes, served: str, max_model_len: int) -> tuple[Request, int]:
    """Check the body of a request for the model `served`; return it, and its most tokens."""
    try:
        request = Request.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        words, places = f"1 validation error: {first['msg']}", ["body", *map(str, first["loc"])]
        raise RequestError(400, "invalid_request", words, param=".".join(places)) from None
    if (request.model or served) != served:
        words = f"The model `{request.model}` does not exist: {served}."
        raise RequestError(404, "model_not_found", words)
    room = max_model_len - request.prompt_tokens
    wanted = request.max_completion_tokens or request.max_tokens or room
    name = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
    words = f"{name}={wanted} cannot be greater than max_model_len={max_model_len}."  # vLLM 0.32's
    if wanted <= max_model_len:
        name, words = "input_tokens", f"This model's maximum context length is {max_model_len}"
        words += f" tokens. However, your prompt contains {request.prompt_tokens} input tokens."
    if room <= 0 or wanted > max_model_len:
        raise RequestError(400, "context_length_exceeded", words, param=name)
    return request, min(wanted, room)


class Answer:
    """The answer to one request: its words, drawn by `key`, and its bytes."""

    def __init__(self, request: Request, served: str, key: str, name: str | None) -> None:
        self.request = request
        self._first = random.Random(key).randrange(len(_LOREM))
        self._head = {
            "id": f"chatcmpl-{name or uuid.uuid4().hex[:16]}",
            "created": int(time.time()),
            "model": served,
            "system_fingerprint": SIMULATED,
        }

    def whole(self, tokens: int, reason: str, metrics: dict[str, Any] | None) -> bytes:
        """Return the body of an answer that is not streamed."""
        message = {"role": "assistant", "content": self._words(0, tokens)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        body = self._head | {"object": "chat.completion", "choices": [choice]}
        return dump(body | {"usage": self._usage(tokens), "metrics": metrics})

    def opening(self) -> bytes:
        """Return the event that names the role."""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def piece(self, begin: int, end: int, reason: str | None) -> bytes:
        """Return the event of tokens `begin` to `end`; a reason: it is the last."""
        choice = {"index": 0, "delta": {"content": self._words(begin, end)}}
        return self._event([{**choice, "logprobs": None, "finish_reason": reason}])

    def closing(self, tokens: int, metrics: dict[str, Any] | None) -> bytes:
        """Return the events after the last token."""
        options = self.request.stream_options
        if options is None or not options.include_usage:
            return END
        more = {} if metrics is None else {"metrics": metrics}
        return self._event([], usage=self._usage(tokens), **more) + END

    def _words(self, begin: int, end: int) -> str:
        size = len(_LOREM)
        words = [_LOREM[(self._first + i) % size] for i in range(begin, end)]
        return (" " if begin else "") + " ".join(words) if words else ""

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": tokens}
        return counts | {"total_tokens": prompt + tokens}

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        kind = "chat.completion.chunk"
        return b"data: %b\n\n" % dump(self._head | {"object": kind, "choices": choices} | more)


def dump(value: Any) -> bytes:
    """Return JSON, short."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
