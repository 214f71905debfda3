"""What the response model makes of whole workflows: who solves what, and on which numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.policies import resolve_policy
from tests.envs.streams import ByPlace, Rows, Seen, make_batch, sweep

SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def mixed() -> Any:
    return make_batch(len(SEEDS), num_queries=300)


def test_two_policies_meet_the_same_world(mixed: Any) -> None:
    policies = [
        resolve_policy("static", model="llama-3b"),
        resolve_policy("random"),
        resolve_policy("least_loaded"),
    ]
    worlds = [sweep(mixed, policy, SEEDS, arrival_rate_per_min=40.0) for policy in policies]
    for row in range(len(SEEDS)):
        first = worlds[0][row]
        for other in worlds[1:]:
            for field in (
                *("query", "task", "arrival_s", "budget_s"),
                *("topology", "num_agents", "num_nodes", "role", "domain"),
            ):
                assert np.array_equal(other[row][field], first[field]), field
        assert not np.array_equal(worlds[1][row]["model"], first["model"])
    assert not np.array_equal(worlds[0][0]["task"], worlds[0][1]["task"])


def test_rate_moves_the_arrivals_and_nothing_else(mixed: Any) -> None:
    slow, fast = (
        sweep(mixed, ByPlace(), SEEDS, arrival_rate_per_min=rate) for rate in (20.0, 40.0)
    )
    for a, b in zip(slow, fast, strict=True):
        np.testing.assert_allclose(a["arrival_s"], 2.0 * b["arrival_s"], rtol=1e-12)
        for field in ("task", "budget_s", "topology", "role"):
            assert np.array_equal(a[field], b[field]), field


def test_the_same_decisions_in_another_order_have_the_same_outcome() -> None:
    """Load and scheduling change when things happen, never what is answered."""
    outcomes = []
    for scheduler, rate in (("edf", 5.0), ("fcfs", 400.0)):
        env = make_batch(2, num_queries=200, scheduler=scheduler)
        outcomes.append(sweep(env, ByPlace(), (5, 6), arrival_rate_per_min=rate))
    for calm, busy in zip(*outcomes, strict=True):
        assert busy["latency_s"].mean() > 3.0 * calm["latency_s"].mean()
        for field in (
            *("model", "strategy", "output_tokens", "prompt_tokens", "calls"),
            *("truncated_calls", "right", "final_model", "solved"),
        ):
            assert np.array_equal(calm[field], busy[field]), field


def test_one_changed_decision_changes_no_other_query(mixed: Any) -> None:
    class OneChanged(ByPlace):
        def act_batch(self, observations: Seen, contexts: Any, rows: Rows) -> Rows:
            chosen = super().act_batch(observations, contexts, rows)
            changed = (contexts["query"] == 17) & (contexts["node"] == 0)
            return np.where(changed, (chosen + 4) % 15, chosen)

    before = sweep(mixed, ByPlace(), SEEDS, arrival_rate_per_min=40.0)
    after = sweep(mixed, OneChanged(), SEEDS, arrival_rate_per_min=40.0)
    for a, b in zip(before, after, strict=True):
        others = a["query"] != 17
        for field in ("output_tokens", "right", "solved", "final_model"):
            assert np.array_equal(a[field][others], b[field][others]), field
        assert a["output_tokens"][~others] != b["output_tokens"][~others]
