"""The reward of tasks that ended.

raw = clip(mean score - 0.10 min(cost / 0.002 USD, 1) - 0.05 min(latency / 5 s, 1), 0, 1), and the
reward is max(0, raw - load penalty). With `load="window"` the penalty follows from the agent's
share of the last eight assignments (`rules.load_penalty`). With `load="queue"` it is what the call
waited in its server's queue: 0.20 for 5 s and more, 0 for none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.assignment.rules import LATENCY_SCALE_S, MAX_PENALTY


def waiting_penalty(wait_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the load penalty of calls that waited `wait_s` (k,) before their servers took them."""
    return np.asarray(MAX_PENALTY * np.minimum(wait_s / LATENCY_SCALE_S, 1.0))
