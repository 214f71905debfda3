"""Calls to models: prompts, providers, prices, and `LLMService`, through which every call goes.

A provider is a server that speaks OpenAI's chat completions (called through OpenAI's SDK), or a
simulation that draws answers. Keys of providers appear in no event and no error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from inframind_gym.configs import NonNegative, StrictModel, load_yaml_model, shipped_file
from inframind_gym.errors import ConfigError, InfraMindError, require, shortened, unknown
from inframind_gym.files import parse_json

CHARS_PER_TOKEN: Final = 4  # rule of thumb for English text, where a server reports no usage
SIMULATED: Final = "simulated"
DEFAULT_MODELS: Final = {"openai": "gpt-4o-mini", "anthropic": "claude-3-5-haiku-latest"}
_URLS: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1/"}
_MOST_ANSWER_CHARS: Final = 1_000_000
_MOST_CHARS: Final = 300  # of a server's message in events and errors
_MOST_TOKENS: Final = 1 << 24  # that a server may report of a call; no context is longer

# "nothing" where a server refused the request, "unknown" where it may have generated tokens that
# never arrived.
Spent = Literal["nothing", "unknown"]
ResultT = TypeVar("ResultT")


def estimate_tokens(text: str) -> int:
    """Return the tokens of a text: four bytes of UTF-8 each, rounded up."""
    return -(-len(text.encode(errors="surrogatepass")) // CHARS_PER_TOKEN)


class Prompt(NamedTuple):
    """Question to an agent."""

    system: str
    user: str
    schema: Mapping[str, Any] | None  # of the answer, as JSON schema; None: free text


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_schema(items: Mapping[str, Any], **limits: int) -> dict[str, Any]:
    """Return the schema of a list, with limits such as `maxItems`."""
    return {"type": "array", "items": items, **limits}


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in an answer, with or without words around it; empty without one."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or len(text) > _MOST_ANSWER_CHARS:
        return {}
    with suppress(ConfigError):
        if isinstance(value := parse_json(text[start : end + 1], "answer"), dict):
            return value
    return {}


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """One call as a provider gets it."""

    system: str
    user: str
    max_tokens: int  # of the answer
    response_format: Mapping[str, Any] | None  # JSON schema of the answer; None: free text
    context: Mapping[str, Any]  # what a simulated provider draws by; others ignore it
    max_retries: int = 3  # of what a server refuses or breaks off; simulated providers ignore it

    @property
    def prompt_tokens_estimate(self) -> int:
        """Tokens of the prompt before a server has counted them: the caller's, or by length."""
        by_length = estimate_tokens(self.system) + estimate_tokens(self.user)
        return int(self.context.get("prompt_tokens", by_length))


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One answer: its text and tokens by its provider, the rest by the service."""

    content: str
    input_tokens: int
    output_tokens: int
    finish_reason: str = "stop"  # or "length", …
    latency_s: float = 0.0  # virtual of a simulated provider; 0: the service measures it
    tokens_estimated: bool = False  # the server reported none
    provider: str = ""  # its name in the service
    model: str = ""
    cost_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.input_tokens + self.output_tokens

    def facts(self) -> dict[str, Any]:
        """Return the fields by name, as events have them; `tokens_estimated` only if true."""
        facts = {**asdict(self), "total_tokens": self.total_tokens}
        return {k: v for k, v in facts.items() if k != "tokens_estimated" or v}


class LLMError(InfraMindError):
    """A call failed: "http_429", "timeout", "connection" and the like are its `outcome`."""

    def __init__(self, outcome: str, message: str, spent: Spent = "nothing") -> None:
        super().__init__(message)
        self.outcome, self.spent = outcome, spent


class BudgetError(InfraMindError):
    """A guard refused a call; nothing was sent."""


# Providers


class Provider(Protocol):
    """Access to one model; results of a simulated one are marked as simulated."""

    model: str
    is_simulated: bool

    async def complete(self, request: LLMRequest) -> LLMResponse:
        """Answer one request, or raise an `LLMError`."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        return


