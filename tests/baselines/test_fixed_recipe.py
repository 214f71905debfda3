"""The best constant: what it does, and that it was chosen on the validation split."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import baselines
from baselines.fixed_recipe import CHOSEN, FixedRecipePolicy
from baselines.fixed_recipe_search import candidates, goodput
from inframind_gym.configs import list_configs
from inframind_gym.errors import ConfigError
from inframind_gym.topology import TOPOLOGIES


def play(policy: Any, **arguments: Any) -> Any:
    env: Any = gym.make(
        "InfraMind-Stream-v0", num_queries=8, observation="index", level="joint", **arguments
    ).unwrapped
    observation, _ = env.reset(seed=0)
    policy.reset(env.policy_spec(), [0])
    over, found = False, []
    while not over:
        observation, _, over, _, _ = env.step(policy.act(observation, env.context()))
        found.append(env.completed())
    return np.concatenate(found), env.policy_spec()


def test_every_query_gets_the_recipe() -> None:
    policy = baselines.resolve_policy("fixed_recipe:Debate:2:llama-8b:DeepThink")
    assert policy.name == "fixed_recipe:Debate:2:llama-8b:DeepThink"
    records, spec = play(policy)
    assert (records["topology"] == TOPOLOGIES.index("Debate")).all()
    assert (records["num_agents"] == 2).all()
    assert (records["model"][:, :4] == spec.model_index("llama-8b")).all()
    assert (records["strategy"][:, :4] == spec.strategy_index("DeepThink")).all()


@pytest.mark.parametrize("workload", ["math", "mbpp", "all"])
def test_without_arguments_it_is_the_chosen_one(workload: str) -> None:
    chosen = json.loads(CHOSEN.read_text())
    assert set(chosen) == set(list_configs("workloads"))
    records, spec = play(FixedRecipePolicy(), workload=workload)
    recipe = chosen[workload]
    assert (records["num_agents"] == recipe["num_agents"]).all()
    assert (records["model"][:, 0] == spec.model_index(recipe["model"])).all()


def test_the_search_prefers_what_solves_more_in_time() -> None:
    """On mmlu_pro at up to 200/min: one fast model alone against three agents on DeepSeek."""
    actions = candidates(15)
    assert len({tuple(action) for action in actions.tolist()}) == len(actions)
    io = TOPOLOGIES.index("IO")
    one = [a for a in actions.tolist() if a[0] == io and a[1] == 0 and a[-1] == 2 * 3 + 2]
    crowd = [a for a in actions.tolist() if a[0] == io and a[1] == 2 and a[-1] == 2]
    shares = goodput("mmlu_pro", np.array(one + crowd), 1, 0)
    assert shares.shape == (2,)
    assert shares[0] > shares[1] + 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("Debate", "give all of topology"),
        ("Ring:1:qwen-14b:Flash", "unknown topology 'Ring'"),
        ("IO:7:qwen-14b:Flash", "num_agents is '7'"),
        ("IO:one:qwen-14b:Flash", "num_agents is 'one'"),
    ],
)
def test_a_recipe_that_is_none(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        baselines.resolve_policy(f"fixed_recipe:{arguments}")


def test_it_needs_to_plan_and_to_know_the_model() -> None:
    with pytest.raises(ConfigError, match='level="joint"'):
        env: Any = gym.make("InfraMind-Stream-v0", num_queries=2)
        FixedRecipePolicy().reset(env.unwrapped.policy_spec(), [0])
    with pytest.raises(ConfigError, match="unknown model 'gpt'"):
        play(baselines.resolve_policy("fixed_recipe:IO:1:gpt:Flash"))
