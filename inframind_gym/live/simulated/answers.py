"""Requests to simulated servers, and answers: lorem ipsum, a word a token, in OpenAI's form."""

from __future__ import annotations

import json
import math
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.watcher import SIMULATED
from inframind_gym.simulator.workflow.topology import STRATEGY_INSTRUCTIONS
from inframind_gym.simulator.workload import WorkloadConfig, load_profiles

_CHARS_A_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # of the chat template, for each message
_INT64: Final = 2**63
_UNSIMULATED: Final = ("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs")
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

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "BadRequestError" if status == 400 else "Error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


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


@dataclass(frozen=True, slots=True)
class Request:
    """A chat completion, or a completion, that is wanted."""

    model: str
    chat: bool
    prompt_tokens: int
    max_tokens: int
    priority: int
    seed: int | None
    stream: bool
    usage: bool  # of a stream, in a piece of its own
    ignore_eos: bool
    min_tokens: int
    text: str | None  # instead of lorem, and
    tokens: int | None  # instead of a length that is drawn: `simulated` in the body
    strategy: str | None  # whose instruction is in the system's message


def read_request(data: bytes, path: str, served: str, max_model_len: int) -> Request:
    """Check the body of a request to `/v1/chat/completions` or `/v1/completions`.

    Args:
        data: the body.
        path: of the request.
        served: name of the model.
        max_model_len: tokens of prompt and output.

    Raises:
        RefusedError: no server would take it.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body is no JSON object")
    chat = path.endswith("/chat/completions")
    if (body.get("model") or served) != served:
        raise RefusedError(404, f"The model `{body['model']}` does not exist: {served}.", "model")
    for name in _UNSIMULATED:
        if body.get(name):
            raise RefusedError(400, f"{name}: a simulated server has none.", name)
    if _whole(body, "n") not in (None, 1):
        raise RefusedError(400, "n must be 1 on a simulated server", "n")
    prompt_tokens, system = _read_prompt(body.get("messages" if chat else "prompt"), chat)
    room = max_model_len - prompt_tokens
    if room <= 0:
        raise RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains at least {min(prompt_tokens, max_model_len + 1)} input tokens.",
            "input_tokens",
        )
    limits = [_whole(body, name) for name in ("max_completion_tokens", "max_tokens")]
    usual = room if chat else 16
    wanted = next((limit for limit in limits if limit is not None), usual)
    least = _whole(body, "min_tokens") or 0
    if not max(least, 1) <= wanted <= max_model_len:
        raise RefusedError(
            400, f"max_tokens must be from 1 to {max_model_len}, and min_tokens below", "max_tokens"
        )
    options, prescribed = body.get("stream_options"), body.get("simulated")
    options = options if isinstance(options, dict) else {}
    prescribed = prescribed if isinstance(prescribed, dict) else {}
    return Request(
        model=served,
        chat=chat,
        prompt_tokens=prompt_tokens,
        max_tokens=min(wanted, room),
        priority=_whole(body, "priority") or 0,
        seed=_whole(body, "seed"),
        stream=bool(body.get("stream")),
        usage=bool(options.get("include_usage")),
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=least,
        text=None if prescribed.get("text") is None else str(prescribed["text"]),
        tokens=_whole(prescribed, "tokens"),
        strategy=next((n for n, words in STRATEGY_INSTRUCTIONS.items() if words in system), None),
    )


def _read_prompt(prompt: Any, chat: bool) -> tuple[int, str]:
    """Return the tokens of a prompt, and the text of its system's message.

    Four characters are a token; a message of a chat has four tokens more.

    Raises:
        RefusedError: there is no prompt.
    """
    if not chat and prompt:
        return len(prompt) if isinstance(prompt, list) else max(tokens_of(str(prompt)), 1), ""
    if not isinstance(prompt, list) or not prompt or not all(isinstance(m, dict) for m in prompt):
        raise RefusedError(400, "the prompt must be given, and not empty")
    texts = []
    for message in prompt:
        content = message.get("content")
        if isinstance(content, list):  # in parts
            content = "".join(str(part.get("text", "")) for part in content)
        texts.append("" if content is None else str(content))
    tokens = sum(_MESSAGE_TOKENS + tokens_of(text) for text in texts)
    return tokens, texts[0] if prompt[0].get("role") == "system" else ""


def tokens_of(text: str) -> int:
    """Return the tokens of a text."""
    return -(-len(text) // _CHARS_A_TOKEN)


def _whole(body: dict[str, Any], key: str) -> int | None:
    """Return a whole number, or None where there is none."""
    value = body.get(key)
    if value is None or (type(value) is int and -_INT64 <= value < _INT64):
        return value
    raise RefusedError(400, f"{key} must be a whole number", key)


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
        if self.request.text is not None:
            text = self.request.text
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
        if not self.request.usage:
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
