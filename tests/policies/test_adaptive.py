"""The untrained router: prices follow load, seconds are learned, rows are independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.policies import PolicySpec
from inframind_gym.policies.adaptive import AdaptiveFeedbackPolicy, AdaptivePolicy
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import COMPLETED, PLAN
from tests.policies.synthetic import make_contexts, make_spec

GPU = np.array([0, 1, 0, 1, 1])


def spec_of(**changes: Any) -> PolicySpec:
    embeddings = {
        "task_embeddings": np.ones((1, 384)),
        "role_embeddings": np.ones((len(ROLES), 384)),
    }
    fields = {"system_features": ("in_flight",), "level": "joint", "gpu": GPU, **embeddings}
    return make_spec(**(fields | changes))


def plan(
    policy: AdaptivePolicy, in_flight: Any, rows: list[int] | None = None, **context: Any
) -> np.ndarray:
    """Recipes that are chosen for a query in each row."""
    rows = [0] if rows is None else rows
    n, spec = len(rows), policy.spec
    observations = np.zeros((n, spec.layout.size), np.float32)
    observations[:, spec.layout.system("in_flight")] = np.asarray(in_flight) / spec.queue_norm
    fields = {"kind": PLAN, "budget_s": 1000.0} | context
    policy.act_batch(observations, make_contexts(n, **fields), np.array(rows))
    return policy.assigned[rows, fields.get("query", 0)]


def test_long_budgets_get_a_stronger_model_than_short_ones() -> None:
    policy = AdaptivePolicy()
    policy.reset(spec_of(), [0])
    policy.log_price[:] = -7.0  # of servers that have been calm for a while
    patient = policy.recipes.models[plan(policy, [[0] * 5])[0], 0]
    hurried = policy.recipes.models[plan(policy, [[0] * 5], budget_s=8.0)[0], 0]
    assert policy.spec.ability[patient] > policy.spec.ability[hurried]
    assert policy.spec.expected_call_s[hurried] < 8.0 / 1.5


def test_the_price_of_a_gpu_rises_while_it_is_too_full_and_falls_while_it_is_not() -> None:
    policy = AdaptivePolicy()
    policy.reset(spec_of(), [0])
    start = policy.log_price[0].copy()
    for second in range(30):
        plan(
            policy, [[16, 0, 32, 0, 0]], time_s=float(second), arrival_s=float(second), query=second
        )
    first, second_gpu = policy.log_price[0] - start
    assert first > 0.2
    assert second_gpu < 0.0


def test_a_full_gpu_sends_queries_to_the_other_one_although_their_servers_are_idle() -> None:
    """The models of a GPU take turns: a neighbour's calls make a server dear, too."""
    gpu, chosen = np.array([1, 0, 0, 1, 1]), []
    for places in (gpu, np.arange(5)):  # in place of GPUs of their own
        policy = AdaptivePolicy()
        policy.reset(spec_of(gpu=places), [0])
        recipe = plan(policy, [[0, 0, 30, 0, 0]], budget_s=60.0)[0]
        chosen.append(int(gpu[policy.recipes.models[recipe, 0]]))
    assert chosen == [1, 0]


def test_a_toll_is_for_slowing_down_queries_that_are_short_of_time() -> None:
    policy = AdaptivePolicy()
    policy.reset(spec_of(), [0, 1])
    rows, half = np.array([0, 1]), np.tile(policy._slots / 2.0, (2, 1))
    assert not policy._tolls(half, rows).any()  # nobody was sent yet
    for query in range(20):
        plan(policy, half, [0, 1], query=query, budget_s=np.array([12.0, 1000.0]))
    short, long = policy._tolls(half, rows).max(axis=1)
    assert short > 10.0 * long
    assert not policy._tolls(np.zeros((2, 5)), rows).any()  # and nobody is slowed
    assert not AdaptivePolicy(prices=False).toll


def completed(policy: AdaptivePolicy, query: int, slow: int = -1, wrong: int = -1) -> Any:
    """Record of a query whose calls took what a card says, four times that on the model `slow`.

    Answers are right but for those of the model `wrong`.
    """
    record = np.zeros(1, COMPLETED)
    recipe = policy.assigned[0, query]
    m, s = policy.recipes.models[recipe, 0], policy.recipes.strategy[recipe]
    record["query"], record["num_nodes"], record["calls"] = query, 1, 2
    record["topology"] = policy.recipes.topology[recipe]
    record["model"], record["strategy"] = -1, -1
    record["model"][0, 0], record["strategy"][0, 0] = m, s
    seconds = policy.spec.expected_call_s[m] * (4.0 if m == slow else 1.0)
    record["node_latency_s"][0, 0], record["latency_s"] = seconds, 2 * seconds
    record["solved"] = m != wrong
    return record


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(AdaptivePolicy, "slow"), (AdaptiveFeedbackPolicy, "slow"), (AdaptiveFeedbackPolicy, "wrong")],
)
def test_a_model_that_is_slower_or_worse_than_believed_is_left(kind: Any, fault: str) -> None:
    favourite, chosen = -1, []
    for learns in (False, True):
        policy = kind()
        policy.reset(spec_of(), [0])
        for query in range(200):
            recipe = plan(policy, [[0] * 5], query=query, budget_s=30.0)[0]
            favourite = int(policy.recipes.models[recipe, 0]) if favourite < 0 else favourite
            if learns:
                policy.observe(completed(policy, query, **{fault: favourite}), 0)
        chosen.append(int(policy.recipes.models[policy.assigned[0, 199], 0]))
    assert chosen[0] == favourite
    assert chosen[1] != favourite
