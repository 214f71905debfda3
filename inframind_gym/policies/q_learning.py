"""The tabular Q-learner whose state holds the task type and the load.

Names, lr 0.15, gamma 0.95 and epsilon_decay 0.98 are those of the specification of load-aware
Q-learning. It names `epsilon` and `epsilon_min` and gives no values: we
start at 1.0 (the table knows nothing yet) and stop at 0.05.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TaskAssignment:
    """One action: who does the task, and how.

    The document's pair (agent, provider) is here (model, strategy).
    """

    agent_id: str
    strategy: str

    def key(self) -> str:
        """The action as one string."""
        return f"{self.agent_id}:{self.strategy}"


class QLearningCoordinator:
    """Epsilon-greedy Q-learning over the states (task type, load state).

    Args:
        task_types: first half of the state.
        load_states: second half of the state, as `LoadTracker` names them.
        actions: what may be chosen.
        lr: learning rate.
        gamma: discount.
        epsilon: probability of exploring at the start.
        epsilon_min: the least that it decays to.
        epsilon_decay: its factor at every `decay_epsilon`.
        seed: for the draws of `select_action` when the caller brings none.
        keep_history: whether `history` grows by one record an update.

    Attributes:
        q_table: (task type, load state) -> (actions,) float64 values, all 0 at the start.
        history: one dict an update.
    """

    def __init__(
        self,
        task_types: Sequence[str],
        load_states: Sequence[str],
        actions: Sequence[TaskAssignment],
        lr: float = 0.15,
        gamma: float = 0.95,
        epsilon: float = 1.0,
        epsilon_min: float = 0.05,
        epsilon_decay: float = 0.98,
        *,
        seed: int = 0,
        keep_history: bool = True,
    ) -> None:
        self.task_types = list(task_types)
        self.load_states = list(load_states)
        self.actions = list(actions)
        self.lr = lr
        self.gamma = gamma
        self.epsilon = epsilon
        self.epsilon_min = epsilon_min
        self.epsilon_decay = epsilon_decay
        self.q_table: dict[tuple[str, str], NDArray[np.float64]] = {
            (task_type, load_state): np.zeros(len(self.actions))
            for task_type in self.task_types
            for load_state in self.load_states
        }
        self.keep_history = keep_history
        self.history: list[dict[str, Any]] = []
        self._rng = np.random.default_rng(seed)

    def select_action(
        self,
        task_type: str,
        load_state: str,
        *,
        allowed: NDArray[np.bool_] | None = None,
        draws: tuple[float, float] | None = None,
    ) -> tuple[int, TaskAssignment]:
        """Choose an action: a random one with probability epsilon, else the first of the best.

        Args:
            task_type: first half of the state.
            load_state: second half of the state.
            allowed: (actions,) which may be chosen; all of them if None.
            draws: two uniform numbers, whether to explore and where to; own ones if None.

        Returns:
            The action's index and the action.
        """
        explore, which = draws if draws is not None else tuple(self._rng.random(2).tolist())
        if explore < self.epsilon:
            candidates = range(len(self.actions)) if allowed is None else np.flatnonzero(allowed)
            index = int(candidates[int(which * len(candidates))])
        else:
            values = self.q_table[task_type, load_state]
            best = values if allowed is None else np.where(allowed, values, -np.inf)
            index = int(best.argmax())
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
        old_q = float(row[action_idx])
        max_next_q = 0.0
        if next_task_type is not None:
            max_next_q = float(self.q_table[next_task_type, next_load_state].max())
        td_target = reward + self.gamma * max_next_q
        row[action_idx] = old_q + self.lr * (td_target - old_q)
        if self.keep_history:
            self.history.append(
                {
                    "task_type": task_type,
                    "load_state": load_state,
                    "action": self.actions[action_idx].key(),
                    "reward": reward,
                    "td_target": td_target,
                    "old_q": old_q,
                    "new_q": float(row[action_idx]),
                }
            )

    def decay_epsilon(self) -> None:
        """Explore less: epsilon becomes max(epsilon_min, epsilon * epsilon_decay)."""
        self.epsilon = max(self.epsilon_min, self.epsilon * self.epsilon_decay)
