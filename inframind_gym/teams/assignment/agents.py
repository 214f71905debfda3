"""Agents, judge and actions; the window of assignments, Q-learning over it, and round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from inframind_gym.simulator import rng
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.rules import AGENTS, CRITERIA, PROVIDERS
from inframind_gym.teams.assignment.simulate import JUDGED_CHARS
from inframind_gym.teams.llm import LLMError, LLMService, json_object
from inframind_gym.teams.state import Ints, Keys, key_of

JUDGE_TOKENS: Final = 256  # of the judge's answer


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


# The eight actions in the order of `rules.action_index`.
ACTIONS: Final = tuple(
    TaskAssignment(agent, AgentRole(agent), LLMProvider(provider))
    for agent in AGENTS
    for provider in PROVIDERS
)


def all_agents() -> dict[str, AgentState]:
    """Return a new pool of agents, one a role, in the order of `rules.AGENTS`."""
    return {name: AgentState(name, AgentRole(name), LLMProvider.OPENAI) for name in AGENTS}


class LLMJudge:
    """Scores answers on one provider; an answer that cannot be read scores 0.5 everywhere.

    Its `log` has a mapping for each evaluation, and how the scores were read: "json", "default"
    (not at all) or "failed" (the call did, with its error).
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

        A simulated provider draws by the `context`. A call that the budget refuses raises.
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
            with suppress(ValidationError):
                scores = QualityScores.model_validate(json_object(reply.content))
                row["read"] = "json"
        self.log.append({**row, "scores": scores.model_dump()})
        return scores


# Coordinators


class LoadTracker:
    """Turns the last `window_size` assignments into a load state and a penalty, see `rules`."""

    def __init__(
        self,
        agent_ids: Sequence[str] = rules.AGENTS,
        window_size: int = rules.WINDOW,
        hot_threshold: float = rules.HOT_THRESHOLD,
        penalty_weight: float = rules.PENALTY_WEIGHT,
        max_penalty: float = rules.MAX_PENALTY,
    ) -> None:
        self.agent_ids, self.window_size = list(agent_ids), window_size
        self.hot_threshold = hot_threshold
        self.penalty_weight, self.max_penalty = penalty_weight, max_penalty
        self.recent: deque[str] = deque(maxlen=window_size)
        self.lifetime_counts = dict.fromkeys(self.agent_ids, 0)  # for reports

    @property
    def counts(self) -> Ints:
        """(N,) assignments of each agent in the window."""
        return np.array([self.recent.count(agent) for agent in self.agent_ids], np.int64)

    def record(self, agent_id: str) -> None:
        """Enter one assignment, between `get_load_penalty` and the next `get_load_state`."""
        self.recent.append(agent_id)
        self.lifetime_counts[agent_id] += 1

    def get_utilization(self) -> dict[str, float]:
        """Return the share of the window that each agent holds; all 0 while it is empty."""
        return dict(zip(self.agent_ids, rules.utilization(self.counts).tolist(), strict=True))

    def get_load_state(self) -> str:
        """Return "<agent>_hot" or "balanced", see `rules.load_state`."""
        state = int(rules.load_state(self.counts, self.hot_threshold))
        return f"{self.agent_ids[state - 1]}_hot" if state else "balanced"

    def get_load_penalty(self, agent_id: str) -> float:
        """Return the penalty of an assignment to come, see `rules.load_penalty`."""
        agent = self.agent_ids.index(agent_id)
        return float(rules.load_penalty(self.counts, agent, self.penalty_weight, self.max_penalty))

    def get_imbalance_score(self) -> float:
        """Return the coefficient of variation of the utilizations, see `rules.imbalance`."""
        return float(rules.imbalance(self.counts))


def uniform(key: Keys, stream: int, ordinal: int, place: int = 0) -> float:
    """Return the number in (0, 1) that belongs to a run's key, a stream and a place."""
    return float(rng.uniform_array(key, stream, np.array([ordinal]), place)[0])


