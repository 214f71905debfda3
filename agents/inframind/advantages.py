"""What each decision of a query earned: rewards, costs, and generalised advantages.

Arrays are padded, (Q, N): row i holds the `length[i]` decisions of one query in their order, then
entries that count for nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agents.inframind.rollouts import Episodes

Array = NDArray[np.floating[Any]]


def quality(episodes: Episodes, reward: Literal["solved", "goodput"]) -> NDArray[np.float32]:
    """Reward q (Q,): 1 for a query that is solved, or that is solved within its budget."""
    if reward == "solved":
        return episodes.solved
    return episodes.solved * (episodes.latency_s <= episodes.budget_s)


def costs(episodes: Episodes, cap: float | None = None) -> NDArray[np.float64]:
    """C (Q,): latency over budget, at most `cap`."""
    return episodes.cost if cap is None else np.minimum(episodes.cost, cap)


def paper_rewards(episodes: Episodes, q: Array, weight: float) -> NDArray[np.float32]:
    """r_i = q - λ·l_i/β (Q, N), l_i the latency of the decision's own node.

    Source: `spec/inframind.md` §4.3.
    """
    ratio = episodes.node_latency_s / episodes.budget_s[:, None]
    return np.asarray(q[:, None] - weight * ratio, np.float32)


def last_only(episodes: Episodes, values: Array) -> NDArray[np.float32]:
    """(Q, N) that hold a query's value (Q,) at its last decision and 0 before."""
    last = np.arange(episodes.role.shape[1]) == episodes.length[:, None] - 1
    return np.where(last, values[:, None], 0.0).astype(np.float32)


def step_costs(episodes: Episodes, cost: Array) -> NDArray[np.float32]:
    """A query's cost (Q,) spread over its decisions (Q, N) by the time from each to the next.

    Calls of one wave are decided at the same instant: the last of them bears the wave's cost, as in
    `InfraMind-Executor-v0`. The rows sum to `cost`.
    """
    total = episodes.elapsed_s.sum(axis=1, keepdims=True)
    share = episodes.elapsed_s / np.maximum(total, 1e-9)
    return np.where(total > 0.0, share * cost[:, None], last_only(episodes, cost)).astype(
        np.float32
    )


def gae(
    rewards: Array, values: Array, length: NDArray[np.int64], gamma: float, gae_lambda: float
) -> NDArray[np.float32]:
    """Generalised advantage estimates (Q, N) over the decisions of each query.

    A_t = δ_t + γ·λ·A_{t+1} with δ_t = r_t + γ·V_{t+1} - V_t, and V = 0 after the last decision
    (Schulman et al. 2016). Padding gets 0.

    Args:
        rewards: (Q, N).
        values: (Q, N).
        length: (Q,) number of decisions.
        gamma: discount γ.
        gae_lambda: λ of the estimator, not the multiplier.
    """
    advantages = np.zeros(rewards.shape, np.float32)
    carried = np.zeros(len(rewards), np.float32)
    following = np.zeros(len(rewards), np.float32)
    for t in reversed(range(rewards.shape[1])):
        here = t < length
        delta = rewards[:, t] + gamma * following - values[:, t]
        carried = np.where(here, delta + gamma * gae_lambda * carried, 0.0)
        following = np.where(here, values[:, t], 0.0)
        advantages[:, t] = carried
    return advantages
