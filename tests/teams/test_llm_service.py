"""Every call goes through one service: faults, budgets, accounting and events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.llm.prices import load_prices, shipped_prices
from inframind_gym.teams.llm.providers import Anthropic, OpenAICompatible, Simulated, open_provider
from inframind_gym.teams.llm.service import LLMService, Retries
from inframind_gym.teams.llm.types import BudgetError, Completion, LLMError, LLMRequest
from tests.teams.ceiling import TokenCeiling
from tests.teams.stand_in import Reply, StandIn

Data = dict[str, Any]


class Notes:
    """A log in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Data]] = []

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        self.events.append((kind, dict(data)))
        return len(self.events)

    def of(self, kind: str) -> list[Data]:
        return [data for name, data in self.events if name == kind]

    @property
    def outcomes(self) -> list[str]:
        return [data["outcome"] for data in self.of("llm_attempt")]


async def no_sleep(wait_s: float) -> None:
    assert wait_s >= 0.0


QUICK = Retries(most_attempts=3, first_wait_s=0.001, timeout_s=0.5)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> Iterator[Callable[..., Any]]:
    """A service on a scripted server, and that server."""
    pytest.importorskip("openai")
    monkeypatch.setenv("VLLM_API_KEY", "secret-of-the-test")
    left: list[Any] = []

    def make(*replies: Reply, guard: TokenCeiling | None = None) -> tuple[LLMService, StandIn]:
        server = StandIn(replies)
        provider = OpenAICompatible("gpt-4o-mini", f"{server.url}/v1")
        service = LLMService(
            {"openai": provider}, log=notes, guard=guard, retries=QUICK, sleep=no_sleep
        )
        left.extend((service, server))
        return service, server

    yield make
    for each in left:
        each.close()


def ask(service: LLMService, max_tokens: int = 100) -> Any:
    return service.call("Be brief.", "1 + 1?", "openai", max_tokens, agent="coder")


def test_an_answer_is_counted_and_priced(opened: Callable[..., Any], notes: Notes) -> None:
    service, server = opened(Reply(content="2", prompt_tokens=1000, completion_tokens=500))
    response = ask(service)
    assert (response.content, response.total_tokens) == ("2", 1500)
    assert response.cost_usd == pytest.approx((1000 * 0.15 + 500 * 0.60) / 1e6)
    assert response.latency_s > 0.0
    assert server.requests[0]["max_tokens"] == 100
    summary = service.get_cost_summary()
    assert summary["calls"] == service.call_count == 1
    assert summary["by_agent"]["coder"]["cost_usd"] == service.total_cost == response.cost_usd
    assert notes.of("llm_request")[0]["user"] == "1 + 1?"
    assert "secret-of-the-test" not in json.dumps(notes.events)


@pytest.mark.parametrize(
    ("fault", "outcome", "lost_tokens"),
    [
        (Reply(status=429), "http_429", 0),
        (Reply(status=500), "http_500", 0),
        (Reply(status=503), "http_503", 0),
        (Reply(hangs=True), "timeout", 105),
        (Reply(cuts=True), "connection", 105),
    ],
)
def test_what_may_pass_is_tried_again(
    opened: Callable[..., Any], notes: Notes, fault: Reply, outcome: str, lost_tokens: int
) -> None:
    guard = TokenCeiling(10_000)
    service, server = opened(fault, Reply(content="2"), guard=guard)
    assert ask(service).content == "2"
    assert notes.outcomes == [outcome, "ok"]
    assert len(server.requests) == 2
    assert service.call_count == 1  # a failed attempt is no call
    assert guard.used_tokens == 15  # once
    assert guard.lost_tokens == lost_tokens  # a prompt of 5 tokens and an answer of 100
    assert guard.reserved_tokens == 0


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Reply(status=400), "http_400"),
        (Reply(status=401), "http_401"),
        (Reply(status=404), "http_404"),
        (Reply(status=429, code="insufficient_quota"), "http_429"),
        (Reply(raw='{"choices": [{"mess'), "malformed"),
        (Reply(raw='{"choices": []}'), "malformed"),
        (Reply(raw="[1, 2]"), "malformed"),
    ],
)
def test_what_cannot_pass_is_sent_once(
    opened: Callable[..., Any], notes: Notes, fault: Reply, outcome: str
) -> None:
    guard = TokenCeiling(10_000)
    service, server = opened(fault, Reply(content="never"), guard=guard)
    with pytest.raises(LLMError, match=outcome) as raised:
        ask(service)
    assert (raised.value.outcome, raised.value.attempts) == (outcome, 1)
    assert len(server.requests) == 1
    assert notes.outcomes == [outcome]
    assert guard.used_tokens == guard.reserved_tokens == 0
    assert guard.lost_tokens == (105 if outcome == "malformed" else 0)


