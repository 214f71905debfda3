"""One query alone: when its calls are made, what they read, and which decision pays for what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.simulator.server.state import FREE_IDS, USED_IDS
from inframind_gym.simulator.workflow.backend import Reply
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND, TOPOLOGIES, Graph, graph
from tests.simulator.workflow.backend_play import Scripted, Sweep, by_node, play

BUDGET_S = 20.0
# Seconds of the first, second and deciding calls, by node. Debate has nodes 0 and 1 in its first
# round and 2 and 3, each of which reads both, in its second.
LATENCY_S = {
    "IO": ((4.0, 6.0), (), 2.0),
    "CoT": ((4.0, 6.0, 3.0, 1.0), (), 2.0),
    "Chain": ((4.0, 3.0, 5.0), (), 2.0),
    "FullConnected": ((4.0, 3.0, 5.0), (), 2.0),
    "Debate": ((4.0, 6.0, 3.0, 1.0), (), 2.0),
    "Reflection": ((2.0, 4.0), (3.0, 4.0), 1.0),
}
# Agent 0 designs algorithms and answers once; 1 and 2 fix bugs and plan and answer twice.
BY_ROLE_S = ((4.0, 3.0, 5.0, 2.0), (1.0, 2.0, 1.0, 1.0), 2.0)
ANSWER_TOKENS = 100


@pytest.mark.parametrize(
    ("topology", "execution", "roles", "starts_s", "remaining_s", "paid_s", "finish_s"),
    [
        ("IO", "parallel", False, [0, 0, 6], [20, 20], [0, 8], 8),
        # One after the other on the wall clock, side by side on the graph's; the deciding call does
        # not count. Each decision pays for what it adds to the slowest path.
        ("IO", "sequential", False, [0, 4, 10], [20, 20], [4, 2], 12),
        ("CoT", "parallel", False, [0, 0, 0, 0, 6], [20] * 4, [0, 0, 0, 8], 8),
        ("CoT", "sequential", False, [0, 4, 10, 13, 14], [20] * 4, [4, 2, 0, 0], 16),
        ("Chain", "parallel", False, [0, 4, 7, 12], [20, 16, 13], [4, 3, 7], 14),
        ("Chain", "sequential", False, [0, 4, 7, 12], [20, 16, 13], [4, 3, 5], 14),
        ("FullConnected", "parallel", False, [0, 4, 7, 12], [20, 16, 13], [4, 3, 7], 14),
        ("FullConnected", "sequential", False, [0, 4, 7, 12], [20, 16, 13], [4, 3, 5], 14),
        # Round one ends at 6, round two at 6 + 3, the deciding call at 11.
        ("Debate", "parallel", False, [0, 0, 6, 6, 9], [20, 20, 14, 14], [0, 6, 0, 5], 11),
        # Along the graph max(4, 6) + max(3, 1).
        ("Debate", "sequential", False, [0, 4, 10, 13, 14], [20, 20, 14, 14], [4, 2, 3, 0], 16),
        # Each second call follows its own first: 0 over [0, 2, 5], 1 over [0, 4, 8].
        ("Reflection", "parallel", False, [0, 0, 2, 4, 8], [20, 20], [0, 9], 9),
        # 0 over [0, 2, 5], 1 over [5, 9, 13]; the latency is max(2 + 3, 4 + 4).
        ("Reflection", "sequential", False, [0, 2, 5, 9, 13], [20, 20], [5, 3], 14),
        # Roles that answer twice.
        ("IO", "parallel", True, [0, 0, 0, 3, 5, 6], [20] * 3, [0, 0, 8], 8),
        # Along the graph max(4, 3 + 2, 5 + 1).
        ("IO", "sequential", True, [0, 4, 7, 9, 14, 15], [20] * 3, [4, 1, 1], 17),
        ("Chain", "parallel", True, [0, 4, 7, 9, 14, 15], [20, 16, 11], [4, 5, 8], 17),
        ("Chain", "sequential", True, [0, 4, 7, 9, 14, 15], [20, 16, 11], [4, 5, 6], 17),
        # In round two 0 over [5, 10], 1 over [5, 7, 8].
        ("Debate", "parallel", True, [0, 0, 3, 5, 5, 7, 10], [20, 20, 15, 15], [0, 5, 0, 7], 12),
        # No third call.
        ("Reflection", "parallel", True, [0, 0, 0, 3, 4, 5, 6], [20] * 3, [0, 0, 8], 8),
    ],
)
def test_a_query_by_hand(
    topology: str,
    execution: str,
    roles: bool,
    starts_s: list[float],
    remaining_s: list[float],
    paid_s: list[float],
    finish_s: float,
) -> None:
    first, second, deciding = BY_ROLE_S if roles else LATENCY_S[topology]
    by_phase = {FIRST: first, SECOND: second, FINAL: (deciding,)}
    nodes = len(paid_s)
    agents = 2 if topology == "Debate" else nodes
    models = [1, 0, 0, 1][:nodes]
    plan = [TOPOLOGIES.index(topology), agents - 1, *range(6)] if roles else []
    rules: dict[str, Any] = {"topology": topology, "num_agents": agents}
    if roles:
        rules = {"level": "joint", "workload": "mbpp", "agents": {"role_calls": True}}
    scripted = Scripted(
        lambda call: Reply(
            by_phase[call.phase][call.node], ANSWER_TOKENS + call.node, right=call.node == 0
        ),
        execution=execution,
        one_query=True,
        background="none",
        **rules,
    )
    route = by_node(models, strategy=2)
    sweep = scripted.play(
        lambda context, seen: np.array([*plan, *route(context, seen)]), budget_s=BUDGET_S
    )
    (query,) = sweep.completed
    assert np.sort(sweep.calls["submit_s"] - query["arrival_s"]) == pytest.approx(starts_s)
    routed = slice(int(roles), int(roles) + nodes)  # behind the plan
    left_s = scripted.simulation.layout.remaining_budget_s(sweep.observations[routed])
    assert left_s == pytest.approx(remaining_s, rel=1e-5)
    assert sweep.contexts["node"][routed].tolist() == list(range(nodes))
    assert query["model"][:nodes].tolist() == models
    assert set(query["strategy"][:nodes].tolist()) == {2}
    # the most used model, or the one that was used first
    assert query["final_model"] == (0 if len(models) == 3 else 1)
    assert query["latency_s"] == pytest.approx(sum(paid_s))
    assert query["cost"] == pytest.approx(sum(paid_s) / BUDGET_S)
    assert sweep.costs[: routed.start + 1].sum() == 0.0  # of the plan
    assert sweep.costs[routed.start + 1 :][:nodes] == pytest.approx(np.array(paid_s) / BUDGET_S)
    assert query["finish_s"] - query["arrival_s"] == pytest.approx(finish_s)
    assert (query["right"], query["solved"]) == (1, 1)
    assert sweep.rewards[routed.stop] == sweep.rewards.sum() == 1.0
    if not roles:
        lasted_s = np.array(first) + (np.array(second) if second else 0.0)
        assert query["node_latency_s"][:nodes] == pytest.approx(lasted_s)
    prompts_hold_what_the_graph_lets_a_node_read(scripted, graph(topology, agents))


def prompts_hold_what_the_graph_lets_a_node_read(scripted: Scripted, drawn: Graph) -> None:
    params, calls = scripted.simulation.params, scripted.opened[0].calls
    profile = params.response.task_profile[calls[0].task]
    own = int(params.task_tokens[calls[0].task]) + int(params.overhead_tokens[profile])
    assert set(params.message_frac.tolist()) == {1.0}
    last = sorted({agent: node for node, agent in enumerate(drawn.agents)}.values())
    for call in calls:
        before = {other for other in last if call.phase == FINAL}
        if call.phase != FINAL:
            mask = drawn.predecessors[call.node]
            before = {other for other in range(call.node) if mask >> other & 1}
        if call.phase == SECOND:
            before.add(call.node)
        assert call.reads == tuple(sorted(before))
        assert call.prompt_tokens == own + sum(ANSWER_TOKENS + node for node in before)


def alone(
    topology: str = "IO",
    num_agents: int = 4,
    *,
    models: list[int],
    one_query: bool = True,
    budget_s: float = 300.0,
    **arguments: Any,
) -> tuple[RoutingSimulation, Sweep]:
    """One query on the simulated servers."""
    plan = {"topology": topology, "num_agents": num_agents}
    defaults: dict[str, Any] = {"observation": "index", "record_calls": True, "num_queries": 1}
    defaults |= {"planner": plan, "agents": {}, "background": "none"}
    config = checked_arguments(EnvConfig, {**defaults, **arguments})
    simulation = RoutingSimulation(config, 1, one_query=one_query)
    return simulation, play(simulation, by_node(models), seed=5, budget_s=budget_s)


@pytest.mark.parametrize(
    ("models", "final"),
    [([2, 1, 0, 0, 1], 1), ([0, 1, 1, 2, 2, 0], 0), ([3, 3, 1, 1, 1, 3], 3), ([4, 2, 2, 0], 2)],
)
def test_the_model_used_most_decides_and_of_equals_the_first(models: list[int], final: int) -> None:
    _, sweep = alone("IO", len(models), models=models)
    assert sweep.completed["final_model"].tolist() == [final]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_servers_have_room_for_every_call_at_once(topology: str) -> None:
    # Compiled code does not check bounds: six agents at once, and the next call of one of them is
    # sent before the place of the last one is free.
    simulation, _ = alone(topology, 6, models=[0])
    cluster = simulation.cluster
    assert cluster.counts[0, USED_IDS] <= cluster.request.shape[1]
    assert cluster.counts[0, USED_IDS] == cluster.counts[0, FREE_IDS], "all were given back"


@pytest.mark.parametrize("topology", ["Debate", "Reflection"])
def test_a_stream_of_one_query_is_the_same_query(topology: str) -> None:
    (_, tagged), (_, streamed) = (
        alone(topology, 3, models=[2, 0, 2], one_query=one_query) for one_query in (True, False)
    )
    assert np.array_equal(streamed.calls, tagged.calls)
    assert streamed.completed == tagged.completed
    assert np.array_equal(streamed.contexts[:3], tagged.contexts[:3])
    # A stream pays once, when the query is over.
    assert np.count_nonzero(streamed.costs) == 1
    assert streamed.costs.sum() == pytest.approx(tagged.costs.sum())


@pytest.mark.parametrize("scheduler", ["edf", "edf_late_last", "fcfs"])
def test_priority_of_calls(scheduler: str) -> None:
    _, sweep = alone("Chain", models=[0], budget_s=12.0, scheduler=scheduler)
    deadline_s = sweep.completed[0]["arrival_s"] + 12.0
    late = sweep.calls["submit_s"] >= deadline_s
    assert late.any() and not late.all()
    priority = sweep.calls["priority"]
    if scheduler == "edf":
        assert np.all(priority == deadline_s)
    elif scheduler == "fcfs":
        assert len(set(priority.tolist())) == 1
    else:
        assert np.all(priority[~late] == deadline_s)
        assert priority[late].min() > 1e6 > deadline_s


def test_a_call_to_a_model_that_is_down_goes_to_the_next_one_that_is_up() -> None:
    _, sweep = alone("IO", 5, models=[0, 1, 2, 3, 4], down_models=["llama-3b", "deepseek-32b"])
    (query,) = sweep.completed
    assert query["model"][:5].tolist() == [1, 1, 2, 3, 1]
    assert query["final_model"] == 1
