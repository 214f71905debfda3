"""Rules of the assignment team: load of the agents, reward, Q-learning.

Pure functions on arrays of one team or of n teams, with the teams along the first axes. Application
and environment call the same ones. `counts` (..., N) are the assignments of each of N agents among
the last `WINDOW` ones.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from inframind_gym.teams.state import Floats, Ints

Agent = Literal["analyst", "coder", "researcher", "validator"]
Provider = Literal["openai", "anthropic"]
TaskType = Literal["analysis", "coding", "research", "validation"]
Arrivals = Literal["uniform", "skewed", "bursty", "drifting"]  # orders of tasks
Router = Literal["q_learning", "round_robin"]  # of the application
AGENTS: Final[tuple[Agent, ...]] = get_args(Agent)
PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)
TASK_TYPES: Final[tuple[TaskType, ...]] = get_args(TaskType)
ARRIVALS: Final[tuple[Arrivals, ...]] = get_args(Arrivals)
BALANCED: Final = 0  # load state; 1 + agent: that agent is hot
LOAD_STATES: Final = ("balanced", *(f"{agent}_hot" for agent in AGENTS))
CRITERIA: Final = ("relevance", "accuracy", "completeness", "agent_match")  # of the judge
NUM_ACTIONS: Final = len(AGENTS) * len(PROVIDERS)
NUM_STATES: Final = len(TASK_TYPES) * len(LOAD_STATES)

WINDOW: Final = 8  # assignments, twice the number of agents
HOT_THRESHOLD: Final = 1.5  # fair shares above which an agent is hot
MIN_RECORDS: Final = 3  # below this many assignments nobody is hot
PENALTY_WEIGHT: Final = 0.15  # of each fair share in excess of the first
MAX_PENALTY: Final = 0.20
COST_WEIGHT: Final = 0.10
COST_SCALE_USD: Final = 0.002
LATENCY_WEIGHT: Final = 0.05
LATENCY_SCALE_S: Final = 5.0
LEARNING_RATE: Final = 0.15
DISCOUNT: Final = 0.95
EPSILON: Final = 1.0  # a table knows nothing at the start
EPSILON_MIN: Final = 0.05
EPSILON_DECAY: Final = 0.98


def action_index(agent: Any, provider: Any) -> Any:
    """Return the action of an agent and a provider, both by their places in AGENTS, PROVIDERS."""
    return agent * len(PROVIDERS) + provider


def agent_of(action: Any) -> Any:
    """Return the agent of an action."""
    return action // len(PROVIDERS)


def provider_of(action: Any) -> Any:
    """Return the provider of an action."""
    return action % len(PROVIDERS)


def state_index(task_type: Any, load_state: Any) -> Any:
    """Return the row of the Q-table: task type times 5 plus load state."""
    return task_type * len(LOAD_STATES) + load_state


def window_counts(window: ArrayLike, num_agents: int = len(AGENTS)) -> Ints:
    """Return the counts (..., N) of a window (..., k) of agents; negative places are empty."""
    agents = np.asarray(window, np.int64)
    return np.asarray((agents[..., None] == np.arange(num_agents)).sum(axis=-2), np.int64)


def utilization(counts: ArrayLike) -> Floats:
    """Return each agent's share of the window, (..., N); all 0 while it is empty."""
    counts = np.asarray(counts, np.int64)
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1))


def load_state(counts: ArrayLike, hot_threshold: float = HOT_THRESHOLD) -> Ints:
    """Return the load state, (...): 1 + the busiest agent if it is hot, else BALANCED.

    An agent is hot strictly above `hot_threshold` fair shares, from `MIN_RECORDS` assignments on.
    Ties go to the first agent.
    """
    counts = np.asarray(counts, np.int64)
    hot = utilization(counts).max(axis=-1) > (1.0 / counts.shape[-1]) * hot_threshold
    hot &= counts.sum(axis=-1) >= MIN_RECORDS
    return np.asarray(np.where(hot, 1 + counts.argmax(axis=-1), BALANCED))


def load_penalties(
    counts: ArrayLike, penalty_weight: float = PENALTY_WEIGHT, max_penalty: float = MAX_PENALTY
) -> Floats:
    """Return min(penalty_weight * max(0, utilization / fair share - 1), max_penalty), (..., N).

    That is the penalty of each agent if it takes the task; `counts` (..., N) are those before the
    assignment is recorded.
    """
    shares = utilization(counts)
    excess = np.maximum(shares / (1.0 / shares.shape[-1]) - 1.0, 0.0)
    return np.asarray(np.minimum(excess * penalty_weight, max_penalty))


def load_penalty(counts: ArrayLike, agent: ArrayLike, *limits: float) -> Floats:
    """Return the penalty of the agent (...) that takes the task, (...); see `load_penalties`."""
    chosen = np.asarray(agent, np.int64)[..., None]
    return np.take_along_axis(load_penalties(counts, *limits), chosen, axis=-1)[..., 0]


def waiting_penalty(wait_s: ArrayLike) -> Floats:
    """Return the load penalty of calls that waited so long before servers took them, (...)."""
    share = np.minimum(np.asarray(wait_s) / LATENCY_SCALE_S, 1.0)
    return np.asarray(MAX_PENALTY * share)


def imbalance(counts: ArrayLike) -> Floats:
    """Return the coefficient of variation of the utilizations, (...); 0 for an empty window.

    The standard deviation is the population's: one agent with all work of four has sqrt(3).
    """
    counts = np.asarray(counts, np.int64)
    agents, total = counts.shape[-1], counts.sum(axis=-1)
    squared = np.square(counts).sum(axis=-1) * agents - total**2  # 0 if all have the same
    return np.asarray(np.sqrt(squared / np.maximum(total, 1) ** 2))


def raw_reward(scores: ArrayLike, cost_usd: ArrayLike, latency_s: ArrayLike) -> Floats:
    """Return the reward of an answer before load counts, (...) in [0, 1].

    clip(mean score - 0.10 min(cost / 0.002 USD, 1) - 0.05 min(latency / 5 s, 1), 0, 1), with the
    judge's `scores` (..., 4) in the order of CRITERIA, and cost and latency (...) of the call.
    """
    quality = np.asarray(scores, np.float64).mean(axis=-1)
    cost = np.minimum(np.asarray(cost_usd, np.float64) / COST_SCALE_USD, 1.0)
    latency = np.minimum(np.asarray(latency_s, np.float64) / LATENCY_SCALE_S, 1.0)
    return np.asarray(np.clip(quality - COST_WEIGHT * cost - LATENCY_WEIGHT * latency, 0.0, 1.0))


def adjusted_reward(raw: ArrayLike, penalty: ArrayLike) -> Floats:
    """Return max(0, raw reward - load penalty), (...)."""
    return np.asarray(np.maximum(np.asarray(raw) - np.asarray(penalty), 0.0))


def td_target(reward: Any, max_next_q: Any, discount: float = DISCOUNT) -> Any:
    """Return reward + discount * max Q of the next state; `max_next_q` is 0 if there is none."""
    return reward + discount * max_next_q


def q_update(q: Any, target: Any, learning_rate: float = LEARNING_RATE) -> Any:
    """Return the new value of cells of the Q-table: q + learning_rate * (target - q)."""
    return q + learning_rate * (target - q)


def decayed(epsilon: Any, epsilon_min: float, decay: float = EPSILON_DECAY) -> Any:
    """Return the next exploration rate, max(epsilon_min, epsilon * decay)."""
    return np.maximum(epsilon_min, epsilon * decay)
