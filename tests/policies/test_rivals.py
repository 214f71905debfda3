"""Known rules of load balancing: what each does with queues that a person can check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import resolve_policy
from tests.policies.synthetic import make_contexts, make_spec

FLASH, CONCISE = 0, 1


def routes(
    name: str, in_flight: list[list[float]], gpu: Sequence[int] = range(5), **context: object
) -> tuple[list[int], ...]:
    """Models and strategies that a rule picks for rows with these calls in flight."""
    spec = replace(make_spec(system_features=("in_flight",)), gpu=np.array(gpu))
    policy, n = resolve_policy(name), len(in_flight)
    policy.reset(spec, list(range(n)))
    observations = np.zeros((n, spec.layout.size), np.float32)
    observations[:, spec.layout.system("in_flight")] = np.array(in_flight) / spec.queue_norm
    actions = policy.act_batch(observations, make_contexts(n, **context), np.arange(n))
    return (actions // 3).tolist(), (actions % 3).tolist()


def test_jsq_joins_the_shortest_queue() -> None:
    assert routes("jsq", [[3, 2, 1, 2, 3], [0, 1, 1, 1, 1]]) == ([2, 0], [CONCISE, CONCISE])


def test_sq2_takes_the_shorter_of_two_drawn_queues() -> None:
    in_flight = [[1.0, 2.0, 3.0, 4.0, 5.0]] * 400
    shares = np.bincount(routes("sq2", in_flight)[0], minlength=5) / 400
    # The shortest of five is taken whenever it is drawn (2/5), the longest never.
    np.testing.assert_allclose(shares, [0.4, 0.3, 0.2, 0.1, 0.0], atol=0.07)
    one_up = routes("sq2", in_flight[:20], models_up=1 << 4)[0]
    assert set(one_up) == {4}


@pytest.mark.parametrize(
    ("in_flight", "budget_s", "model", "strategy"),
    [
        ([0, 0, 0, 0, 0], 1000.0, 0, CONCISE),  # the strongest
        ([16, 0, 0, 0, 0], 1000.0, 1, CONCISE),  # it is full: the next
        ([0, 0, 0, 0, 0], 30.0, 1, CONCISE),  # it takes 90 s: too slow
        ([16, 16, 16, 16, 16], 1000.0, 4, FLASH),  # none has room: the fastest
        ([0, 0, 0, 0, 0], 1.0, 4, FLASH),  # none makes the deadline
    ],
)
def test_spill_overflows_to_the_next_server(
    in_flight: list[float], budget_s: float, model: int, strategy: int
) -> None:
    assert routes("spill", [in_flight], budget_s=budget_s) == ([model], [strategy])


def test_backpressure_leaves_a_queue_that_costs_more_than_an_answer_is_worth() -> None:
    idle, busy = [0.0] * 5, [40.0, 0.0, 0.0, 0.0, 0.0]
    assert routes("backpressure", [idle, busy], budget_s=1e6)[0] == [0, 1]
    assert routes("backpressure", [busy, busy], gpu=[0, 0, 1, 2, 3], budget_s=1e6)[0] == [2, 2]
    assert routes("backpressure", [idle], budget_s=4.0)[0] == [4]  # alone makes the deadline
    few = [[4.0, 0.0, 0.0, 0.0, 0.0]]
    assert routes("backpressure:1", few, budget_s=1e6)[0] == [1]
    assert routes("backpressure:10000", few, budget_s=1e6)[0] == [0]
    with pytest.raises(ConfigError, match="from 0 to 10000"):
        resolve_policy("backpressure:-1")
