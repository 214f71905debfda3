"""Facts of a run, state at a decision and tasks that ended: the input of assignment policies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.assignment.config import AssignmentConfig


class AssignmentSpec(NamedTuple):
    """Facts of a run; the constants that it draws from are not among them."""

    config: AssignmentConfig
    slots: NDArray[np.int64]  # (8,) calls that the server of an action runs at once


class AssignmentContext(NamedTuple):
    """One decision in each of n rows. The arrays are the caller's own."""

    ordinal: NDArray[np.int64]  # (n,) of the task in its run, from 0 on
    task: NDArray[np.int64]  # (n,) place in the bank
    task_type: NDArray[np.int64]  # (n,)
    complexity: NDArray[np.float64]  # (n,)
    priority: NDArray[np.float64]  # (n,)
    load_state: NDArray[np.int64]  # (n,)
    counts: NDArray[np.int64]  # (n, 4) assignments of each agent in the window
    window: NDArray[np.int64]  # (n, 8) agents, oldest first; -1: empty
    in_flight: NDArray[np.int64]  # (n, 8) tasks in the server of each action; 0 without queues
    time_s: NDArray[np.float64]  # (n,) 0 without queues


class Completed(NamedTuple):
    """Tasks that ended in a step, (k,) each; without queues one in every row."""

    row: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    task_type: NDArray[np.int64]
    complexity: NDArray[np.float64]
    load_state: NDArray[np.int64]  # at the decision
    next_load_state: NDArray[np.int64]  # after the assignment was recorded
    action: NDArray[np.int64]
    scores: NDArray[np.float64]  # (k, 4)
    quality: NDArray[np.float64]  # the true one, for reports
    raw_reward: NDArray[np.float64]
    load_penalty: NDArray[np.float64]
    reward: NDArray[np.float64]
    cost_usd: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]  # before the server took the call; 0 without queues
    tokens: NDArray[np.int64]  # prompt and answer

    def of(self, chosen: NDArray[np.bool_]) -> Completed:
        """Return those of the tasks that `chosen` (k,) marks."""
        return Completed._make(column[chosen] for column in self)