class QLearningCoordinator:
    """Epsilon-greedy Q-learning (Watkins and Dayan 1992) over states (task type, load state).

    The first of equally good actions is taken; values are 0 at the start. `visits` counts updates,
    `history` has a mapping for each. `seed` is for draws that the caller of `select_action` does
    not bring.
    """

    def __init__(
        self,
        task_types: Sequence[str] = rules.TASK_TYPES,
        load_states: Sequence[str] = rules.LOAD_STATES,
        actions: Sequence[TaskAssignment] = ACTIONS,
        lr: float = rules.LEARNING_RATE,
        gamma: float = rules.DISCOUNT,
        epsilon: float = rules.EPSILON,
        epsilon_min: float = rules.EPSILON_MIN,
        epsilon_decay: float = rules.EPSILON_DECAY,
        *,
        seed: int = 0,
    ) -> None:
        self.task_types, self.load_states = list(task_types), list(load_states)
        self.actions, self.lr, self.gamma = list(actions), lr, gamma
        self.epsilon, self.epsilon_min, self.epsilon_decay = epsilon, epsilon_min, epsilon_decay
        states = [(t, s) for t in self.task_types for s in self.load_states]
        self.q_table = {state: np.zeros(len(self.actions)) for state in states}
        self.visits = {state: np.zeros(len(self.actions), np.int64) for state in states}
        self.history: list[dict[str, Any]] = []
        self._key, self._decisions = key_of(seed), 0

    def select_action(
        self, task_type: str, load_state: str, draws: tuple[float, float] | None = None
    ) -> tuple[int, TaskAssignment]:
        """Return an action and its index: random with probability epsilon, else the best.

        `draws` are two uniform numbers, for exploring or not, and for the place; None: own ones.
        """
        if draws is None:
            at = self._key, rng.STREAM_POLICY, self._decisions
            draws = uniform(*at), uniform(*at, 1)
        self._decisions += 1
        index = int(self.q_table[task_type, load_state].argmax())
        if draws[0] < self.epsilon:
            index = int(draws[1] * len(self.actions))
        return index, self.actions[index]

    def update(
        self,
        task_type: str,
        load_state: str,
        action_idx: int,
        reward: float,
        next_task_type: str | None,
        next_load_state: str,
    ) -> None:
        """Q += lr * (reward + gamma * max Q(next state) - Q); no next state if the type is None."""
        row = self.q_table[task_type, load_state]
        old_q, max_next_q = float(row[action_idx]), 0.0
        if next_task_type is not None:
            max_next_q = float(self.q_table[next_task_type, next_load_state].max())
        target = float(rules.td_target(reward, max_next_q, self.gamma))
        row[action_idx] = rules.q_update(old_q, target, self.lr)
        self.visits[task_type, load_state][action_idx] += 1
        state = {"task_type": task_type, "load_state": load_state, "action_idx": action_idx}
        values = {"td_target": target, "old_q": old_q, "new_q": float(row[action_idx])}
        self.history.append({**state, "reward": reward, **values})

    def decay_epsilon(self) -> None:
        """Explore less: epsilon becomes max(epsilon_min, epsilon * epsilon_decay)."""
        self.epsilon = float(rules.decayed(self.epsilon, self.epsilon_min, self.epsilon_decay))

    def policy(self, load_state: str = "balanced") -> dict[str, TaskAssignment | None]:
        """Return the best action for each task type in a load state; None where none was tried."""
        best: dict[str, TaskAssignment | None] = {}
        for task_type in self.task_types:
            tried = self.visits[task_type, load_state] > 0
            values = np.where(tried, self.q_table[task_type, load_state], -np.inf)
            best[task_type] = self.actions[int(values.argmax())] if tried.any() else None
        return best


class RoundRobin(QLearningCoordinator):
    """Takes the agents in turn, on the first provider, and learns nothing."""

    def select_action(self, *_: Any) -> tuple[int, TaskAssignment]:
        """Return the index of the next agent's action, and the action."""
        index = int(rules.action_index(self._decisions % len(AGENTS), 0))
        self._decisions += 1
        return index, self.actions[index]

    def update(self, *_: Any) -> None:
        """Learn nothing."""
