"""Foresight says what the environment then does."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies.oracle.recipe import OUTCOME, PACE, RECIPE
from inframind_gym.policies.oracle.tables import set_idle_pace
from inframind_gym.simulator.quality import query_length_z
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES
from tests.baselines.recipes import carry_out, play_all, random_recipes


@pytest.mark.parametrize(
    ("workload", "execution"),
    [("math", "parallel"), ("mbpp", "parallel"), ("humaneval", "sequential")],
)
def test_a_recipe_does_what_was_foreseen(workload: str, protocol: str) -> None:
    env = stream(workload, protocol)
    recipes = random_recipes(env.simulation.num_queries, env.simulation.num_routes, seed=1)
    records, calls = carry_out(env, recipes)
    outcomes, work_s = foreseen(env, recipes)
    assert set(recipes["topology"]) == set(range(len(TOPOLOGIES)))
    assert set(recipes["num_agents"]) == set(range(1, MAX_AGENTS + 1))
    assert set(recipes["role_kind"]) == set(RoleRule)
    for field, recorded in (
        ("solved", "solved"),
        ("calls", "calls"),
        ("tokens", "output_tokens"),
        ("final_model", "final_model"),
        ("right", "right"),
    ):
        np.testing.assert_array_equal(outcomes[field], records[recorded], err_msg=field)
    assert 0.2 < outcomes["solved"].mean() < 1.0
    # Servers are shared: no query is faster than on idle ones.
    assert (records["latency_s"] >= outcomes["latency_s"] * (1 - 1e-9)).all()
    # And the work is no more than the time that the servers were at it.
    busy_s = np.array([covered_s(calls[calls["model"] == m]) for m in range(work_s.shape[1])])
    assert (work_s.sum(axis=0) <= busy_s).all()
    assert work_s.sum() > 0.05 * busy_s.sum()


def test_alone_on_idle_servers_a_query_takes_what_was_foreseen() -> None:
    env = stream("mmlu_pro", "parallel", rate_per_min=0.02, queries=12)
    recipes = np.zeros(12, RECIPE)
    recipes["num_agents"] = 1
    recipes["topology"] = np.arange(12) % 2 * TOPOLOGIES.index("Reflection")
    recipes["route"] = np.arange(12)[:, None]
    records, _ = carry_out(env, recipes)
    outcomes, _ = foreseen(env, recipes)
    np.testing.assert_allclose(records["latency_s"], outcomes["latency_s"], rtol=1e-9)


def stream(
    workload: str, protocol: str, rate_per_min: float = 20.0, queries: int = 80
) -> StreamVectorEnv:
    made = gym.make_vec(
        "InfraMind-Stream-v0",
        num_envs=1,
        workload=workload,
        execution=execution,
        level="joint",
        observation="index",
        num_queries=queries,
        arrival_rate_per_min=rate_per_min,
        record_calls=True,
    ).unwrapped
    assert isinstance(made, StreamVectorEnv)
    made.reset(seed=3)
    return made


def foreseen(
    env: StreamVectorEnv, recipes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Outcome (N,) and work (N, M) of every query by its own recipe."""
    simulation = env.simulation
    env.reset(seed=3)
    key = simulation.state.stream[0]["key"]
    card = cards(simulation.pool)
    pace = np.zeros(len(card), PACE)
    set_idle_pace(card, pace)
    n = len(recipes)
    work = np.zeros((n, len(card)))
    outcomes = np.zeros(n, OUTCOME)
    for q in range(n):
        play_all(
            simulation.params,
            card,
            pace,
            np.array([key]),
            np.array([q]),
            simulation.state.task[0, q : q + 1].astype(np.int64),
            np.array([query_length_z(key, q)], np.float32),
            recipes[q : q + 1],
            np.zeros((2, MAX_NODES)),
            work[q : q + 1, None],
            outcomes[q : q + 1, None],
        )
    return outcomes, work


def covered_s(calls: NDArray[Any]) -> float:
    """Time in which at least one of the calls was running."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(zip(calls["admitted_s"], calls["finish_s"], strict=True)):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
