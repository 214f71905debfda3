"""Topologies are the graphs that the specification draws; 25 roles in three domains."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    custom_graph,
    distinct_plans,
    graph,
)
from inframind_gym.tasks import DOMAINS, load_role_embeddings

EVERY = [(topology, count) for topology in TOPOLOGIES for count in range(1, MAX_AGENTS + 1)]


def reads(topology: str, count: int) -> list[set[int]]:
    """Nodes whose answers each node reads."""
    agents = range(count)
    return {
        "IO": [set() for _ in agents],
        "CoT": [set() for _ in agents],
        "Reflection": [set() for _ in agents],
        "Chain": [{j - 1} if j else set() for j in agents],
        "FullConnected": [set(range(j)) for j in agents],
        "Debate": [*(set() for _ in agents), *(set(agents) for _ in agents)],
    }[topology]


@pytest.mark.parametrize(("topology", "count"), EVERY)
def test_every_graph(topology: str, count: int) -> None:
    ours, expected = graph(topology, count), reads(topology, count)
    assert list(ours.predecessors) == [sum(1 << other for other in others) for others in expected]
    assert ours.num_nodes == len(expected) <= MAX_NODES
    assert list(ours.agents) == [node % count for node in range(ours.num_nodes)]
    assert ours.calls_per_node == (2 if topology == "Reflection" else 1)
    for wave, others in zip(ours.waves, expected, strict=True):
        assert wave == max((ours.waves[other] + 1 for other in others), default=0)


@pytest.mark.parametrize(
    ("topology", "count", "words"),
    [("IO", 0, "num_agents is 0; it must be between 1 and 6"), ("Ring", 3, "topology 'Ring'; the")],
)
def test_a_graph_that_there_is_not(topology: str, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        graph(topology, count)


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


def test_the_roles_of_a_domain_are_a_block_of_the_table() -> None:
    # The kernel keeps the first role and the number of roles of each domain.
    for domain in DOMAINS:
        indices = roles_of(domain)
        assert indices == tuple(range(indices[0], indices[0] + len(indices)))
        assert {ROLES[index].domain for index in indices} == {domain}
    assert sorted(i for domain in DOMAINS for i in roles_of(domain)) == list(range(25))


def test_every_role_has_an_embedding_of_its_own_of_length_one() -> None:
    embeddings = load_role_embeddings()
    assert embeddings.shape == (25, 384)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=2e-3)  # from float16
    likeness = embeddings @ embeddings.T
    np.fill_diagonal(likeness, 0.0)
    assert likeness.max() < 0.99
