"""The six topologies are the graphs that the specification draws; the tables say the same."""

from __future__ import annotations

import pytest

from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    distinct_plans,
    graph,
)
from tests.simulator.reference.workflow import build_nodes

EVERY = [(topology, count) for topology in TOPOLOGIES for count in range(1, MAX_AGENTS + 1)]


def bits(mask: int) -> tuple[int, ...]:
    return tuple(node for node in range(32) if mask >> node & 1)


@pytest.mark.parametrize(("topology", "count"), EVERY)
def test_graph_is_the_reference_graph(topology: str, count: int) -> None:
    ours, nodes = graph(topology, count), build_nodes(topology, count)
    assert [bits(mask) for mask in ours.predecessors] == [n.predecessors for n in nodes]
    assert list(ours.agents) == [n.agent for n in nodes]
    assert {ours.calls_per_node} == {n.num_calls for n in nodes}
    assert ours.num_nodes == len(nodes) <= MAX_NODES
    for node, mask in enumerate(ours.predecessors):
        after = [ours.waves[other] + 1 for other in bits(mask)]
        assert ours.waves[node] == max(after, default=0)


@pytest.mark.parametrize("count", [0, -1, MAX_AGENTS + 1])
def test_a_graph_has_one_to_six_agents(count: int) -> None:
    with pytest.raises(ValueError, match=rf"num_agents is {count}; it must be between 1 and 6"):
        graph("IO", count)


def test_an_unknown_topology_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown topology 'Ring'; the six are IO, CoT, Chain"):
        graph("Ring", 3)


def test_distinct_plans_have_every_graph_and_only_one_of_them_twice() -> None:
    plans = [(TOPOLOGIES[topology], count) for topology, count in distinct_plans()]
    graphs = [graph(*plan) for plan in plans]
    assert set(graphs) == {graph(*plan) for plan in EVERY}
    again = [plan for i, plan in enumerate(plans) if graphs[i] in graphs[:i]]
    assert again == [("FullConnected", 2)]
    assert distinct_plans((2, 1))[:2] == ((0, 2), (0, 1))