class OpenAICompatible(Provider):
    """A server that speaks OpenAI's chat completions, or a vendor by name.

    The SDK makes the attempts: 429, 5xx and broken connections are tried again.

    Args:
        model: Name of the model on the server.
        url: Base URL, e.g. "http://127.0.0.1:8000/v1"; None: the vendor's.
        vendor: "openai" or "anthropic", whose key is taken; None: an own server, whose password is
            VLLM_API_KEY. Anthropic's address ignores schemas: they go into its prompts.

    Raises:
        ConfigError: The extra `teams` or the vendor's key is missing.
    """

    is_simulated = False

    def __init__(self, model: str, url: str | None = None, vendor: str | None = None) -> None:
        self._sdk = require("openai", "a provider of models", "teams")
        vendor = vendor or ("openai" if url is None else None)
        # A vendor's key goes to that vendor only; own servers have another password.
        variable = "VLLM_API_KEY" if vendor is None else f"{vendor.upper()}_API_KEY"
        self._key = os.environ.get(variable, "").strip()
        if vendor is not None and not self._key:
            raise ConfigError(
                f"{variable} is not set. Set it to your key, or use `--provider {SIMULATED}`, "
                "which needs none."
            )
        self.model, self._vendor = model, vendor
        server = {"api_key": self._key or "none", "base_url": url or _URLS[vendor or "openai"]}
        self._client = self._sdk.AsyncOpenAI(**server, timeout=None)

    async def complete(self, request: LLMRequest) -> LLMResponse:
        """See `Provider`."""
        sdk, system, options = self._sdk, request.system, dict[str, Any]()
        if request.response_format is not None:
            schema = dict(request.response_format)
            if self._vendor == "anthropic":
                system += "\nAnswer with one JSON object of this schema, and nothing else: "
                system += json.dumps(schema)
            else:
                answer = {"name": "answer", "schema": schema}
                options["response_format"] = {"type": "json_schema", "json_schema": answer}
        # Newer models of OpenAI refuse the old name, other servers may not know the new one.
        limit = "max_completion_tokens" if self._vendor == "openai" else "max_tokens"
        texts = {"system": system, "user": request.user}
        options |= {
            "model": self.model,
            "messages": [{"role": role, "content": text} for role, text in texts.items()],
            limit: request.max_tokens,
        }
        spent: Spent = "unknown"
        try:
            client = self._client.with_options(max_retries=request.max_retries)
            reply = await client.chat.completions.create(**options)
            choice, usage = reply.choices[0], reply.usage
            content, reason = choice.message.content or "", str(choice.finish_reason or "stop")
            if not isinstance(content, str):
                raise TypeError(f"its content is no text but {type(content).__name__}")
            content = _whole(content)
            tokens = [request.prompt_tokens_estimate, estimate_tokens(content)]
            if usage is not None:
                tokens = [usage.prompt_tokens, usage.completion_tokens]
            if any(not isinstance(n, int | float) or n % 1 or n > _MOST_TOKENS for n in tokens):
                raise ValueError(f"its tokens are {tokens}")
            read, wrote = (max(0, int(n)) for n in tokens)
            return LLMResponse(content, read, wrote, reason, tokens_estimated=usage is None)
        except sdk.APIStatusError as error:
            outcome, text, spent = f"http_{error.status_code}", str(error.message), "nothing"
            text += " Is the model's name right? Vendors retire models." * ("404" in outcome)
        except sdk.APIConnectionError as error:
            outcome, text = "connection", f"{error} {error.__cause__}"
            if type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout"):
                spent = "nothing"
        except (sdk.APIError, ValueError, AttributeError, IndexError, TypeError) as error:
            outcome, text = "malformed", f"the answer is no chat completion: {error}"
        text = text.replace(self._key, "[key]") if self._key else text
        raise LLMError(outcome, _whole(text), spent)

    async def aclose(self) -> None:
        """See `Provider`."""
        await self._client.close()


def _whole(text: str) -> str:
    """Return a server's text without halves of surrogate pairs, which cannot be written."""
    return text.encode("utf-8", "replace").decode()


