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
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND, TOPOLOGIES
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


@pytest.mark.parametrize(
    ("topology", "execution", "starts_s", "remaining_s", "paid_s", "finish_s"),
    [
        ("IO", "parallel", [0, 0, 6], [20, 20], [0, 8], 8),
        # One after the other on the wall clock, side by side on the graph's; the deciding call does
        # not count. Each decision pays for what it adds to the slowest path.
        ("IO", "sequential", [0, 4, 10], [20, 20], [4, 2], 12),
        ("CoT", "parallel", [0, 0, 0, 0, 6], [20] * 4, [0, 0, 0, 8], 8),
        ("CoT", "sequential", [0, 4, 10, 13, 14], [20] * 4, [4, 2, 0, 0], 16),
        ("Chain", "parallel", [0, 4, 7, 12], [20, 16, 13], [4, 3, 7], 14),
        ("Chain", "sequential", [0, 4, 7, 12], [20, 16, 13], [4, 3, 5], 14),
        ("FullConnected", "parallel", [0, 4, 7, 12], [20, 16, 13], [4, 3, 7], 14),
        ("FullConnected", "sequential", [0, 4, 7, 12], [20, 16, 13], [4, 3, 5], 14),
        # Round one ends at 6, round two at 6 + 3, the deciding call at 11.
        ("Debate", "parallel", [0, 0, 6, 6, 9], [20, 20, 14, 14], [0, 6, 0, 5], 11),
        # Along the graph max(4, 6) + max(3, 1).
        ("Debate", "sequential", [0, 4, 10, 13, 14], [20, 20, 14, 14], [4, 2, 3, 0], 16),
        # Each second call follows its own first: 0 over [0, 2, 5], 1 over [0, 4, 8].
        ("Reflection", "parallel", [0, 0, 2, 4, 8], [20, 20], [0, 9], 9),
        # 0 over [0, 2, 5], 1 over [5, 9, 13]; the latency is max(2 + 3, 4 + 4).
        ("Reflection", "sequential", [0, 2, 5, 9, 13], [20, 20], [5, 3], 14),
    ],
)
def test_a_query_by_hand(
    topology: str,
    execution: str,
    starts_s: list[float],
    remaining_s: list[float],
    paid_s: list[float],
    finish_s: float,
) -> None:
    first, second, deciding = LATENCY_S[topology]
    by_phase = {FIRST: first, SECOND: second, FINAL: (deciding,)}
    models = [1, 0, 0, 1][: len(first)]
    scripted = Scripted(
        lambda call: Reply(by_phase[call.phase][call.node], right=call.node == 0),
        topology=topology,
        num_agents=2 if topology == "Debate" else len(first),
        execution=execution,
        one_query=True,
        background="none",
    )
    sweep = scripted.play(by_node(models, strategy=2), budget_s=BUDGET_S)
    (query,) = sweep.completed
    assert np.sort(sweep.calls["submit_s"] - query["arrival_s"]) == pytest.approx(starts_s)
    left_s = scripted.simulation.layout.remaining_budget_s(sweep.observations[: len(first)])
    assert left_s == pytest.approx(remaining_s, rel=1e-5)
    assert sweep.contexts["node"][: len(first)].tolist() == list(range(len(first)))
    assert query["model"][: len(first)].tolist() == models
    assert set(query["strategy"][: len(first)].tolist()) == {2}
    # the most used model, or the one that was used first
    assert query["final_model"] == (0 if topology in ("Chain", "FullConnected") else 1)
    assert query["latency_s"] == pytest.approx(sum(paid_s))
    assert query["cost"] == pytest.approx(sum(paid_s) / BUDGET_S)
    assert sweep.costs[1 : len(first) + 1] == pytest.approx(np.array(paid_s) / BUDGET_S)
    assert query["finish_s"] - query["arrival_s"] == pytest.approx(finish_s)
    lasted_s = np.array(first) + (np.array(second) if second else 0.0)
    assert query["node_latency_s"][: len(first)] == pytest.approx(lasted_s)
    assert (query["right"], query["solved"]) == (1, 1)
    assert sweep.rewards[len(first)] == sweep.rewards.sum() == 1.0


