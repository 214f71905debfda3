"""A provider of tests: answers come from a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.agents import QLearningCoordinator, all_actions
from inframind_gym.teams.llm import Completion, Guard, LLMError, LLMRequest, LLMService


def learner(**arguments: Any) -> QLearningCoordinator:
    """An untaught coordinator of the team."""
    return QLearningCoordinator(rules.TASK_TYPES, rules.LOAD_STATES, all_actions(), **arguments)


GOOD = '{"relevance": 0.9, "accuracy": 0.8, "completeness": 0.7, "agent_match": 0.6}'


class Scripted:
    """Says what a function of the request returns; None is a call that fails for good."""

    is_simulated = False
    model = "gpt-4o-mini"

    def __init__(self, say: Callable[[LLMRequest], str | None]) -> None:
        self.say = say
        self.requests: list[LLMRequest] = []

    async def complete(self, request: LLMRequest) -> Completion:
        self.requests.append(request)
        content = self.say(request)
        if content is None:
            raise LLMError("http_400", "no")
        return Completion(content, 100, 50, latency_s=1.0)

    async def aclose(self) -> None:
        pass


def service_of(
    say: Callable[[LLMRequest], str | None], guard: Guard | None = None
) -> tuple[LLMService, Scripted]:
    """A service whose two providers are the same."""
    provider = Scripted(say)
    providers = {"openai": provider, "anthropic": provider}
    return LLMService(providers, guard=guard), provider