def open_provider(name: str, model: str | None = None) -> Provider:
    """Open a real provider: "openai", "anthropic" or a base URL, as command lines take it.

    Without a model it is the vendor's of `DEFAULT_MODELS`.
    """
    if name.startswith(("http://", "https://")):
        if "@" in urlsplit(name).netloc or urlsplit(name).query:
            raise ConfigError(
                "--provider: the URL holds a password or a query, which the run log would show. "
                "Set VLLM_API_KEY instead."
            )
        if model is None:
            raise ConfigError(f"--provider {name} needs --model: the model's name on that server.")
        return OpenAICompatible(model, name.rstrip("/"))
    if name not in DEFAULT_MODELS:
        message = unknown("provider", name, (SIMULATED, *DEFAULT_MODELS))
        raise ConfigError(f"{message} A base URL is taken as well.")
    return OpenAICompatible(model or DEFAULT_MODELS[name], vendor=name)


# Prices


class Price(StrictModel):
    """Price of one model."""

    input_usd_per_mtok: NonNegative
    output_usd_per_mtok: NonNegative
    as_of: str  # day on which the source said so, YYYY-MM-DD
    source: str  # page of the vendor

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of a call."""
        input_usd = input_tokens * (self.input_usd_per_mtok / 1_000_000)
        return input_usd + output_tokens * (self.output_usd_per_mtok / 1_000_000)


class Prices(StrictModel):
    """Table of prices by the model's name."""

    models: dict[str, Price]


@cache
def shipped_prices() -> Prices:
    """Return the table of prices."""
    return load_yaml_model(shipped_file("prices.yaml"), Prices)


# The service


