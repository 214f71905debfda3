"""Every built-in policy: rows that are alone, models that are down, names."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.policies import POLICIES, Policy, policy_names, requires_of, resolve_policy
from tests.envs.streams import STREAM, sweep
from tests.policies import rollout

ROUTERS = (
    *policy_names(),
    *("inframind::sample", "ppo_lagrangian::sample", "round_robin:Flash"),
    *("least_loaded:DeepThink", "static:deepseek-32b:DeepThink", "planned:Debate:2:Flash:jsq"),
)
SEEDS = [2**40, 5, 7]
DOWN = ("deepseek-32b", "llama-3b")  # models 0 and 4
TEAMS = [
    (family, name)
    for family in sorted(POLICIES.keys() - {"routing", "placement"})
    for name in POLICIES[family]
]


def routed(name: str, seeds: list[int], **arguments: Any) -> list[NDArray[Any]]:
    """Completed queries of every row."""
    policy = resolve_policy(name)
    given = {"num_queries": 15, "arrival_rate_per_min": 200.0, "observation": "index"}
    given |= {"workload": "all"} | arguments | requires_of(policy)
    return sweep(gym.make_vec(STREAM, num_envs=len(seeds), **given).unwrapped, policy, seeds)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_does_the_same_for_a_row_alone(name: str) -> None:
    together, [alone] = routed(name, SEEDS), routed(name, SEEDS[1:2])
    assert np.array_equal(alone, together[1])


@pytest.mark.parametrize("name", [n for n in ROUTERS if not n.startswith("fixed_recipe")])
def test_models_that_are_down_get_no_call(name: str) -> None:
    for records in routed(name, SEEDS, down_models=DOWN):
        assert not np.isin(records["model"], (0, 4)).any()


@pytest.mark.parametrize("name", ROUTERS)
def test_the_name_of_a_policy_makes_it_again(name: str) -> None:
    policy = resolve_policy(name)
    assert isinstance(policy, Policy) and policy.name.startswith(name.partition("::")[0])
    again = resolve_policy(policy.name)
    assert again.name == policy.name
    assert getattr(again, "sample", False) == getattr(policy, "sample", False)
    json.dumps(requires_of(policy))


QUEUES = [("queue", *of) for of in TEAMS if of[0] == "assignment" and of[1] != "optimum"]


@pytest.mark.parametrize(("load", "family", "name"), [*(("window", *of) for of in TEAMS), *QUEUES])
def test_a_policy_of_a_team_does_the_same_for_a_row_alone(
    load: str, family: str, name: str
) -> None:
    def played(seeds: list[int]) -> Any:
        policy = resolve_policy(name, family=family)
        if family != "assignment":
            return getattr(rollout, f"play_{family}")(policy, seeds)
        actions = np.zeros((len(seeds), 20))
        for done in rollout.play_assignment(policy, seeds, load=load, num_tasks=20):
            actions[done.row, done.ordinal] = done.action
        return {"actions": actions}

    together, alone = played([3, 4, 5]), played([4])
    for key, values in alone.items():
        assert np.array_equal(values[0], together[key][1]), key
