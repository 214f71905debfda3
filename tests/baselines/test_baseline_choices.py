"""What each baseline chooses, on cases that a person can check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import policy_names, requires_of, resolve_policy
from inframind_gym.policies.base import draw_from
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from tests.policies.synthetic import act_all, make_contexts, make_spec, observe, random_run

N = 4000
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
        policy.expected_latency_s(full, row)[0],
        (1 - weight) * service + weight * 100.0,
        rtol=1e-5,
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


def test_moa_asks_every_model_once_the_aggregator_first() -> None:
    spec = make_spec()
    contexts = make_contexts(5, node=range(5), num_nodes=5, num_agents=5)
    policy = ready("moa", rows=5)
    assert policy.requires == {"planner": {"topology": "IO", "num_agents": 5}}
    models, strategies = models_and_strategies(policy, observe(spec, n=5), contexts)
    assert models.tolist() == [DEEPSEEK, MISTRAL, QWEN, LLAMA_8B, LLAMA_3B]
    assert (strategies == 1).all()
    contexts["models_up"] = 0b11001
    models, _ = models_and_strategies(policy, observe(spec, n=5), contexts)
    assert models.tolist() == [DEEPSEEK, LLAMA_8B, LLAMA_8B, LLAMA_8B, LLAMA_3B]


# Those that play in any spec; others need embeddings, plan, or count their own calls.
PLAIN = [
    name
    for name in policy_names()
    if not name.startswith(("sb3_", "fixed_recipe", "planned"))
    and not {"level", "system_features"} & set(requires_of(resolve_policy(name)))
]


@pytest.mark.parametrize("name", [*PLAIN, "static:deepseek-32b:DeepThink"])
def test_one_model_up_takes_all_and_none_up_is_no_error(name) -> None:
    spec = make_spec()
    policy = ready(name, rows=7)
    observations, contexts = random_run(spec, 7, 4)[3]
    for model in range(5):
        contexts["models_up"] = 1 << model
        models, _ = models_and_strategies(policy, observations, contexts)
        assert (models == model).all()
    contexts["models_up"] = 0
    models, _ = models_and_strategies(policy, observations, contexts)
    assert ((models >= 0) & (models < 5)).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("static:qwen-14:Flash", r"unknown model 'qwen-14'\. Did you mean 'qwen-14b'"),
        ("static:qwen-14b:Flush", r"unknown strategy 'Flush'\. Did you mean 'Flash'"),
        ("round_robin:concise", r"Did you mean 'Concise'"),
    ],
)
def test_unknown_models_and_strategies(name, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ready(name)
