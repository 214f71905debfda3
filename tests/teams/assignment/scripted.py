"""A provider of tests: answers come from a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.agents import QLearningCoordinator, all_actions
from inframind_gym.teams.llm import Completion, Guard, LLMError, LLMRequest, LLMService
from tests.teams.token_budget.runs import Model


def learner(**arguments: Any) -> QLearningCoordinator:
    """An untaught coordinator of the team."""
    return QLearningCoordinator(rules.TASK_TYPES, rules.LOAD_STATES, all_actions(), **arguments)


GOOD = '{"relevance": 0.9, "accuracy": 0.8, "completeness": 0.7, "agent_match": 0.6}'


def service_of(
    say: Callable[[LLMRequest], str | None], guard: Guard | None = None
) -> tuple[LLMService, Model]:
    """A service whose two providers say what a function returns; None is a call that fails."""

    def answer(request: LLMRequest) -> Completion:
        content = say(request)
        if content is None:
            raise LLMError("http_400", "no")
        return Completion(content, 100, 50, latency_s=1.0)

    provider = Model(answer)
    provider.model = "gpt-4o-mini"
    return LLMService({"openai": provider, "anthropic": provider}, guard=guard), provider