@pytest.mark.parametrize(
    ("topology", "execution", "starts_s", "remaining_s", "paid_s", "finish_s"),
    [
        ("IO", "parallel", [0, 0, 0, 3, 5, 6], [20] * 3, [0, 0, 8], 8),
        # Along the graph max(4, 3 + 2, 5 + 1).
        ("IO", "sequential", [0, 4, 7, 9, 14, 15], [20] * 3, [4, 1, 1], 17),
        ("Chain", "parallel", [0, 4, 7, 9, 14, 15], [20, 16, 11], [4, 5, 8], 17),
        ("Chain", "sequential", [0, 4, 7, 9, 14, 15], [20, 16, 11], [4, 5, 6], 17),
        # In round two 0 over [5, 10], 1 over [5, 7, 8].
        ("Debate", "parallel", [0, 0, 3, 5, 5, 7, 10], [20, 20, 15, 15], [0, 5, 0, 7], 12),
        # No third call.
        ("Reflection", "parallel", [0, 0, 0, 3, 4, 5, 6], [20] * 3, [0, 0, 8], 8),
    ],
)
def test_roles_that_answer_twice(
    topology: str,
    execution: str,
    starts_s: list[float],
    remaining_s: list[float],
    paid_s: list[float],
    finish_s: float,
) -> None:
    """Agent 0 designs algorithms and answers once; 1 and 2 fix bugs and plan and answer twice."""
    nodes = len(paid_s)
    by_phase = {FIRST: (4.0, 3.0, 5.0, 2.0), SECOND: (1.0, 2.0, 1.0, 1.0), FINAL: (2.0,)}
    scripted = Scripted(
        lambda call: Reply(by_phase[call.phase][call.node]),
        level="joint",
        workload="mbpp",
        agents={"role_calls": True},
        execution=execution,
        one_query=True,
        background="none",
    )
    agents = 2 if topology == "Debate" else 3
    action = np.array([TOPOLOGIES.index(topology), agents - 1, *range(6), 0])
    sweep = scripted.play(lambda context, observation: action, budget_s=BUDGET_S)
    (query,) = sweep.completed
    assert np.sort(sweep.calls["submit_s"] - query["arrival_s"]) == pytest.approx(starts_s)
    left_s = scripted.simulation.layout.remaining_budget_s(sweep.observations[1 : nodes + 1])
    assert left_s == pytest.approx(remaining_s, rel=1e-5)
    assert query["latency_s"] == pytest.approx(sum(paid_s))
    assert sweep.costs[1] == 0.0  # of the plan
    assert sweep.costs[2 : nodes + 2] == pytest.approx(np.array(paid_s) / BUDGET_S)
    assert query["finish_s"] - query["arrival_s"] == pytest.approx(finish_s)


@pytest.mark.parametrize(
    ("models", "final"),
    [([2, 1, 0, 0, 1], 1), ([0, 1, 1, 2, 2, 0], 0), ([3, 3, 1, 1, 1, 3], 3), ([4, 2, 2, 0], 2)],
)
def test_the_model_used_most_decides_and_of_equals_the_first(models: list[int], final: int) -> None:
    _, sweep = alone("IO", len(models), models=models)
    assert sweep.completed["final_model"].tolist() == [final]


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


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_prompts_hold_the_answers_that_the_graph_lets_a_node_read(
    topology: str, execution: str
) -> None:
    simulation, sweep = alone(topology, models=[0, 1, 2], execution=execution)
    params, calls = simulation.params, sweep.calls
    task = sweep.completed[0]["task"]
    own = int(params.task_tokens[task]) + int(
        params.overhead_tokens[params.response.task_profile[task]]
    )
    assert set(params.message_frac.tolist()) == {1.0}
    first, second = (
        {int(call["node"]): int(call["output_tokens"]) for call in calls[calls["phase"] == phase]}
        for phase in (FIRST, SECOND)
    )
    answer = first | second
    reads: dict[int, tuple[int, ...]] = {
        "Chain": {j: (j - 1,) if j else () for j in range(4)},
        "FullConnected": {j: tuple(range(j)) for j in range(4)},
        "Debate": {j: () if j < 4 else (0, 1, 2, 3) for j in range(8)},
    }.get(topology, dict.fromkeys(range(4), ()))
    for call in calls:
        node = int(call["node"])
        if call["phase"] == FINAL:  # reads every agent's last answer
            heard = [answer[other] for other in sorted(answer)[-4:]]
        elif call["phase"] == SECOND:  # its own first answer
            heard = [first[node]]
        else:
            heard = [answer[other] for other in reads[node]]
        assert call["prompt_tokens"] == own + sum(heard)


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
    down = ["llama-3b", "deepseek-32b"]
    _, sweep = alone("IO", 5, models=[0, 1, 2, 3, 4], down_models=down)
    (query,) = sweep.completed
    assert query["model"][:5].tolist() == [1, 1, 2, 3, 1]
    assert query["final_model"] == 1
