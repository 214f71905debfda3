"""What holds for every sweep, whoever decides and however busy the servers are."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import FINAL, FIRST, PLAN, ROUTE, SECOND
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph

QUERIES = 12
POLL_S = 5.0


@pytest.fixture(scope="module", params=["parallel", "sequential"])
def stream(request: pytest.FixtureRequest) -> Any:
    """A Stream in which plans and routes are the agent's."""
    return gym.make(
        "InfraMind-Stream-v0",
        level="joint",
        observation="index",
        system_features=["queue", "e2e", "kv"],
        execution=request.param,
        num_queries=QUERIES,
        record_calls=True,
    ).unwrapped


def play(env: Any, seed: int, rate: float, budget_s: float) -> dict[str, Any]:
    """One sweep of random plans and routes."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(
        seed=seed, options={"arrival_rate_per_min": rate, "budget_s": budget_s}
    )
    names = ("contexts", "observations", "rewards", "costs", "told")
    trace: dict[str, list[Any]] = {name: [] for name in names}
    over = False
    while not over:
        seen = env.context(), observation
        observation, reward, over, _, info = env.step(rng.integers(0, env.action_space.nvec))
        for name, value in zip(names, (*seen, reward, info["cost"], env.completed()), strict=True):
            trace[name].append(value)
    return {
        **{name: np.array(trace[name]) for name in names[:-1]},
        "told": trace["told"],
        "completed": np.concatenate(trace["told"]),
        "calls": env.calls(),
        "info": info,
        "execution": env.simulation.execution,
        "layout": env.simulation.layout,
    }


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**31 - 1),
    rate=st.sampled_from([2.0, 60.0, 600.0, 60_000.0]),
    budget_s=st.sampled_from([0.5, 30.0, 1000.0]),
)
def test_every_sweep_keeps_the_rules(stream: Any, seed: int, rate: float, budget_s: float) -> None:
    run = play(stream, seed, rate, budget_s)
    every_query_completes_once(run)
    calls_are_what_the_topology_implies(run)
    one_decision_a_node_after_the_plan(run)
    time_and_telemetry(run)
    budgets_only_fall(run)
    rewards_and_costs_add_up(run)


def every_query_completes_once(run: dict[str, Any]) -> None:
    done = run["completed"]
    assert sorted(done["query"].tolist()) == list(range(QUERIES))
    assert np.all(done["latency_s"] > 0.0)
    assert np.all(np.isfinite(done["latency_s"]))
    assert np.all(done["finish_s"] > done["arrival_s"])
    assert np.all(np.diff(done["finish_s"]) >= 0.0)
    assert np.all(np.isin(done["solved"], (0, 1)))
    assert np.all(np.diff(done["arrival_s"][np.argsort(done["query"])]) > 0.0)
    wall = done["finish_s"] - done["arrival_s"]
    if run["execution"] == "parallel":
        np.testing.assert_allclose(done["latency_s"], wall, rtol=1e-12)
    else:  # the slowest path, without the deciding call
        assert np.all(done["latency_s"] < wall)


def calls_are_what_the_topology_implies(run: dict[str, Any]) -> None:
    calls = run["calls"]
    assert len(calls) == run["completed"]["calls"].sum()
    assert np.all(calls["output_tokens"] >= 1)
    assert np.all(calls["output_tokens"] <= 2048)
    assert np.array_equal(calls["truncated"] == 1, calls["output_tokens"] == 2048)
    assert np.all(calls["submit_s"] <= calls["admitted_s"])
    assert np.all(calls["admitted_s"] < calls["first_token_s"])
    assert np.all(calls["first_token_s"] <= calls["finish_s"])
    for query in run["completed"]:
        drawn = graph(TOPOLOGIES[query["topology"]], int(query["num_agents"]))
        nodes = drawn.num_nodes
        assert query["num_nodes"] == nodes
        own = calls[calls["query"] == query["query"]]
        final = own["phase"] == FINAL
        assert final.sum() == 1
        assert own["finish_s"][final] == own["finish_s"].max() == query["finish_s"]
        assert own["submit_s"][final] >= own["finish_s"][~final].max()
        counts = np.bincount(own["node"][~final], minlength=nodes)
        again = own[own["phase"] == SECOND]
        first = own[np.isin(own["node"], again["node"]) & (own["phase"] == FIRST)]
        assert sorted(again["submit_s"]) == sorted(first["finish_s"]), "a second call follows"
        for node, count in enumerate(counts.tolist()):
            role = ROLES[query["role"][node]]
            if count:
                assert count == max(drawn.calls_per_node, role.calls)
            else:  # it handed on proven code that it read
                assert role.domain == "Code"
                assert query["right"] & drawn.predecessors[node]
                assert query["right"] >> node & 1
        assert own["output_tokens"].sum() == query["output_tokens"]
        assert own["prompt_tokens"].sum() == query["prompt_tokens"]
        assert own["truncated"].sum() == query["truncated_calls"]
        assert query["model"][:nodes].min() >= 0
        for field in ("model", "strategy", "role"):
            assert set(query[field][nodes:].tolist()) <= {-1}, "nothing left of earlier queries"
        assert not query["node_latency_s"][nodes:].any()
        if run["execution"] == "sequential":  # one call of a query at a time
            own = np.sort(own, order="submit_s")
            assert np.all(own["submit_s"][1:] >= own["finish_s"][:-1])


def one_decision_a_node_after_the_plan(run: dict[str, Any]) -> None:
    contexts = run["contexts"]
    for query in run["completed"]:
        own = contexts[contexts["query"] == query["query"]]
        assert own["kind"].tolist() == [PLAN] + [ROUTE] * int(query["num_nodes"])
        assert sorted(own["node"][1:].tolist()) == list(range(query["num_nodes"]))
        assert own["time_s"][0] == query["arrival_s"]
        assert set(own["task"].tolist()) == {query["task"]}
        assert set(own["budget_s"].tolist()) == {query["budget_s"]}
        waves = graph(TOPOLOGIES[query["topology"]], int(query["num_agents"])).waves
        assert own["wave"][1:].tolist() == [waves[node] for node in own["node"][1:]]
        assert set(own["num_waves"][1:].tolist()) == {max(waves) + 1}
        if run["execution"] == "parallel":  # a wave is decided at one instant
            for wave in range(max(waves) + 1):
                assert len(set(own["time_s"][1:][own["wave"][1:] == wave].tolist())) == 1


def time_and_telemetry(run: dict[str, Any]) -> None:
    contexts, observations = run["contexts"], run["observations"]
    assert np.all(np.diff(contexts["time_s"]) >= 0.0)
    assert np.all(contexts["telemetry_age_s"] >= 0.0)
    assert np.all(contexts["telemetry_age_s"] <= POLL_S + 1e-9)
    np.testing.assert_allclose(
        contexts["time_s"] - contexts["telemetry_age_s"], contexts["poll"] * POLL_S, atol=1e-6
    )
    layout = run["layout"]
    for feature in ("queue", "e2e", "kv"):
        assert np.all(observations[:, layout.system(feature)] >= 0.0)
    assert np.all(observations[:, layout.system("kv")] <= 1.0)
    assert np.all(np.isfinite(observations))
    # Between two polls the router sees the same numbers.
    seen = observations[:, layout.budget + 1 : layout.size]
    same = np.flatnonzero(np.diff(contexts["poll"]) == 0)
    assert np.array_equal(seen[same], seen[same + 1])
    assert not observations[contexts["poll"] == 0][:, layout.budget + 1 : layout.size].any()
    queue_is_what_was_there_at_the_poll(run)


def queue_is_what_was_there_at_the_poll(run: dict[str, Any]) -> None:
    contexts, calls = run["contexts"], run["calls"]
    depth = run["layout"].queue_depth_req(run["observations"])
    for i in np.unique(contexts["poll"], return_index=True)[1]:
        poll_s = contexts["poll"][i] * POLL_S
        if poll_s == 0.0:
            continue
        there: NDArray[np.bool_] = (calls["submit_s"] < poll_s) & (calls["finish_s"] > poll_s)
        expected = np.bincount(calls["model"][there], minlength=5)
        np.testing.assert_allclose(depth[i], expected, atol=1e-4)


def budgets_only_fall(run: dict[str, Any]) -> None:
    contexts = run["contexts"]
    remaining = run["layout"].remaining_budget_s(run["observations"])
    assert np.all(remaining <= np.maximum(contexts["budget_s"], 1.0) * (1 + 1e-5))
    if run["execution"] == "parallel":
        spent = contexts["time_s"] - contexts["arrival_s"]
        expected = np.maximum(contexts["budget_s"] - spent, 1.0)
        np.testing.assert_allclose(remaining, expected, rtol=1e-5)
    for query in range(QUERIES):
        assert np.all(np.diff(remaining[contexts["query"] == query]) <= 1e-3)


def rewards_and_costs_add_up(run: dict[str, Any]) -> None:
    done, info = run["completed"], run["info"]
    for reward, cost, told in zip(run["rewards"], run["costs"], run["told"], strict=True):
        assert reward == told["solved"].sum()
        assert cost == pytest.approx((told["latency_s"] / told["budget_s"]).sum(), rel=1e-12)
    assert info["queries"] == QUERIES
    assert info["solve_rate"] == pytest.approx(done["solved"].mean())
    assert info["mean_cost"] == pytest.approx(done["cost"].mean())
    assert info["episode_cost"] == pytest.approx(run["costs"].sum())
