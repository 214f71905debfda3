"""Choices of each rule, on cases that a person can check by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.base import draw_from
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from tests.policies.synthetic import act_all, make_contexts, make_spec, observe

FLASH, CONCISE = 0, 1
DEEPSEEK, MISTRAL, QWEN, LLAMA_8B, LLAMA_3B = range(5)


def ready(name, spec=None, rows=1, **kwargs):
    policy = resolve_policy(name, **kwargs)
    policy.reset(spec or make_spec(), list(range(rows)))
    return policy


def models_and_strategies(policy, observations, contexts):
    actions = np.array(act_all(policy, observations, contexts))
    return actions // 3, actions % 3


def test_draw_from_follows_the_weights_and_skips_zeros() -> None:
    u = (np.arange(1000) + 0.5) / 1000
    drawn = draw_from(np.broadcast_to([0.0, 1.0, 0.0, 3.0, 0.0], (1000, 5)), u)
    assert np.bincount(drawn, minlength=5).tolist() == [0, 250, 0, 750, 0]
    assert draw_from(np.array([[0.0, 1.0, 0.0]]), np.array([np.nextafter(1.0, 0.0)])) == [1]


def test_round_robin_skips_what_is_down() -> None:
    policy = ready("round_robin:Concise")
    observation = observe(make_spec())
    masks = [31, 31, 31, 31, 31, 31, 0b11100, 31, 0b00011, 31]
    actions = [policy.act(observation[0], make_contexts(models_up=m)[0]) for m in masks]
    assert [a // 3 for a in actions] == [0, 1, 2, 3, 4, 0, 2, 3, 0, 1]
    assert {a % 3 for a in actions} == {1}


def test_least_loaded_counts_its_own_calls_until_the_next_poll() -> None:
    spec = make_spec()
    policy = ready("least_loaded")
    observation = observe(spec, depth_req=[4.0, 2.0, 9.0, 9.0, 9.0])[0]

    def choose(poll, time_s, observation=observation):
        return policy.act(observation, make_contexts(poll=poll, time_s=time_s)[0]) // 3

    assert [choose(1, t) for t in (5.1, 5.2)] == [MISTRAL, MISTRAL]  # now 4 and 4
    assert {choose(1, 5.3), choose(1, 5.4)} == {DEEPSEEK, MISTRAL}
    assert choose(2, 10.1) == MISTRAL  # a new poll tells the same depths: own calls are forgotten
    assert policy.sent.sum() == 1
    assert choose(2, 0.1) == MISTRAL  # a new episode with the same number of polls
    assert policy.sent.sum() == 1


def test_lowest_expected_latency() -> None:
    spec = make_spec()
    idle = ready("lowest_expected_latency")
    assert act_all(idle, observe(spec), make_contexts())[0] // 3 == LLAMA_3B
    # 3B: 3.5 s * 1.3 * (1 + 25/16); 8B: 4.8 s * 1.3 * (1 + 1/16); the others are idle.
    queued = observe(spec, depth_req=[0, 0, 0, 16, 40])
    idle.reset(spec, [0])
    expected = idle.expected_latency_s(queued, np.array([0]))
    np.testing.assert_allclose(expected[0], [45.0, 6.7, 10.5, 6.63, 11.659375])
    assert act_all(ready("lowest_expected_latency"), queued, make_contexts())[0] // 3 == LLAMA_8B


def test_polled_latency_counts_only_where_calls_run() -> None:
    spec = make_spec()
    policy = ready("lowest_expected_latency")
    row = np.array([0])
    stale = observe(spec, depth_req=0.0, e2e_s=500.0)
    np.testing.assert_allclose(policy.expected_latency_s(stale, row)[0], spec.expected_call_s)
    full = observe(spec, depth_req=15.0, e2e_s=100.0)
    service = spec.expected_call_s * (1 + 0.3 * 15 / 16)
    weight = 0.5 * 15 / 16
    np.testing.assert_allclose(
        policy.expected_latency_s(full, row)[0], (1 - weight) * service + weight * 100.0, rtol=1e-5
    )
    blind = make_spec(system_features=("queue",))
    policy = ready("lowest_expected_latency", blind)
    assert act_all(policy, observe(blind), make_contexts())[0] // 3 == LLAMA_3B


@pytest.mark.parametrize(
    ("remaining_s", "expected"),
    [
        # IO: this call and the final one share the budget. DeepSeek takes 45 s, Mistral 6.7,
        # Qwen 10.5, 8B 4.8, 3B 3.5; ability falls in that order.
        (1000.0, (DEEPSEEK, "DeepThink")),  # 500 s a call
        (120.0, (DEEPSEEK, "Concise")),  # 60 s, 1.33 times what it takes
        (92.0, (DEEPSEEK, "Flash")),  # 46 s
        (88.0, (MISTRAL, "DeepThink")),  # 44 s
        (15.0, (MISTRAL, "Flash")),  # 7.5 s
        (10.0, (LLAMA_8B, "Flash")),  # 5 s
        (8.0, (LLAMA_3B, "Flash")),  # 4 s
        (1.0, (LLAMA_3B, "Flash")),  # nothing fits: the fastest
    ],
)
def test_budget_greedy_spends_what_is_left(remaining_s, expected) -> None:
    spec = make_spec()
    observation = observe(spec, remaining_s=remaining_s)
    (action,) = act_all(ready("budget_greedy"), observation, make_contexts())
    assert (action // 3, spec.strategies[action % 3]) == expected


@pytest.mark.parametrize(
    ("topology", "agents", "node", "stages"),
    [
        ("IO", 5, 4, 2),
        ("CoT", 1, 0, 2),
        ("Chain", 4, 0, 5),
        ("Chain", 4, 3, 2),
        ("Debate", 3, 0, 3),
        ("Debate", 3, 5, 2),
        ("Reflection", 3, 1, 3),  # two calls a node, and the final one
        ("FullConnected", 6, 0, 7),
        ("FullConnected", 6, 5, 2),
    ],
)
def test_budget_greedy_shares_the_budget_over_the_stages_left(
    topology, agents, node, stages
) -> None:
    g = graph(topology, agents)
    contexts = make_contexts(
        topology=TOPOLOGIES.index(topology),
        num_agents=agents,
        node=node,
        wave=g.waves[node],
        num_waves=max(g.waves) + 1,
    )
    assert ready("budget_greedy").stages_left(contexts).tolist() == [stages]


@pytest.mark.parametrize(
    ("name", "up", "chosen"),
    [
        ("moa", 0b11111, [DEEPSEEK, MISTRAL, QWEN, LLAMA_8B, LLAMA_3B]),  # the aggregator first
        ("moa", 0b11001, [DEEPSEEK, LLAMA_8B, LLAMA_8B, LLAMA_8B, LLAMA_3B]),
        ("gptswarm", 0b11111, [DEEPSEEK, MISTRAL, QWEN, LLAMA_8B, LLAMA_3B]),
        ("gptswarm", 0b01110, [MISTRAL, MISTRAL, QWEN, LLAMA_8B, MISTRAL]),
    ],
)
def test_every_node_asks_its_model_or_the_next_that_is_up(name, up, chosen) -> None:
    fields = {"node": range(5), "num_nodes": 5, "num_agents": 5, "models_up": up}
    policy = ready(name, rows=5)
    assert policy.requires["planner"]["num_agents"] == 5
    found = models_and_strategies(policy, observe(make_spec(), n=5), make_contexts(5, **fields))
    assert found[0].tolist() == chosen and (found[1] == CONCISE).all()


# Rules that count their own calls in flight


def routes(
    name: str, in_flight: list[list[float]], gpu: Sequence[int] = range(5), **context: object
) -> tuple[list[int], ...]:
    """Models and strategies that a rule picks for rows with these calls in flight."""
    spec, n = make_spec(system_features=("in_flight",), gpu=np.array(gpu)), len(in_flight)
    observations = np.zeros((n, spec.layout.size), np.float32)
    observations[:, spec.layout.system("in_flight")] = np.array(in_flight) / spec.queue_norm
    policy = ready(name, spec, n)
    models, strategies = models_and_strategies(policy, observations, make_contexts(n, **context))
    return models.tolist(), strategies.tolist()


def test_jsq_joins_the_shortest_queue() -> None:
    assert routes("jsq", [[3, 2, 1, 2, 3], [0, 1, 1, 1, 1]]) == ([2, 0], [CONCISE, CONCISE])


def test_sq2_takes_the_shorter_of_two_drawn_queues() -> None:
    in_flight = [[1.0, 2.0, 3.0, 4.0, 5.0]] * 400
    shares = np.bincount(routes("sq2", in_flight)[0], minlength=5) / 400
    # The shortest of five is taken whenever it is drawn (2/5), the longest never.
    np.testing.assert_allclose(shares, [0.4, 0.3, 0.2, 0.1, 0.0], atol=0.07)
    assert set(routes("sq2", in_flight[:20], models_up=1 << 4)[0]) == {4}


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("static:qwen-14:Flash", r"unknown model 'qwen-14'\. Did you mean 'qwen-14b'"),
        ("static:qwen-14b:Flush", r"unknown strategy 'Flush'\. Did you mean 'Flash'"),
        ("round_robin:concise", r"Did you mean 'Concise'"),
        ("backpressure:-1", "from 0 to 10000"),
    ],
)
def test_wrong_arguments_of_names(name, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ready(name)