def test_attempts_have_a_limit(opened: Callable[..., Any], notes: Notes) -> None:
    service, server = opened(*[Reply(status=500)] * 9)
    with pytest.raises(LLMError, match="tried 3 times: http_500"):
        ask(service)
    assert len(server.requests) == 3
    assert notes.outcomes == ["http_500"] * 3


def test_a_server_that_is_not_there_spends_nothing(notes: Notes) -> None:
    pytest.importorskip("openai")
    guard = TokenCeiling(10_000)
    provider = OpenAICompatible("m", "http://127.0.0.1:9/v1")
    with (
        LLMService(
            {"openai": provider}, log=notes, guard=guard, retries=QUICK, sleep=no_sleep
        ) as service,
        pytest.raises(LLMError, match="connection"),
    ):
        ask(service)
    assert guard.lost_tokens == guard.reserved_tokens == 0
    assert [data["spent"] for data in notes.of("llm_attempt")] == ["nothing"] * 3


def test_a_model_that_ignores_its_limit_is_charged_in_full(
    opened: Callable[..., Any], notes: Notes
) -> None:
    guard = TokenCeiling(200)
    service, server = opened(
        Reply(content="x", completion_tokens=400), Reply(content="never"), guard=guard
    )
    assert ask(service).output_tokens == 400
    assert notes.of("llm_attempt")[0]["over_max_tokens"] == 300
    with pytest.raises(BudgetError, match="0 of 200 are left"):
        ask(service)
    assert len(server.requests) == 1  # the refused call was not sent
    assert notes.of("llm_refused")[0]["agent"] == "coder"


def test_an_answer_is_cut_to_what_the_budget_has_left(opened: Callable[..., Any]) -> None:
    guard = TokenCeiling(55)
    service, server = opened(Reply(content="2"), guard=guard)
    ask(service)
    assert server.requests[0]["max_tokens"] == 50  # the prompt has 5


def test_a_server_without_usage_is_estimated(opened: Callable[..., Any], notes: Notes) -> None:
    service, _ = opened(Reply(content="four letters each", prompt_tokens=None))
    response = ask(service)
    assert (response.input_tokens, response.output_tokens) == (5, 5)
    assert notes.of("llm_attempt")[0]["tokens_estimated"] is True


def test_a_server_says_how_long_to_wait() -> None:
    retries = Retries(first_wait_s=1.0, most_wait_s=10.0)
    assert retries.wait_s(1, None, 0.5) == 1.0
    assert retries.wait_s(3, None, 0.5) == 4.0
    assert retries.wait_s(1, 7.0, 0.5) == 7.0
    assert retries.wait_s(1, 700.0, 0.5) == 10.0


def slow_answers(most: list[int]) -> Simulated:
    """Calls of 10 + 30 tokens; counts how many run at once."""
    running = 0

    class Slow(Simulated):
        async def complete(self, request: LLMRequest) -> Completion:
            nonlocal running
            running += 1
            most.append(running)
            await asyncio.sleep(0.01)
            running -= 1
            return await super().complete(request)

    return Slow("gpt-4o-mini", lambda request: Completion("x", 10, 30, latency_s=1.0))


def test_calls_at_once_stay_below_the_ceiling(notes: Notes) -> None:
    guard = TokenCeiling(1000)
    most: list[int] = []
    service = LLMService({"openai": slow_answers(most)}, log=notes, guard=guard)

    async def many() -> list[Any]:
        calls = (
            service.acall("s" * 20, "u" * 20, "openai", 90, agent=str(number))
            for number in range(50)
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(many())
    refused = [result for result in results if isinstance(result, BudgetError)]
    assert len(most) == 50 - len(refused)
    assert max(most) == 10  # ten reservations of 100 fill the pool
    assert len(refused) == 40
    assert guard.used_tokens == 10 * 40
    assert guard.reserved_tokens == 0
    assert len(notes.of("llm_refused")) == 40


def test_a_cancelled_call_keeps_its_reservation_as_lost(notes: Notes) -> None:
    guard = TokenCeiling(1000)
    service = LLMService({"openai": slow_answers([])}, log=notes, guard=guard)

    async def leave() -> None:
        call = asyncio.create_task(service.acall("", "", "openai", 90, agent="coder"))
        await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave())
    assert (guard.lost_tokens, guard.reserved_tokens) == (90, 0)
    assert notes.outcomes == ["cancelled"]


