"""Supervisors by name, and what each does."""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.envs.coordination import CoordinationEnv
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import rules
from tests.policies.rollout import started


def steps(name: str, seed: int, scenario: str | None = None, **arguments: Any) -> list[str]:
    """What a policy does in an episode, in words."""
    simulation: Any = CoordinationEnv.simulation_of(arguments, 1)
    simulation.set_options(None if scenario is None else {"scenario": scenario})
    policy, row, done = resolve_policy(name, family="coordination"), np.zeros(1, np.int64), []
    observations = started(simulation, policy, [seed])
    while not simulation.over()[0]:
        action = policy.act_batch(observations, simulation.contexts(row), row)
        done.append(rules.NAMES[int(action[0])])
        simulation.step(row, action, observations)
    return done


def test_the_designs_order() -> None:
    assert steps("seed_supervisor", 0, "S1", noise=False)[:2] == ["route", "rewrite"]
    found = [steps("seed_supervisor", seed, "S2", noise=False) for seed in range(20)]
    whole = [one for one in found if "plan" in one]
    assert len(whole) > 10
    for one in whole:
        assert one[:3] == ["route", "plan", "rewrite"]
        assert one[3].startswith("retrieve in parallel") and one[4] == "synthesize"
    assert not any(
        "parallel" in s for one in (steps("sequential_supervisor", 3, "S2"),) for s in one
    )
    assert "plan" in steps("always_plan", 0, "S1", noise=False)
    assert "validate" not in steps("no_validate", 0, "S1", noise=False)
    assert steps("basic_rag", 0, "S1", noise=False) == ["retrieve vector", "answer"]
    assert steps("seed_supervisor", 0, "S7", noise=False)[0] == "trim"
    assert all(steps("always_plan", seed, "S3")[-1] == "fallback" for seed in range(5))
