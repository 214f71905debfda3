"""Every call goes through one service: faults, budgets, accounting and events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.llm import (
    BudgetError,
    LLMError,
    LLMService,
    OpenAICompatible,
    open_provider,
    shipped_prices,
)
from inframind_gym.teams.token_budget.app import BudgetController
from inframind_gym.teams.token_budget.rules import TeamState
from inframind_gym.teams.token_budget.settings import load_settings
from tests.live.vllm_server.fake import Answer, FakeServer, in_order
from tests.teams.token_budget.runs import Log

pytest.importorskip("openai")
SECRET = "secret-of-the-test"
Opened = Callable[..., tuple[LLMService, FakeServer, Log, BudgetController]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A service on a scripted server, the server, the log and the budget."""
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    left: list[Any] = []

    def make(
        *replies: Answer, ceiling: int = 10_000
    ) -> tuple[LLMService, FakeServer, Log, BudgetController]:
        server, log = FakeServer(in_order(*replies)), Log()
        guard = BudgetController(TeamState(load_settings(), 1, 0, 20))
        guard.state.budget[:] = ceiling
        provider = OpenAICompatible("gpt-4o-mini", f"{server.url}/v1")
        service = LLMService(
            {"openai": provider}, log=log, guard=guard, max_retries=2, timeout_s=2.0
        )
        left.extend((service, server))
        return service, server, log, guard

    yield make
    for each in left:
        each.close()


def ask(service: LLMService, schema: dict[str, Any] | None = None) -> Any:
    return service.call("Be brief.", "1 + 1?", "openai", 100, schema, agent="coder")


def completion(content: Any, tokens: float = 1) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}  # the SDK mends only what is whole
    return json.dumps({"choices": [choice], "usage": usage}).encode()


# Contents that are no text, and counts of tokens that are none.
ODD = [completion(content) for content in ([{"type": "text"}], {"a": 1}, 3)]
ODD += [completion("2", tokens) for tokens in (math.inf, 1e30, 10**30, 2**24 + 1, 1.5)]


def outcomes(log: Log) -> list[str]:
    return [data["outcome"] for data in log.of("llm_attempt")]


def test_an_answer_is_counted_and_priced(opened: Opened) -> None:
    service, server, log, _ = opened(Answer("2", prompt_tokens=1000, tokens=500))
    response = ask(service, {"type": "object"})
    assert (response.content, response.total_tokens) == ("2", 1500)
    assert response.cost_usd == pytest.approx((1000 * 0.15 + 500 * 0.60) / 1e6)
    assert response.latency_s > 0.0
    assert server.requests[0]["max_tokens"] == 100
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    summary = service.get_cost_summary()
    assert summary["calls"] == service.call_count == 1
    assert summary["by_agent"]["coder"]["cost_usd"] == service.total_cost == response.cost_usd
    assert log.of("llm_request")[0]["user"] == "1 + 1?"
    assert SECRET not in json.dumps(log.events)


@pytest.mark.parametrize("fault", [Answer(status=429), Answer(status=503), Answer(reset_after=0)])
def test_what_may_pass_is_tried_again(opened: Opened, fault: Answer) -> None:
    service, server, log, guard = opened(fault, Answer("2", prompt_tokens=10, tokens=5))
    assert ask(service).content == "2"
    assert outcomes(log) == ["ok"]
    assert (len(server.requests), service.call_count) == (2, 1)
    assert (guard.state.spent[0], guard.lost) == (15, 0)


