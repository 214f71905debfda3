"""The best constant: what it does, and that it was chosen on the validation split."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from inframind_gym.configs import list_configs
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import resolve_policy
from inframind_gym.policies.fixed_recipe import (
    BY_RATE,
    CHOSEN,
    ENOUGH,
    FixedRecipeByRatePolicy,
    FixedRecipePolicy,
    recipe_action,
)
from inframind_gym.simulator.workflow.state import CONTEXT
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.envs.streams import STREAM, sweep


def play(policy: Any) -> Any:
    """Completed queries of an episode, and the facts of the run."""
    given = {"num_queries": 8, "observation": "index", **policy.requires}
    env: Any = gym.make_vec(STREAM, num_envs=1, **given).unwrapped
    return sweep(env, policy, [0])[0], env.policy_spec()


def test_every_query_gets_the_recipe() -> None:
    policy = resolve_policy("fixed_recipe:Debate:2:llama-8b:DeepThink")
    assert policy.name == "fixed_recipe:Debate:2:llama-8b:DeepThink"
    records, spec = play(policy)
    assert (records["topology"] == TOPOLOGIES.index("Debate")).all()
    assert (records["num_agents"] == 2).all()
    assert (records["model"][:, :4] == spec.model_index("llama-8b")).all()
    assert (records["strategy"][:, :4] == spec.strategy_index("DeepThink")).all()


def test_a_router_gets_a_plan_and_a_strategy() -> None:
    planned, spec = play(resolve_policy("planned:Debate:2:DeepThink:linucb"))
    assert (planned["topology"] == TOPOLOGIES.index("Debate")).all()
    assert (planned["strategy"][:, :4] == spec.strategy_index("DeepThink")).all()
    jsq, planned_jsq = (play(resolve_policy(name))[0] for name in ("jsq", "planned:IO:1:own:jsq"))
    for field in ("model", "strategy", "finish_s", "solved"):
        np.testing.assert_array_equal(planned_jsq[field], jsq[field])


MEASURED = ("gsm_hard", "humaneval", "math", "mbpp", "mmlu_pro")


def test_without_arguments_it_is_the_chosen_one_with_its_roles() -> None:
    chosen = json.loads(CHOSEN.read_text())
    assert {"all", *MEASURED} <= set(chosen) <= set(list_configs("workloads"))
    for workload, recipe in chosen.items():
        spec, policy = spec_of(workload), FixedRecipePolicy()
        policy.reset(spec, [0])
        action = policy.act(np.zeros(1), contexts_of((0, 0.0))[0])
        assert action[:2].tolist() == [
            TOPOLOGIES.index(recipe["topology"]),
            recipe["num_agents"] - 1,
        ]
        assert action[2 : 2 + recipe["num_agents"]].tolist() == recipe["roles"]
        route = spec.model_index(recipe["model"]), spec.strategy_index(recipe["strategy"])
        assert divmod(int(action[-1]), spec.num_strategies) == route


def spec_of(workload: str = "mbpp") -> Any:
    return StreamVectorEnv(
        1, workload=workload, level="joint", observation="index", num_queries=2
    ).policy_spec()


def contexts_of(*arrivals: tuple[int, float]) -> Any:
    """Decisions on queries with these ordinals and arrivals."""
    contexts = np.zeros(len(arrivals), CONTEXT)
    contexts["query"], contexts["arrival_s"] = zip(*arrivals, strict=True)
    return contexts


def test_by_rate_takes_the_recipe_of_the_nearest_rate_of_the_arrivals_so_far() -> None:
    table, chosen = (json.loads(path.read_text()) for path in (BY_RATE, CHOSEN))
    assert set(table) == set(chosen)
    assert {tuple(of_rate) for of_rate in table.values()} == {("10", "50", "100", "200")}
    spec, policy = spec_of(), FixedRecipeByRatePolicy()
    policy.reset(spec, [0] * 6)
    queries = 100
    seconds = [60.0 * queries / rate for rate in (2.0, 25.0, 80.0, 130.0, 190.0, 900.0)]
    contexts = contexts_of(*((queries, now_s) for now_s in seconds))
    actions = policy.act_batch(np.zeros((6, 1), np.float32), contexts, np.arange(6))
    nearest = ["10", "50", "100", "100", "200", "200"]  # by ratio
    expected = [recipe_action(spec, table["mbpp"][rate]) for rate in nearest]
    assert actions.tolist() == np.array(expected).tolist()
    assert len({tuple(action) for action in actions.tolist()}) > 1


def test_by_rate_begins_with_the_recipe_over_all_loads_and_knows_other_workloads() -> None:
    chosen = json.loads(CHOSEN.read_text())
    spec, policy = spec_of(), FixedRecipeByRatePolicy()
    policy.reset(spec, [0, 0, 0])
    contexts = contexts_of((0, 0.0), (ENOUGH - 2, 0.5), (ENOUGH - 1, 0.5))
    actions = policy.act_batch(np.zeros((3, 1), np.float32), contexts, np.arange(3))
    first = recipe_action(spec, chosen["mbpp"])
    assert (actions[:2] == first).all()
    assert (actions[2] != first).any()
    policy.reset(replace(spec, workload="never seen"), [0])
    assert (policy.act(np.zeros(1), contexts[0]) == recipe_action(spec, chosen["all"])).all()
