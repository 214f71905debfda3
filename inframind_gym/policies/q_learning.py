"""Load-aware Q-learning: the window that tells who got the recent work, and the table.

Q-learning (Watkins and Dayan 1992) with epsilon-greedy exploration, which starts at 1.0, for the
table knows nothing yet, and stops at 0.05.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown

BALANCED: Final = "balanced"
MIN_RECORDS: Final = 3  # below this many assignments no agent is called hot (§8.3)


class LoadTracker:
    """Counts the last `window_size` assignments and turns them into a state and a penalty.

    Args:
        agent_ids: the agents among whom work is shared.
        window_size: assignments that the window remembers.
        hot_threshold: an agent is hot above this multiple of its fair share.
        penalty_weight: penalty for each fair share in excess of the first.
        max_penalty: the penalty's cap.

    Attributes:
        recent: the window, oldest first.
        lifetime_counts: assignments ever recorded, for reports only.

    Raises:
        ConfigError: no agents, an agent twice, or a window of no length.
    """

    def __init__(
        self,
        agent_ids: Sequence[str],
        window_size: int = 8,
        hot_threshold: float = 1.5,
        penalty_weight: float = 0.15,
        max_penalty: float = 0.20,
    ) -> None:
        if not agent_ids or len(set(agent_ids)) != len(agent_ids):
            raise ConfigError(f"agent_ids {list(agent_ids)} must be distinct and at least one")
        if window_size < 1:
            raise ConfigError(f"window_size is {window_size}; it must be at least 1")
        self.agent_ids = list(agent_ids)
        self.window_size = window_size
        self.hot_threshold = hot_threshold
        self.penalty_weight = penalty_weight
        self.max_penalty = max_penalty
        self.recent: deque[str] = deque(maxlen=window_size)
        self.lifetime_counts = dict.fromkeys(self.agent_ids, 0)

    @property
    def fair_share(self) -> float:
        """1 / number of agents."""
        return 1.0 / len(self.agent_ids)

    @property
    def load_states(self) -> list[str]:
        """Every state that `get_load_state` can return: balanced, and one an agent."""
        return [BALANCED, *(f"{agent_id}_hot" for agent_id in self.agent_ids)]

    def record(self, agent_id: str) -> None:
        """Enter one assignment; the oldest leaves a full window.

        Raises:
            ConfigError: there is no such agent.
        """
        if agent_id not in self.lifetime_counts:
            raise ConfigError(unknown("agent", agent_id, self.agent_ids))
        self.recent.append(agent_id)
        self.lifetime_counts[agent_id] += 1

    def get_utilization(self) -> dict[str, float]:
        """Share of the window that each agent holds; all 0 while it is empty."""
        counts = Counter(self.recent)
        total = max(len(self.recent), 1)
        return {agent_id: counts[agent_id] / total for agent_id in self.agent_ids}

    def get_load_state(self) -> str:
        """`"<agent>_hot"` for the busiest agent if it is above the threshold, else `"balanced"`.

        Of equally busy agents the first of `agent_ids` counts. With fewer than three assignments
        the answer is "balanced".
        """
        if len(self.recent) < MIN_RECORDS:
            return BALANCED
        utilization = self.get_utilization()
        busiest = max(self.agent_ids, key=utilization.__getitem__)
        hot = utilization[busiest] > self.fair_share * self.hot_threshold
        return f"{busiest}_hot" if hot else BALANCED

    def get_load_penalty(self, agent_id: str) -> float:
        """min(penalty_weight * max(0, utilization / fair share - 1), max_penalty).

        To be asked before the assignment is recorded: it judges the state that was decided in.
        """
        utilization = self.get_utilization().get(agent_id, 0.0)
        excess_ratio = max(0.0, utilization / self.fair_share - 1.0)
        return min(excess_ratio * self.penalty_weight, self.max_penalty)

    def get_imbalance_score(self) -> float:
        """Coefficient of variation of the utilizations; 0 while the window is empty.

        With the population standard deviation: [.25, .5, .125, .125] gives 0.612.
        """
        values = np.array(list(self.get_utilization().values()))
        if values.max() == 0.0:
            return 0.0
        return float(values.std() / values.mean())


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
