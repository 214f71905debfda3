"""Who got the recent work: the sliding window of load-aware Q-learning.

Names and constants are those of the specification of load-aware Q-learning.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import numpy as np

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

        With the population standard deviation: [.25, .5, .125, .125] gives 0.612. The document's
        worked example (§8.6) prints 0.577, which its own formula does not give.
        """
        values = np.array(list(self.get_utilization().values()))
        if values.max() == 0.0:
            return 0.0
        return float(values.std() / values.mean())
