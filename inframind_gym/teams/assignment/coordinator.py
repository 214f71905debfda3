"""Coordinators: the window of assignments, Q-learning over it, and fixed rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator import rng
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.rules import Ties
from inframind_gym.teams.assignment.simulate import key_of

FIXED_ROUTERS: Final = ("random", "round_robin", "least_busy")


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

    Raises:
        ConfigError: There are no agents, one is given twice, or the window has no length.
    """

    def __init__(
        self,
        agent_ids: Sequence[str] = rules.AGENTS,
        window_size: int = rules.WINDOW,
        hot_threshold: float = rules.HOT_THRESHOLD,
        penalty_weight: float = rules.PENALTY_WEIGHT,
        max_penalty: float = rules.MAX_PENALTY,
    ) -> None:
        if not agent_ids or len(set(agent_ids)) != len(agent_ids) or window_size < 1:
            raise ConfigError(
                f"agent_ids {list(agent_ids)} must be distinct and at least one, window_size "
                f"{window_size} at least 1."
            )
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

        Raises:
            ConfigError: There is no such agent.
        """
        self._place(agent_id)
        self.recent.append(agent_id)
        self.lifetime_counts[agent_id] += 1

    def get_utilization(self) -> dict[str, float]:
        """Return the share of the window that each agent holds; all 0 while it is empty."""
        return dict(zip(self.agent_ids, rules.utilization(self.counts).tolist(), strict=True))

    def get_load_state(self) -> str:
        """Return "<agent>_hot" or "balanced", see `rules.load_state`."""
        return self.load_states[int(rules.load_state(self.counts, self.hot_threshold))]

    def get_load_penalty(self, agent_id: str) -> float:
        """Return the penalty of an assignment that is not recorded yet, see `rules.load_penalty`.

        Raises:
            ConfigError: There is no such agent.
        """
        agent = self._place(agent_id)
        return float(rules.load_penalty(self.counts, agent, self.penalty_weight, self.max_penalty))

    def get_imbalance_score(self, ddof: int = 0) -> float:
        """Return the coefficient of variation of the utilizations, see `rules.imbalance`."""
        return float(rules.imbalance(self.counts, ddof))

    def _place(self, agent_id: str) -> int:
        if agent_id not in self.lifetime_counts:
            raise ConfigError(unknown("agent", agent_id, self.agent_ids))
        return self.agent_ids.index(agent_id)


class Draws:
    """Uniform numbers of one run's decisions, each a function of the seed and its place."""

    def __init__(self, seed: int) -> None:
        self._key = key_of(seed)

    def at(self, stream: int, ordinal: int, place: int = 0) -> float:
        """Return the number in (0, 1) that belongs to a stream and a place."""
        return float(rng.uniform_array(self._key, stream, np.array([ordinal]), place)[0])


class Action(Protocol):
    """Named object of a choice."""

    def key(self) -> str:
        """Return the action as one string."""
        ...


ActionT = TypeVar("ActionT", bound=Action)


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
        self._draws, self._decisions = Draws(seed), 0

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
            first, second = (self._draws.at(rng.STREAM_POLICY, self._decisions, i) for i in (0, 1))
            draws, self._decisions = (first, second), self._decisions + 1
        mask = np.ones(len(self.actions), np.bool_) if allowed is None else allowed
        if draws[0] < self.epsilon:
            matches = np.flatnonzero(mask)
            index = int(matches[int(draws[1] * len(matches))])
        else:
            values = np.where(mask, self.q_table[task_type, load_state], -np.inf)
            best = np.flatnonzero(values == values.max())
            index = int(best[0 if self.ties == "first" else int(draws[1] * len(best))])
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
            self.history.append(
                {
                    "task_type": task_type,
                    "load_state": load_state,
                    "action": self.actions[action_idx].key(),
                    "reward": reward,
                    "td_target": target,
                    "old_q": old_q,
                    "new_q": float(row[action_idx]),
                }
            )

    def ended(self, action_idx: int) -> None:
        """Ignore the end of a call: the table learns from rewards alone."""

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
    """A router that learns nothing: "random" actions, "round_robin" over the agents, "least_busy".

    The last is the rule of LiteLLM's "least-busy" strategy (its `router_strategy/least_busy.py` as
    of 2026): a call raises its deployment's count, its end lowers it, and the comparison is strict.
    Where calls come one after the other, all of them go to the first deployment.

    Args:
        name: One of FIXED_ROUTERS.
        actions: What may be chosen.
        seed: Of the random ones.

    Attributes:
        in_flight: Calls of each action that have not ended.
    """

    def __init__(self, name: str, actions: Sequence[Any], seed: int = 0) -> None:
        self.name, self.actions, self.epsilon = name, list(actions), 0.0
        self.in_flight = [0] * len(self.actions)
        self._draws, self._decisions = Draws(seed), 0

    def select_action(self, task_type: str, load_state: str) -> tuple[int, Any]:
        """Return the index of the chosen action, and the action."""
        if self.name == "least_busy":
            index = self.in_flight.index(min(self.in_flight))
        elif self.name == "round_robin":
            index = int(rules.in_turn(self._decisions))
        else:
            draw = self._draws.at(rng.STREAM_POLICY, self._decisions)
            index = int(draw * len(self.actions))
        self._decisions += 1
        self.in_flight[index] += 1
        return index, self.actions[index]

    def update(self, *_: Any) -> None:
        """Learn nothing."""

    def ended(self, action_idx: int) -> None:
        """Count the end of a call."""
        self.in_flight[action_idx] -= 1

    def decay_epsilon(self) -> None:
        """Change nothing."""


Router = QLearningCoordinator[Any] | FixedRouter
