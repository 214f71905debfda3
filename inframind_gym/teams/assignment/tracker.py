"""The window of recent assignments, as an object over the rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.assignment import rules


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
        if not agent_ids or len(set(agent_ids)) != len(agent_ids):
            raise ConfigError(f"agent_ids {list(agent_ids)} must be distinct and at least one.")
        if window_size < 1:
            raise ConfigError(f"window_size is {window_size}; it must be at least 1.")
        self.agent_ids = list(agent_ids)
        self.window_size = window_size
        self.hot_threshold = hot_threshold
        self.penalty_weight = penalty_weight
        self.max_penalty = max_penalty
        self.recent: deque[str] = deque(maxlen=window_size)
        self.lifetime_counts = dict.fromkeys(self.agent_ids, 0)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(N,) assignments of each agent in the window."""
        return np.array([self.recent.count(agent) for agent in self.agent_ids], np.int64)

    @property
    def load_states(self) -> list[str]:
        """Every state that `get_load_state` can return: balanced, and one an agent."""
        return ["balanced", *(f"{agent}_hot" for agent in self.agent_ids)]

    def record(self, agent_id: str) -> None:
        """Enter one assignment; the oldest leaves a full window.

        To be called after `get_load_penalty` and before the next `get_load_state`.

        Raises:
            ConfigError: There is no such agent.
        """
        self._check(agent_id)
        self.recent.append(agent_id)
        self.lifetime_counts[agent_id] += 1

    def get_utilization(self) -> dict[str, float]:
        """Return the share of the window that each agent holds; all 0 while it is empty."""
        return dict(zip(self.agent_ids, rules.utilization(self.counts).tolist(), strict=True))

    def get_load_state(self) -> str:
        """Return "<agent>_hot" or "balanced", see `rules.load_state`."""
        return self.load_states[int(rules.load_state(self.counts, self.hot_threshold))]

    def get_load_penalty(self, agent_id: str) -> float:
        """Return the penalty for an assignment to an agent, see `rules.load_penalty`.

        To be asked before the assignment is recorded: it judges the state that was decided in.

        Raises:
            ConfigError: There is no such agent.
        """
        self._check(agent_id)
        agent = self.agent_ids.index(agent_id)
        return float(rules.load_penalty(self.counts, agent, self.penalty_weight, self.max_penalty))

    def get_imbalance_score(self, ddof: int = 0) -> float:
        """Return the coefficient of variation of the utilizations, see `rules.imbalance`."""
        return float(rules.imbalance(self.counts, ddof))

    def _check(self, agent_id: str) -> None:
        if agent_id not in self.lifetime_counts:
            raise ConfigError(unknown("agent", agent_id, self.agent_ids))
