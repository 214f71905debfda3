"""The six topologies are the graphs that the specification draws; the tables say the same."""

from __future__ import annotations

import pytest

from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    STRUCTURES,
    TOPOLOGIES,
    custom_graph,
    distinct_plans,
    graph,
    graph_tables,
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


def test_a_structure_is_a_property_of_the_graph() -> None:
    kinds = {plan: graph(*plan).structure for plan in EVERY}
    assert {kinds["IO", n] for n in range(1, 7)} | {kinds["CoT", 6]} == {"isolated"}
    assert kinds["Chain", 1] == kinds["FullConnected", 1] == "isolated"  # one agent reads nobody
    assert kinds["Chain", 2] == kinds["FullConnected", 2] == kinds["Chain", 6] == "chain"
    assert {kinds["FullConnected", n] for n in range(3, 7)} == {"dense"}
    assert {kinds["Debate", n] for n in range(1, 7)} == {"debate"}
    assert {kinds["Reflection", n] for n in range(1, 7)} == {"reflection"}
    assert custom_graph(4, []).structure == "isolated"
    assert custom_graph(4, [(0, 2), (1, 3)]).structure == "chain"
    assert custom_graph(4, [(0, 2), (1, 2)]).structure == "dense"


def test_the_table_has_the_structures() -> None:
    extra = custom_graph(3, [(0, 1), (0, 2), (1, 2)])
    table = graph_tables([extra]).structure
    for topology, count in EVERY:
        said = STRUCTURES[table[TOPOLOGIES.index(topology), count - 1]]
        assert said == graph(topology, count).structure
    assert STRUCTURES[table[len(TOPOLOGIES), 2]] == "dense"
