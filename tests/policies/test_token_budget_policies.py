"""Policies of the token-budget environment, and the exact optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.envs.token_budget import TokenBudgetEnv
from inframind_gym.errors import ConfigError
from inframind_gym.policies import policy_names, resolve_policy
from inframind_gym.teams.token_budget.optimum import solve
from inframind_gym.teams.token_budget.settings import load_settings
from tests.policies.rollout import play_token_budget as play
from tests.policies.rollout import started

ALL = (*policy_names("token_budget"), "optimum")


def test_what_the_policies_are_named_for() -> None:
    results = {name: play(resolve_policy(name, family="token_budget"), range(300)) for name in ALL}
    assert set(results["single_shot"]["calls"]) == {1}
    assert set(results["fixed_k"]["calls"]) == {6}
    assert set(play(resolve_policy("fixed_k:3", family="token_budget"), range(20))["calls"]) == {3}
    assert results["spend_all"]["unspent_share"].mean() < 0.05
    assert results["adaptive_roi"]["unspent_share"].mean() > 0.3
    assert (
        results["adaptive_roi_strict"]["tokens"].mean() < results["adaptive_roi"]["tokens"].mean()
    )
    for name, found in results.items():
        assert results["optimum"]["return"].mean() - found["return"].mean() >= 0.0, name
        assert found["reported_quality"].mean() > found["quality"].mean(), name  # rated too kindly


def test_names_that_are_none() -> None:
    for name in ("adaptive_roi:2", "fixed_k:0", "fixed_k:x", "optimun"):
        with pytest.raises(ConfigError):
            resolve_policy(name, family="token_budget")


# The exact optimum


def reference(complexity: int, budget: int, price: float) -> float:
    """Value of a fresh task by sampling: the simulation played by the solved actions."""
    policy, seeds = resolve_policy("optimum", family="token_budget"), range(3000)
    found = play(policy, seeds, budget=budget, price=price)
    simulation: Any = TokenBudgetEnv.simulation_of({"budget": budget, "price": price}, len(seeds))
    started(simulation, policy, seeds)
    return float(found["return"][simulation.task.complexity == complexity].mean())


@pytest.mark.parametrize(("budget", "price"), [(20_000, 0.001), (4_000, 0.0005)])
def test_the_value_is_what_playing_the_optimum_brings(budget: int, price: float) -> None:
    """Dynamic programming and simulation share no code for transitions and tokens."""
    for complexity in range(3):
        solved = solve(load_settings(), complexity, budget, price, 150)
        value = solved.look_up(solved.value, np.array([budget - 200]), np.zeros(1, np.int64))[0]
        assert reference(complexity, budget, price) == pytest.approx(value, abs=0.012)