def test_the_waiting_face_refuses_inside_of_a_loop() -> None:
    service = LLMService({"openai": slow_answers([])})

    async def inside() -> None:
        with pytest.raises(ValueError, match="acall"):
            ask(service)

    asyncio.run(inside())


def test_wrong_names_and_missing_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for name, said in {
        "openai": "OPENAI_API_KEY is not set",
        "anthropic": "ANTHROPIC_API_KEY is not set",
        "opnai": "Did you mean 'openai'",
        "http://127.0.0.1:1/v1": "needs --model",
        "http://me:secret@127.0.0.1:1/v1": "Set VLLM_API_KEY instead",
        "http://127.0.0.1:1/v1?key=secret": "Set VLLM_API_KEY instead",
    }.items():
        with pytest.raises(ConfigError, match=said) as raised:
            open_provider(name)
        assert ":secret" not in str(raised.value) and "=secret" not in str(raised.value)
    service = LLMService({"openai": slow_answers([])})
    with pytest.raises(ConfigError, match="Did you mean 'openai'"):
        service.call("", "", "opena", 10, agent="coder")


def test_the_vendors_key_stays_with_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-vendor")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with StandIn([Reply(content="2")]) as server:
        provider = OpenAICompatible("m", f"{server.url}/v1")
        with LLMService({"openai": provider}) as service:
            ask(service)
        assert "sk-vendor" not in str(server.headers)


def test_a_refused_key_is_in_no_message(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("VLLM_API_KEY", "secret-of-the-test")
    with StandIn([Reply(status=401, message="wrong key secret-of-the-test")]) as server:
        provider = OpenAICompatible("m", f"{server.url}/v1")
        with (
            LLMService({"openai": provider}, log=notes) as service,
            pytest.raises(LLMError) as raised,
        ):
            ask(service)
    assert "wrong key [key]" in str(raised.value)
    assert "secret-of-the-test" not in json.dumps(notes.events) + str(raised.value)


def test_prices_are_dated_and_sourced(tmp_path: Any) -> None:
    prices = shipped_prices()
    assert prices.cost_usd("gpt-4o-mini", 10**6, 10**6) == 0.75
    assert math.isclose(prices.cost_usd("claude-3-5-haiku-latest", 10**6, 10**6) or 0.0, 4.8)
    assert prices.cost_usd("my-model", 1, 1) is None
    for price in prices.models.values():
        assert price.source.startswith("https://")
        assert len(price.as_of.split("-")) == 3
    path = tmp_path / "prices.yaml"
    path.write_text("models:\n  m:\n    input_usd_per_mtok: 1\n    output_usd_per_mtokens: 2\n")
    with pytest.raises(ConfigError, match="Did you mean 'output_usd_per_mtok'"):
        load_prices(path)


def test_anthropics_api_is_called_its_own_way(
    monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    pytest.importorskip("anthropic")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant")
    replies = [Reply(status=529), Reply(content='{"a": 1}', prompt_tokens=100)]
    with StandIn(replies) as server:
        provider = Anthropic("claude-haiku-4-5", server.url)
        with LLMService(
            {"anthropic": provider}, log=notes, retries=QUICK, sleep=no_sleep
        ) as service:
            schema = {"type": "object"}
            response = service.call("sys", "user", "anthropic", 64, schema, agent="coder")
    assert notes.outcomes == ["http_529", "ok"]
    assert (response.content, response.input_tokens, response.finish_reason) == (
        '{"a": 1}',
        100,
        "stop",
    )
    assert server.requests[1]["system"].startswith("sys\nAnswer with one JSON object")
    assert server.requests[1]["max_tokens"] == 64
    assert response.cost_usd == pytest.approx((100 * 1.0 + 5 * 5.0) / 1e6)


def test_a_schema_is_passed_to_servers_that_take_one(opened: Callable[..., Any]) -> None:
    service, server = opened(Reply())
    service.call("s", "u", "openai", 10, {"type": "object"}, agent="judge")
    wanted = server.requests[0]["response_format"]
    assert wanted["json_schema"]["schema"] == {"type": "object"}
