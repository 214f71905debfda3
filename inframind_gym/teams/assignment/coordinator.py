"""Coordinators: the window of assignments, Q-learning over it, and fixed rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator import rng
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.rules import Ties
from inframind_gym.teams.assignment.simulate import Keys, key_of

FIXED_ROUTERS: Final = ("random", "round_robin", "least_busy")
ActionT = TypeVar("ActionT")


class LoadTracker:
    """Counts the last `window_size` assignments and turns them into a state and a penalty.

    Args:
        agent_ids: Agents among whom work is shared.
        window_size: Assignments that the window remembers.
        hot_threshold: An agent is hot above this multiple of its fair share.
        penalty_weight: Penalty for each fair share in excess of the first.
        max_penalty: Cap of the penalty.

    Attributes:
        recent: The window, oldest first.
        lifetime_counts: Assignments ever recorded, for reports only.
        load_states: "balanced", and "<agent>_hot" for each agent.
    """

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
        self.load_states = ["balanced", *(f"{agent}_hot" for agent in self.agent_ids)]
        self.recent: deque[str] = deque(maxlen=window_size)
        self.lifetime_counts = dict.fromkeys(self.agent_ids, 0)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(N,) assignments of each agent in the window."""
        return np.array([self.recent.count(agent) for agent in self.agent_ids], np.int64)

    def record(self, agent_id: str) -> None:
        """Enter one assignment; the oldest leaves a full window.

        To be called after `get_load_penalty` and before the next `get_load_state`.
        """
        self.recent.append(agent_id)
        self.lifetime_counts[agent_id] += 1

    def get_utilization(self) -> dict[str, float]:
        """Return the share of the window that each agent holds; all 0 while it is empty."""
        return dict(zip(self.agent_ids, rules.utilization(self.counts).tolist(), strict=True))

    def get_load_state(self) -> str:
        """Return "<agent>_hot" or "balanced", see `rules.load_state`."""
        return self.load_states[int(rules.load_state(self.counts, self.hot_threshold))]

    def get_load_penalty(self, agent_id: str) -> float:
        """Return the penalty of an assignment to come, see `rules.load_penalty`."""
        agent = self.agent_ids.index(agent_id)
        return float(rules.load_penalty(self.counts, agent, self.penalty_weight, self.max_penalty))

    def get_imbalance_score(self, ddof: int = 0) -> float:
        """Return the coefficient of variation of the utilizations, see `rules.imbalance`."""
        return float(rules.imbalance(self.counts, ddof))


def uniform(key: Keys, stream: int, ordinal: int, place: int = 0) -> float:
    """Return the number in (0, 1) that belongs to a run's key, a stream and a place."""
    return float(rng.uniform_array(key, stream, np.array([ordinal]), place)[0])


