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

from inframind_gym.errors import InfraMindError
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


class RefusedError(InfraMindError):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        body: JSON of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": "BadRequestError", "code": status}}


class AnswerLengths:
    """Draws the tokens of answers: log-normal, as a workload says of each model and strategy.

    Args:
        workload: its profiles are drawn by their weights, its models are found by their aliases;
            one that it does not know has the geometric mean of those that it does.
        aliases: of the pool's models.
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

        Args:
            model: index in the pool.
            key: of the random numbers.
            strategy: whose instruction the prompt holds; None: none's.
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


class _Prescribed(BaseModel):
    text: str | None = None  # instead of lorem, and
    tokens: _Tokens | None = None  # instead of a length that is drawn


class Request(BaseModel):
    """A chat completion, or a completion, that is wanted: the fields that are read."""

    model: str | None = None
    messages: list[_Message] = []
    prompt: str | list[Any] = ""
    max_completion_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    min_tokens: _Int64 = 0
    n: Literal[1] | None = None
    priority: _Int64 | None = None
    seed: _Int64 | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    simulated: _Prescribed = _Prescribed()

    @property
    def chat(self) -> bool:
        """True for a chat."""
        return bool(self.messages)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: four characters are one, a message of a chat has four more."""
        if self.messages:
            return sum(_MESSAGE_TOKENS + tokens_of(message.text) for message in self.messages)
        return len(self.prompt) if isinstance(self.prompt, list) else tokens_of(self.prompt)

    @property
    def strategy(self) -> str | None:
        """The strategy whose instruction is in the system's message."""
        if not self.messages or self.messages[0].role != "system":
            return None
        system = self.messages[0].text
        return next((n for n, words in STRATEGY_INSTRUCTIONS.items() if words in system), None)


def read_request(data: bytes, path: str, served: str, max_model_len: int) -> Request:
    """Check the body of a request to `/v1/chat/completions` or `/v1/completions`.

    Args:
        data: the body.
        path: of the request.
        served: name of the model.
        max_model_len: tokens of prompt and output.

    Returns:
        The request, with `max_tokens` as it will be.

    Raises:
        RefusedError: no server would take it.
    """
    try:
        request = Request.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RefusedError(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if (request.model or served) != served:
        raise RefusedError(404, f"The model `{request.model}` does not exist: {served}.")
    chat = path.endswith("/chat/completions")
    if not (request.messages if chat else request.prompt):
        raise RefusedError(400, f"{'messages' if chat else 'prompt'}: must not be empty")
    room = max_model_len - request.prompt_tokens
    if room <= 0:
        raise RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {request.prompt_tokens} input tokens.",
        )
    limits = (request.max_completion_tokens, request.max_tokens, room if chat else 16)
    wanted = next(limit for limit in limits if limit is not None)
    if wanted > max_model_len or request.min_tokens > wanted:
        raise RefusedError(400, f"max_tokens: from min_tokens to {max_model_len}")
    return request.model_copy(update={"model": served, "max_tokens": min(wanted, room)})


def tokens_of(text: str) -> int:
    """Return the tokens of a text."""
    return -(-len(text) // _CHARS_A_TOKEN)


class Answer:
    """The answer to one request: its words, and its bytes.

    Args:
        request: what is wanted.
        key: of the random words.
        name: end of its id; None: random.
    """

    def __init__(self, request: Request, key: str, name: str | None) -> None:
        self.request = request
        self._first = random.Random(key).randrange(len(_LOREM))
        self._kind = "chat.completion" if request.chat else "text_completion"
        prefix = "chatcmpl" if request.chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{name or uuid.uuid4().hex[:16]}",
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": SIMULATED,
        }

    def words(self, begin: int, end: int, total: int) -> str:
        """Return tokens `begin` to `end` of `total`."""
        if self.request.simulated.text is not None:
            text = self.request.simulated.text
            return text[len(text) * begin // total : len(text) * end // total]
        size = len(_LOREM)
        words = [_LOREM[(self._first + i) % size] for i in range(begin, end)]
        return (" " if begin else "") + " ".join(words) if words else ""

    def whole(self, tokens: int, total: int, reason: str, metrics: dict[str, Any] | None) -> bytes:
        """Return the body of an answer that is not streamed."""
        text = self.words(0, tokens, total)
        said = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **(said if self.request.chat else {"text": text})}
        choice |= {"logprobs": None, "finish_reason": reason}
        body = self._head | {"object": self._kind, "choices": [choice]}
        return dump(body | {"usage": self._usage(tokens), "metrics": metrics})

    def opening(self) -> bytes:
        """Return the event that names the role; completions have none."""
        if not self.request.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def piece(self, begin: int, end: int, total: int, reason: str | None) -> bytes:
        """Return the event of tokens `begin` to `end`; a reason: it is the last."""
        text = self.words(begin, end, total)
        said = {"delta": {"content": text}} if self.request.chat else {"text": text}
        return self._event([{"index": 0, **said, "logprobs": None, "finish_reason": reason}])

    def closing(self, tokens: int, metrics: dict[str, Any] | None) -> bytes:
        """Return the events after the last token."""
        options = self.request.stream_options
        if options is None or not options.include_usage:
            return END
        more = {} if metrics is None else {"metrics": metrics}
        return self._event([], usage=self._usage(tokens), **more) + END

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        total = prompt + tokens
        return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": tokens}

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        kind = f"{self._kind}.chunk" if self.request.chat else self._kind
        return b"data: %b\n\n" % dump(self._head | {"object": kind, "choices": choices} | more)


def dump(value: Any) -> bytes:
    """Return JSON, short."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