@pytest.mark.parametrize(
    ("fault", "outcome", "sent"),
    [
        (Answer(status=500), "http_500", 3),
        (Answer(hang=True), "timeout", 1),
        (Answer(status=400), "http_400", 1),
        (Answer(status=401, message=f"wrong key {SECRET}"), "http_401", 1),
        (Answer(status=404), "http_404", 1),
        (Answer(whole=b'{"choices": [{"mess'), "malformed", 1),
        (Answer(whole=b'{"choices": []}'), "malformed", 1),
        (Answer(whole=b"[1, 2]"), "malformed", 1),
        *((Answer(whole=odd), "malformed", 1) for odd in ODD),
    ],
)
def test_what_does_not_pass_is_an_error(
    opened: Opened, fault: Answer, outcome: str, sent: int
) -> None:
    service, server, log, guard = opened(fault)
    with pytest.raises(LLMError, match=outcome) as raised:
        ask(service)
    assert raised.value.outcome == outcome and outcomes(log) == [outcome]
    assert len(server.requests) == sent
    # A prompt of 5 tokens and an answer of 100, where nobody knows what was spent.
    assert guard.state.spent[0] == guard.lost == (105 if outcome in ("malformed", "timeout") else 0)
    assert SECRET not in json.dumps(log.events) + str(raised.value)


def test_a_model_that_ignores_its_limit_is_charged_in_full(opened: Opened) -> None:
    service, server, log, _ = opened(Answer(whole=completion("x", 400.0)), ceiling=200)
    assert str(ask(service).output_tokens) == "400"  # a whole number, if a float
    assert log.of("llm_attempt")[0]["over_max_tokens"] == 300
    with pytest.raises(BudgetError):
        ask(service)
    assert len(server.requests) == 1  # the refused call was not sent
    assert log.of("llm_refused")[0]["agent"] == "coder"


def test_a_server_without_usage_is_estimated(opened: Opened) -> None:
    service, _, log, _ = opened(Answer("four letters each", usage=False))
    response = ask(service)
    assert (response.input_tokens, response.output_tokens) == (5, 5)
    assert log.of("llm_attempt")[0]["tokens_estimated"] is True


def test_half_of_a_surrogate_pair_is_replaced(opened: Opened) -> None:
    service, _, log, _ = opened(Answer(whole=completion("a \ud800 b")))
    assert ask(service).content == log.of("llm_attempt")[0]["content"] == "a ? b"


def test_a_cancelled_call_keeps_its_reservation_as_lost(opened: Opened) -> None:
    service, _, log, guard = opened(Answer(hang=True))

    async def leave() -> None:
        call = asyncio.create_task(service.acall("", "", "openai", 90, agent="coder"))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave())
    assert guard.state.spent[0] == guard.lost == 90
    assert outcomes(log) == ["cancelled"]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("opnai", "openai"),
        ("http://127.0.0.1:1/v1", "--model"),
        ("http://me:hidden@127.0.0.1:1/v1", "VLLM_API_KEY"),
        ("http://127.0.0.1:1/v1?key=hidden", "VLLM_API_KEY"),
    ],
)
def test_wrong_names_and_missing_keys(
    name: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=named) as raised:
        open_provider(name)
    assert "hidden" not in str(raised.value)


def test_the_vendors_key_stays_with_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-vendor")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with FakeServer() as server:
        with LLMService({"openai": OpenAICompatible("m", f"{server.url}/v1")}) as service:
            ask(service)
        assert "sk-vendor" not in str(server.headers)


def test_anthropic_is_reached_by_its_compatible_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant")
    good = Answer('{"a": 1}', prompt_tokens=100, tokens=5)
    with FakeServer(in_order(Answer(status=529), good)) as server:
        provider = OpenAICompatible("claude-haiku-4-5", f"{server.url}/v1", vendor="anthropic")
        with LLMService({"anthropic": provider}) as service:
            schema = {"type": "object"}
            response = service.call("sys", "user", "anthropic", 64, schema, agent="coder")
    assert (response.content, response.input_tokens) == ('{"a": 1}', 100)
    system = server.requests[1]["messages"][0]["content"]
    assert system.startswith("sys\nAnswer with one JSON object")  # a schema goes into the prompt
    assert "Bearer sk-ant" in server.headers[1].values()
    assert response.cost_usd == pytest.approx((100 * 1.0 + 5 * 5.0) / 1e6)


def test_prices_are_dated_and_sourced() -> None:
    prices = shipped_prices()
    assert prices.models["gpt-4o-mini"].cost_usd(10**6, 10**6) == 0.75
    for price in prices.models.values():
        assert price.source.startswith("https://") and len(price.as_of.split("-")) == 3