class QLearningCoordinator(Generic[ActionT]):
    """Epsilon-greedy Q-learning (Watkins and Dayan 1992) over states (task type, load state).

    Args:
        task_types, load_states: Halves of the state.
        actions: What may be chosen.
        lr: Learning rate.
        gamma: Discount.
        epsilon: Probability of exploring at the start.
        epsilon_min: The least that it decays to.
        epsilon_decay: Its factor at every `decay_epsilon`.
        ties: Which of equally good actions is taken: the first, or a random one.
        seed: For the draws of `select_action` when the caller brings none.
        keep_history: Let `history` grow by one record an update.

    Attributes:
        q_table: (task type, load state) -> (actions,) values, all 0 at the start.
        visits: (task type, load state) -> (actions,) updates.
        history: One mapping for each update.
    """

    def __init__(
        self,
        task_types: Sequence[str],
        load_states: Sequence[str],
        actions: Sequence[ActionT],
        lr: float = rules.LEARNING_RATE,
        gamma: float = rules.DISCOUNT,
        epsilon: float = rules.EPSILON,
        epsilon_min: float = rules.EPSILON_MIN,
        epsilon_decay: float = rules.EPSILON_DECAY,
        *,
        ties: Ties = "first",
        seed: int = 0,
        keep_history: bool = True,
    ) -> None:
        self.task_types, self.load_states = list(task_types), list(load_states)
        self.actions = list(actions)
        self.lr, self.gamma, self.ties = lr, gamma, ties
        self.epsilon, self.epsilon_min, self.epsilon_decay = epsilon, epsilon_min, epsilon_decay
        states = [(t, s) for t in self.task_types for s in self.load_states]
        self.q_table = {state: np.zeros(len(self.actions)) for state in states}
        self.visits = {state: np.zeros(len(self.actions), np.int64) for state in states}
        self.keep_history = keep_history
        self.history: list[dict[str, Any]] = []
        self._key, self._decisions = key_of(seed), 0

    def select_action(
        self,
        task_type: str,
        load_state: str,
        *,
        allowed: NDArray[np.bool_] | None = None,
        draws: tuple[float, float] | None = None,
    ) -> tuple[int, ActionT]:
        """Return an action and its index: random with probability epsilon, else one of the best.

        Args:
            task_type, load_state: The state.
            allowed: (actions,) which may be chosen; all of them if None.
            draws: Two uniform numbers, for exploring or not, and for the place; own ones if None.
        """
        if draws is None:
            at = self._key, rng.STREAM_POLICY, self._decisions
            draws, self._decisions = (uniform(*at), uniform(*at, 1)), self._decisions + 1
        mask = np.ones(len(self.actions), np.bool_) if allowed is None else allowed
        values = np.where(mask, self.q_table[task_type, load_state], -np.inf)
        if draws[0] < self.epsilon:
            choices, drawn = np.flatnonzero(mask), True
        else:
            choices, drawn = np.flatnonzero(values == values.max()), self.ties == "random"
        index = int(choices[int(draws[1] * len(choices)) if drawn else 0])
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
        if self.keep_history:
            state = {"task_type": task_type, "load_state": load_state, "action_idx": action_idx}
            values = {"td_target": target, "old_q": old_q, "new_q": float(row[action_idx])}
            self.history.append({**state, "reward": reward, **values})

    def decay_epsilon(self) -> None:
        """Explore less: epsilon becomes max(epsilon_min, epsilon * epsilon_decay)."""
        self.epsilon = float(rules.decayed(self.epsilon, self.epsilon_min, self.epsilon_decay))

    def policy(self, load_state: str = "balanced") -> dict[str, ActionT | None]:
        """Return the best action for each task type in a load state; None where none was tried."""
        best: dict[str, ActionT | None] = {}
        for task_type in self.task_types:
            tried = self.visits[task_type, load_state] > 0
            values = np.where(tried, self.q_table[task_type, load_state], -np.inf)
            best[task_type] = self.actions[int(values.argmax())] if tried.any() else None
        return best


class FixedRouter:
    """A router that learns nothing: "random", "round_robin" over the agents, or "least_busy".

    The last is the rule of LiteLLM's "least-busy" strategy (its `router_strategy/least_busy.py` as
    of 2026): the first of those with the fewest calls in flight. The team's calls come one after
    the other, so that none is in flight at a decision and all go to the first action.

    Args:
        name: One of FIXED_ROUTERS.
        actions: What may be chosen.
        seed: Of the random ones.
    """

    def __init__(self, name: str, actions: Sequence[Any], seed: int = 0) -> None:
        self.name, self.actions, self.epsilon = name, list(actions), 0.0
        self._key, self._decisions = key_of(seed), 0

    def select_action(self, task_type: str, load_state: str) -> tuple[int, Any]:
        """Return the index of the chosen action, and the action."""
        index = 0
        if self.name == "round_robin":
            index = int(rules.in_turn(self._decisions))
        elif self.name == "random":
            draw = uniform(self._key, rng.STREAM_POLICY, self._decisions)
            index = int(draw * len(self.actions))
        self._decisions += 1
        return index, self.actions[index]

    def update(self, *_: Any) -> None:
        """Learn nothing."""

    def decay_epsilon(self) -> None:
        """Change nothing."""


Router = QLearningCoordinator[Any] | FixedRouter
