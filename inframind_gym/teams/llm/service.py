"""The one service that every call goes through: retries, budget, accounting, events."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

from inframind_gym.errors import ConfigError, InfraMindError, shortened, unknown
from inframind_gym.teams.llm.guard import Grant, Guard
from inframind_gym.teams.llm.prices import Prices, shipped_prices
from inframind_gym.teams.llm.types import (
    AttemptError,
    BudgetError,
    Completion,
    LLMError,
    LLMRequest,
    LLMResponse,
    Provider,
    Spent,
    estimate_tokens,
)

_MOST_CHARS = 300  # of a server's message in events and errors


class EventLog(Protocol):
    """Receiver of events, e.g. a `RunLog`."""

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Append an event and return its sequence number."""
        ...


class NoLog:
    """A log that keeps nothing."""

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Forget the event."""
        return 0


@dataclass(frozen=True, slots=True)
class Retries:
    """Limits of a call's attempts.

    Attributes:
        most_attempts: Attempts in all.
        first_wait_s: Wait before the second one; it is drawn from 50 … 150 %.
        most_wait_s: Longest wait, whatever a server asks for.
        timeout_s: Limit of one attempt.
        factor: Each wait is so many times the one before.
    """

    most_attempts: int = 4
    first_wait_s: float = 0.5
    most_wait_s: float = 30.0
    timeout_s: float = 120.0
    factor: float = 2.0

    def wait_s(self, failed: int, asked_s: float | None, draw: float) -> float:
        """Return the wait after so many failed attempts; `draw` is from 0 to 1."""
        backoff_s = self.first_wait_s * self.factor ** (failed - 1) * (0.5 + draw)
        return float(min(self.most_wait_s, max(backoff_s, asked_s or 0.0)))


class LLMService:
    """The single gateway to models: every call of a team, whoever makes it.

    429, 5xx, time-outs and broken connections are tried again, with backoff; other errors are not.
    Each attempt asks the guard first and is settled once, so nothing is spent twice; each is an
    event (`llm_attempt`). Keys of providers appear in no event and no error.

    Args:
        providers: Ways to models by the names that calls use.
        log: Where events go; None: nowhere.
        guard: Budget that is asked before an attempt; None: there is no limit.
        retries: Limits of attempts.
        prices: Table of prices; None: the shipped one.
        sleep: Waits between attempts, for tests.

    Attributes:
        call_log: One mapping for each call that was answered, in order.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        log: EventLog | None = None,
        guard: Guard | None = None,
        retries: Retries | None = None,
        prices: Prices | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not providers:
            raise ConfigError("LLMService needs at least one provider.")
        self.providers = dict(providers)
        self.retries = retries or Retries()
        self.call_log: list[dict[str, Any]] = []
        self._log: EventLog = log or NoLog()
        self._guard = guard
        self._prices = prices or shipped_prices()
        self._sleep = sleep
        self._numbers = itertools.count(1)
        self._jitter = random.Random(0)
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None

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
        """Call a model.

        Args:
            system: System prompt.
            user: User message.
            provider: Name of a provider of this service.
            max_tokens: Most tokens of the answer.
            response_format: JSON schema of the object that is wanted; None: free text.
            agent: Name of the caller, for events and budgets.
            context: What a simulated provider draws by; others ignore it.

        Raises:
            BudgetError: The guard refused; nothing was sent.
            LLMError: The call failed for good.
            ConfigError: There is no such provider.
        """
        if provider not in self.providers:
            raise ConfigError(unknown("provider", provider, self.providers))
        way = self.providers[provider]
        request = LLMRequest(system, user, max_tokens, response_format, context or {})
        call = next(self._numbers)
        place = {"call": call, "agent": agent, "provider": provider, "model": way.model}
        asked = {"system": system, "user": user, "max_tokens": max_tokens}
        self._log.append("llm_request", place | asked)
        for attempt in itertools.count(1):
            try:
                return await self._attempt(way, request, place | {"attempt": attempt})
            except AttemptError as failure:
                if not failure.is_retryable or attempt >= self.retries.most_attempts:
                    raise self._error(failure, place, attempt) from None
                draw = self._jitter.random()
                await self._sleep(self.retries.wait_s(attempt, failure.wait_s, draw))
        raise AssertionError("unreachable")

    def call(
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
        """Call a model and wait, see `acall`; not from inside of an event loop.

        Raises:
            InfraMindError: An event loop runs in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InfraMindError("an event loop runs here: use `await service.acall(...)`.")
        wanted = self.acall(
            system, user, provider, max_tokens, response_format, agent=agent, context=context
        )
        with self._lock:  # the loop lives on between calls: connections belong to it
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(wanted)

    async def _attempt(
        self, way: Provider, request: LLMRequest, place: Mapping[str, Any]
    ) -> LLMResponse:
        """Send a request once: reserve, send, settle, one event.

        Raises:
            AttemptError: No usable answer came.
            BudgetError: The guard refused.
        """
        agent = str(place["agent"])
        grant: Grant | None = None
        if self._guard is not None:
            try:
                grant = self._guard.reserve(request, agent)
            except BudgetError as refusal:
                self._log.append("llm_refused", {**place, "reason": str(refusal)})
                raise
            request = replace(request, max_tokens=grant.max_tokens)
        response: LLMResponse | None = None
        spent: Spent = "unknown"  # until something is known: also where the task is cancelled
        said: dict[str, Any] = {"outcome": "cancelled"}
        started_s = time.monotonic()
        try:
            completion = await self._complete(way, request)
            response, said = self._priced(completion, way, request, place, started_s)
            return response
        except AttemptError as failure:
            spent = failure.spent
            said = {"outcome": failure.outcome, "message": shortened(failure, _MOST_CHARS)}
            raise
        finally:
            if self._guard is not None and grant is not None:
                self._guard.settle(grant, agent, response, spent)
            took_s = time.monotonic() - started_s if response is None else response.latency_s
            event = {**place, **said, "max_tokens": request.max_tokens, "latency_s": took_s}
            if response is None:
                event["spent"] = spent
            else:
                self.call_log.append(event)
            self._log.append("llm_attempt", event)

    async def _complete(self, way: Provider, request: LLMRequest) -> Completion:
        if way.is_simulated:  # no time passes
            return await way.complete(request)
        try:
            async with asyncio.timeout(self.retries.timeout_s):
                return await way.complete(request)
        except TimeoutError:
            raise AttemptError(
                "timeout",
                f"no answer within {self.retries.timeout_s:g} s",
                is_retryable=True,
                spent="unknown",
            ) from None

    def _priced(
        self,
        completion: Completion,
        way: Provider,
        request: LLMRequest,
        place: Mapping[str, Any],
        started_s: float,
    ) -> tuple[LLMResponse, dict[str, Any]]:
        """Return the response of a completion, and its part of the event."""
        counts = (completion.input_tokens, completion.output_tokens)
        is_estimate = None in counts
        given, made = counts
        given = request.prompt_tokens_estimate if given is None else given
        made = estimate_tokens(completion.content) if made is None else made
        measured_s = time.monotonic() - started_s
        cost_usd = self._prices.cost_usd(way.model, given, made)
        response = LLMResponse(
            completion.content,
            str(place["provider"]),
            way.model,
            given,
            made,
            given + made,
            measured_s if completion.latency_s is None else completion.latency_s,
            cost_usd or 0.0,
            completion.finish_reason,
        )
        notes = {
            "simulated": way.is_simulated,
            "tokens_estimated": is_estimate,
            "unpriced": cost_usd is None,
            "over_max_tokens": max(0, made - request.max_tokens),  # a model that ignores its limit
        }
        told = {k: v for k, v in asdict(response).items() if k not in ("provider", "model")}
        return response, {"outcome": "ok", **told, **{k: v for k, v in notes.items() if v}}

    def _error(self, failure: AttemptError, place: Mapping[str, Any], attempts: int) -> LLMError:
        times = "once" if attempts == 1 else f"{attempts} times"
        return LLMError(
            f"{place['agent']}: the call to {place['provider']} ({place['model']}) failed, tried "
            f"{times}: {failure.outcome}: {shortened(failure, _MOST_CHARS)}",
            failure.outcome,
            attempts,
        )

    def get_cost_summary(self) -> dict[str, Any]:
        """Return calls, tokens and USD: in all, by model and by agent."""
        groups: dict[str, dict[str, dict[str, Any]]] = {"by_model": {}, "by_agent": {}}
        for call in self.call_log:
            for group, key in (("by_model", call["model"]), ("by_agent", call["agent"])):
                _add(groups[group].setdefault(key, _nothing()), call)
        total = _nothing()
        for call in self.call_log:
            _add(total, call)
        unpriced = sorted({call["model"] for call in self.call_log if call.get("unpriced")})
        return {**total, **groups, "unpriced_models": unpriced}

    def close(self) -> None:
        """Close the connections that `call` opened."""
        if self._runner is not None:
            self._runner.run(self.aclose())
            self._runner.close()
            self._runner = None

    async def aclose(self) -> None:
        """Close the connections that `acall` opened."""
        for provider in set(self.providers.values()):
            await provider.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> dict[str, Any]:
    return {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}


def _add(total: dict[str, Any], call: Mapping[str, Any]) -> None:
    total["calls"] += 1
    for key in ("input_tokens", "output_tokens", "cost_usd"):
        total[key] += call[key]
