"""Data of the assignment team: roles, providers, tasks, actions, scores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, Field

from inframind_gym.teams.assignment.rules import (
    AGENTS,
    CRITERIA,
    NUM_ACTIONS,
    PROVIDERS,
    agent_of,
    provider_of,
)


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


@dataclass(slots=True)
class AgentState:
    """One agent and what it has done.

    Attributes:
        id: Its name.
        role: Its role.
        provider: The provider that answers where none is chosen.
        completed_tasks: Answers that were judged.
        total_reward: Sum of their adjusted rewards.
        avg_quality: Mean adjusted reward (a reward, in spite of its name).
    """

    id: str
    role: AgentRole
    provider: LLMProvider
    completed_tasks: int = 0
    total_reward: float = 0.0
    avg_quality: float = 0.0

    def credit(self, adjusted_reward: float) -> None:
        """Count an answer."""
        self.completed_tasks += 1
        self.total_reward += adjusted_reward
        self.avg_quality = self.total_reward / self.completed_tasks


class QualityScores(BaseModel):
    """Scores of the judge."""

    relevance: float = Field(ge=0, le=1)
    accuracy: float = Field(ge=0, le=1)
    completeness: float = Field(ge=0, le=1)
    agent_match: float = Field(ge=0, le=1)
    reasoning: str = Field(default="", max_length=2000)

    def row(self) -> list[float]:
        """Return the four scores in the order of `rules.CRITERIA`."""
        return [getattr(self, criterion) for criterion in CRITERIA]


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """One action: who does the task, and on which provider.

    Attributes:
        agent_id: Name of the agent.
        role: Its role.
        provider: The provider.
    """

    agent_id: str
    role: AgentRole
    provider: LLMProvider

    def key(self) -> str:
        """Return the action as one string."""
        return f"{self.agent_id}:{self.provider}"


def all_actions() -> tuple[TaskAssignment, ...]:
    """Return the eight actions in the order of `rules.action_index`."""
    pairs = [(AGENTS[agent_of(a)], PROVIDERS[provider_of(a)]) for a in range(NUM_ACTIONS)]
    return tuple(
        TaskAssignment(agent, AgentRole(agent), LLMProvider(provider)) for agent, provider in pairs
    )


def all_agents() -> dict[str, AgentState]:
    """Return a new pool of agents, one a role, in the order of `rules.AGENTS`."""
    return {name: AgentState(name, AgentRole(name), LLMProvider.OPENAI) for name in AGENTS}