class EventLog(Protocol):
    """Receiver of events, e.g. a `RunLog`."""

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Append an event and return its sequence number."""
        return 0


class NoLog(EventLog):
    """A log that keeps nothing."""


class Guard(Protocol):
    """A budget, which is asked before a call and charged after it."""

    def reserve(self, request: LLMRequest, agent: str) -> int:
        """Return the tokens that an answer may have; a `BudgetError` if the call does not fit."""
        ...

    def settle(self, agent: str, tokens: int, *, is_lost: bool) -> None:
        """Charge the tokens of a call, which are lost where no answer came."""
        ...


class Blocking:
    """Base of classes with blocking methods: one event loop, to which their connections belong."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._lock = threading.Lock()  # of the runner

    def run(self, work: Callable[..., Coroutine[Any, Any, ResultT]], *args: Any) -> ResultT:
        """Run a coroutine function to its end; threads take turns."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._lock:
                self._runner = self._runner or asyncio.Runner()
                return self._runner.run(work(*args))
        raise InfraMindError("an event loop runs here: await the method whose name begins with a.")

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        raise NotImplementedError

    def close(self) -> None:
        """Close connections that blocking methods opened."""
        if self._runner is not None:
            self.run(self.aclose)
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LLMService(Blocking):
    """The single gateway to models: every call of a team goes through it.

    Each call asks the guard first and is settled once; each is an event (`llm_attempt`). A call
    that times out has failed; the provider itself retries what a server refuses or breaks off.
    `call_log` has a mapping for each answered call, in order.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        log: EventLog | None = None,
        guard: Guard | None = None,
        max_retries: int = 3,
        timeout_s: float = 120.0,
    ) -> None:
        super().__init__()
        self.providers, self._max_retries, self._timeout_s = dict(providers), max_retries, timeout_s
        self.call_log: list[dict[str, Any]] = []
        self._log: EventLog = log or NoLog()
        self._guard, self._numbers = guard, itertools.count(1)

    @property
    def is_simulated(self) -> bool:
        """True if any provider draws its answers."""
        return any(provider.is_simulated for provider in self.providers.values())

    @property
    def call_count(self) -> int:
        """Calls that were answered."""
        return len(self.call_log)

    @property
    def total_cost(self) -> float:
        """USD of all calls that were answered."""
        return float(sum(call["cost_usd"] for call in self.call_log))

    async def acall(
        self,
        system: str,
        user: str,
        provider: str,
        max_tokens: int,
        response_format: Mapping[str, Any] | None = None,
        *,
        agent: str,
        context: Mapping[str, Any] | None = None,
    ) -> LLMResponse:
        """Call a model by the name of its provider in this service.

        Args:
            system, user: Prompt.
            provider, max_tokens: Who answers, in how many tokens at most.
            response_format: JSON schema of the object that is wanted; None: free text.
            agent: Name of the caller, for events and budgets.
            context: What a simulated provider draws by; others ignore it.

        Raises:
            BudgetError: The guard refused; nothing was sent.
            LLMError: The call failed for good.
        """
        target, retries = self.providers[provider], self._max_retries
        request = LLMRequest(system, user, max_tokens, response_format, context or {}, retries)
        number = next(self._numbers)
        place = {"call": number, "agent": agent, "provider": provider, "model": target.model}
        texts = {"system": system, "user": user, "max_tokens": max_tokens}
        self._log.append("llm_request", place | texts)
        if self._guard is not None:
            try:
                request = replace(request, max_tokens=self._guard.reserve(request, agent))
            except BudgetError as refusal:
                self._log.append("llm_refused", {**place, "reason": str(refusal)})
                raise
        response: LLMResponse | None = None
        spent: Spent = "unknown"  # until something is known: also where the task is cancelled
        facts: dict[str, Any] = {"outcome": "cancelled"}
        started_s = time.monotonic()
        try:  # a simulated provider's time is virtual: no timeout
            async with asyncio.timeout(None if target.is_simulated else self._timeout_s):
                answer = await target.complete(request)
            latency_s = answer.latency_s or time.monotonic() - started_s
            price = shipped_prices().models.get(target.model)
            cost_usd = price.cost_usd(answer.input_tokens, answer.output_tokens) if price else 0.0
            measured: Any = {"latency_s": latency_s, "cost_usd": cost_usd}
            response = replace(answer, provider=provider, model=target.model, **measured)
            notes = {
                "simulated": target.is_simulated,
                "unpriced": price is None,
                "over_max_tokens": max(0, answer.output_tokens - request.max_tokens),
            }
            facts = {"outcome": "ok", **response.facts()}
            facts |= {key: value for key, value in notes.items() if value}
            return response
        except (TimeoutError, LLMError) as error:
            outcome, spent = "timeout", "unknown"
            message = f"no answer within {self._timeout_s:g} s"
            if isinstance(error, LLMError):
                outcome, spent = error.outcome, error.spent
                message = shortened(error, _MOST_CHARS)
            facts = {"outcome": outcome, "message": message}
            where = f"{agent}: the call to {provider} ({target.model}) failed"
            raise LLMError(outcome, f"{where}: {outcome}: {message}", spent) from None
        finally:
            if self._guard is not None:
                reserved = request.prompt_tokens_estimate + request.max_tokens
                tokens = response.total_tokens if response else reserved * (spent == "unknown")
                self._guard.settle(agent, tokens, is_lost=response is None)
            if response is None:
                facts |= {"latency_s": time.monotonic() - started_s, "spent": spent}
            event = {**place, **facts, "max_tokens": request.max_tokens}
            self.call_log += [] if response is None else [event]
            self._log.append("llm_attempt", event)

    def call(self, *request: Any, **options: Any) -> LLMResponse:
        """Call a model and wait; arguments are those of `acall`. Not from inside an event loop."""
        return self.run(partial(self.acall, **options), *request)

    def get_cost_summary(self) -> dict[str, Any]:
        """Return calls, tokens and USD: in all, by model and by agent."""

        def total(calls: list[dict[str, Any]]) -> dict[str, Any]:
            return {
                "calls": len(calls),
                "input_tokens": sum(call["input_tokens"] for call in calls),
                "output_tokens": sum(call["output_tokens"] for call in calls),
                "cost_usd": sum((call["cost_usd"] for call in calls), 0.0),
            }

        def by(key: str) -> dict[str, Any]:
            groups = dict.fromkeys(call[key] for call in self.call_log)
            return {name: total([c for c in self.call_log if c[key] == name]) for name in groups}

        groups = {"by_model": by("model"), "by_agent": by("agent")}
        unpriced = {call["model"] for call in self.call_log if call.get("unpriced")}
        return {**total(self.call_log), **groups, "unpriced_models": sorted(unpriced)}

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        for provider in set(self.providers.values()):
            await provider.aclose()
