"""Agents, judge and actions of the team."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.teams.assignment.rules import AGENTS, CRITERIA, PROVIDERS
from inframind_gym.teams.assignment.simulate import JUDGED_CHARS
from inframind_gym.teams.llm import LLMError, LLMService

JUDGE_TOKENS: Final = 256  # of the judge's answer
_FENCE: Final = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL | re.IGNORECASE)


class LLMProvider(StrEnum):
    """The two providers of an agent's answer."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class AgentRole(StrEnum):
    """The four roles; each agent has one, by whose name it goes."""

    RESEARCHER = "researcher"
    ANALYST = "analyst"
    CODER = "coder"
    VALIDATOR = "validator"


AGENT_SYSTEM: Final = {  # system prompt of each role
    AgentRole.RESEARCHER: "You are a researcher. Gather what is known about the task, name where "
    "it comes from, say what is uncertain. Be concise.",
    AgentRole.ANALYST: "You are an analyst. Break the task down, weigh the numbers, state what "
    "follows from them. Be concise.",
    AgentRole.CODER: "You are a programmer. Write correct, readable code with the tests that it "
    "needs, and explain it in a few lines.",
    AgentRole.VALIDATOR: "You are a validator. Look for errors, contradictions and gaps, and give "
    "a clear verdict with reasons. Be concise.",
}
JUDGE_SYSTEM: Final = (
    "You judge the answer of an agent to a task. Answer with one JSON object and nothing else: "
    '{"relevance": x, "accuracy": x, "completeness": x, "agent_match": x, "reasoning": "..."}. '
    "Each x is a number from 0 to 1: does the answer address the task, is it right, is anything "
    "missing, and is the agent's role the right one for this type of task. Reasoning: one sentence."
)


@dataclass(slots=True)
class AgentState:
    """One agent and what it has done."""

    id: str
    role: AgentRole
    provider: LLMProvider  # that answers where none is chosen
    completed_tasks: int = 0
    total_reward: float = 0.0  # adjusted
    avg_quality: float = 0.0  # mean adjusted reward, in spite of its name


class QualityScores(BaseModel):
    """Scores of the judge."""

    relevance: float = Field(ge=0, le=1)
    accuracy: float = Field(ge=0, le=1)
    completeness: float = Field(ge=0, le=1)
    agent_match: float = Field(ge=0, le=1)
    reasoning: str = Field(default="", max_length=2000)


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """One action: the agent of a task, its role, and its provider."""

    agent_id: str
    role: AgentRole
    provider: LLMProvider

    def key(self) -> str:
        """Return the action as one string."""
        return f"{self.agent_id}:{self.provider}"


def all_actions() -> tuple[TaskAssignment, ...]:
    """Return the eight actions in the order of `rules.action_index`."""
    pairs = [(agent, provider) for agent in AGENTS for provider in PROVIDERS]
    return tuple(TaskAssignment(a, AgentRole(a), LLMProvider(p)) for a, p in pairs)


def all_agents() -> dict[str, AgentState]:
    """Return a new pool of agents, one a role, in the order of `rules.AGENTS`."""
    return {name: AgentState(name, AgentRole(name), LLMProvider.OPENAI) for name in AGENTS}


class LLMJudge:
    """Scores answers on one provider; an answer that cannot be read scores 0.5 everywhere.

    Attributes:
        log: One mapping for each evaluation: task_type, agent_role, scores, and how they were read:
            "json", "fenced", "default" (not at all) or "failed" (the call did, with its error).
    """

    def __init__(self, llm_service: LLMService, provider: LLMProvider = LLMProvider.OPENAI) -> None:
        self.llm_service, self.provider = llm_service, provider
        self.log: list[dict[str, Any]] = []

    def evaluate(
        self,
        task_desc: str,
        task_type: str,
        agent_role: str,
        output: str,
        context: Mapping[str, Any] | None = None,
    ) -> QualityScores:
        """Return the scores of an answer, of which the first 2,000 characters are judged.

        `context` is the place that a simulated provider draws by.

        Raises:
            BudgetError: The service's budget refused the call.
        """
        row = {"task_type": task_type, "agent_role": str(agent_role), "read": "default"}
        scores = QualityScores(**dict.fromkeys(CRITERIA, 0.5), reasoning="no scores were read")
        text = f"Task ({task_type}): {task_desc}\nAgent: {agent_role}\nAnswer:\n"
        request = JUDGE_SYSTEM, text + output[:JUDGED_CHARS], self.provider, JUDGE_TOKENS
        schema = QualityScores.model_json_schema()
        try:
            reply = self.llm_service.call(*request, schema, agent="judge", context=context)
        except LLMError as failure:
            row |= {"read": "failed", "error": str(failure)}
        else:
            fence = _FENCE.search(reply.content)
            for how, text in (("fenced", fence[1] if fence else ""), ("json", reply.content)):
                with suppress(ConfigError, ValidationError):
                    scores = QualityScores.model_validate(parse_json(text.strip(), "scores"))
                    row["read"] = how
        self.log.append({**row, "scores": scores.model_dump()})
        return scores
