"""The judge reads what it can, and never fails on what it cannot."""

from __future__ import annotations

import pytest

from inframind_gym.teams.assignment.judge import JUDGE_SYSTEM, LLMJudge
from inframind_gym.teams.assignment.model import LLMProvider
from inframind_gym.teams.llm.service import LLMService
from inframind_gym.teams.llm.types import BudgetError
from tests.teams.assignment.scripted import GOOD, Scripted, service_of
from tests.teams.ceiling import TokenCeiling

READ = [0.9, 0.8, 0.7, 0.6]


@pytest.mark.parametrize(
    ("content", "how", "row"),
    [
        (GOOD, "json", READ),
        (f"  {GOOD}\n", "json", READ),
        (f"```json\n{GOOD}\n```", "fenced", READ),
        (f"Here you are:\n```\n{GOOD}\n```\nDone.", "fenced", READ),
        ("", "default", [0.5] * 4),
        ("I give it 8 of 10.", "default", [0.5] * 4),
        (GOOD[:-5], "default", [0.5] * 4),
        ("[0.9, 0.8]", "default", [0.5] * 4),
        (GOOD.replace("0.9", "9"), "default", [0.5] * 4),  # out of range
        (GOOD.replace("0.9", "-0.1"), "default", [0.5] * 4),
        (GOOD.replace("0.9", "NaN"), "default", [0.5] * 4),
        (GOOD.replace('"relevance": 0.9, ', ""), "default", [0.5] * 4),
        ("{" * 100_000, "default", [0.5] * 4),
    ],
)
def test_answers_of_a_judge(content: str, how: str, row: list[float]) -> None:
    service, provider = service_of(lambda request: content)
    judge = LLMJudge(service)
    scores = judge.evaluate("Add.", "coding", "coder", "4")
    assert scores.row() == row
    assert judge.log == [
        {"task_type": "coding", "agent_role": "coder", "read": how, "scores": scores.model_dump()}
    ]
    assert provider.requests[0].system == JUDGE_SYSTEM


def test_a_call_that_fails_scores_one_half_and_says_why() -> None:
    service, _ = service_of(lambda request: None)
    judge = LLMJudge(service)
    assert judge.evaluate("Add.", "coding", "coder", "4").row() == [0.5] * 4
    assert judge.log[0]["read"] == "failed"
    assert "http_400" in judge.log[0]["error"]


def test_long_answers_are_cut_and_the_provider_is_the_judges() -> None:
    service, provider = service_of(lambda request: GOOD)
    LLMJudge(service, LLMProvider.ANTHROPIC).evaluate("d", "coding", "coder", "x" * 1999 + "yyyy")
    assert provider.requests[0].user.endswith("x" * 1999 + "y")
    assert service.call_log[0]["provider"] == "anthropic"


def test_a_spent_budget_is_no_score() -> None:
    guard = TokenCeiling(20)
    service = LLMService({"openai": Scripted(lambda request: GOOD)}, guard=guard)
    with pytest.raises(BudgetError):
        LLMJudge(service).evaluate("d", "coding", "coder", "x")
