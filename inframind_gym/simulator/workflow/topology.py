"""Collaboration of agents: six topologies as directed acyclic graphs of agent executions.

A *node* is one execution of an agent: in Debate, whose agents speak in two rounds, K agents make 2K
nodes. A node is ready when all its predecessors are done. Source: the graphs of
MasRouter (ACL 2025): IO and CoT are isolated agents, Chain links each agent to
the next, FullConnected is the complete graph i < j, Debate has no links within a round and all of
them between its two rounds, Reflection is isolated agents that each make a second call. Every
topology ends with one further call that decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import Int32s, zeros

TOPOLOGIES: Final = ("IO", "CoT", "Chain", "Debate", "Reflection", "FullConnected")
CUSTOM: Final = "custom"  # name of a fixed plan's own graph, beyond the six
MAX_AGENTS: Final = 6
MAX_NODES: Final = 2 * MAX_AGENTS
DEBATE_ROUNDS: Final = 2

# Structures of graphs, whatever their names: isolated agents; each reads at most one other; some
# read several; agents that speak in rounds; agents that revise their own answers.
STRUCTURES: Final = ("isolated", "chain", "dense", "debate", "reflection")

# Phases of a call.
FIRST: Final = 0
SECOND: Final = 1  # the revising call of Reflection
FINAL: Final = 2  # the call that decides

# The prompt strategies of the executor and what they add to the prompt.
STRATEGIES: Final = ("Flash", "Concise", "DeepThink")

STRATEGY_INSTRUCTIONS: Final = {
    "Flash": "Go straight to the answer. No reasoning.",
    "Concise": "Brief 2-3 key points, then answer.",
    "DeepThink": "Reason thoroughly step-by-step, verify result.",
}


class Graph(NamedTuple):
    """A topology for a given number of agents.

    Attributes:
        predecessors: per node, a bit mask of the nodes whose answers it reads.
        agents: per node, the agent (and so the role) that executes it.
        calls_per_node: 2 where every node makes a second, revising call (Reflection), else 1.
    """

    predecessors: tuple[int, ...]
    agents: tuple[int, ...]
    calls_per_node: int

    @property
    def num_nodes(self) -> int:
        """Number of executions, which is the number of routing decisions."""
        return len(self.predecessors)

    @property
    def structure(self) -> str:
        """Kind of the graph, one of STRUCTURES; equal graphs have one, whatever their names."""
        if self.calls_per_node == 2:
            return "reflection"
        if len(set(self.agents)) < self.num_nodes:
            return "debate"
        most = max(mask.bit_count() for mask in self.predecessors)
        return ("isolated", "chain", "dense")[min(most, 2)]

    @property
    def waves(self) -> tuple[int, ...]:
        """Per node, its wave: 0 without predecessors, else one more than the latest of them."""
        waves: list[int] = []
        for mask in self.predecessors:
            before = [waves[other] for other in range(len(waves)) if mask >> other & 1]
            waves.append(1 + max(before) if before else 0)
        return tuple(waves)


def graph(topology: str, num_agents: int) -> Graph:
    """Return the graph of `topology` for `num_agents` agents.

    Raises:
        ValueError: `topology` is none of the six, or `num_agents` is not in 1..6.
    """
    if topology not in TOPOLOGIES:
        raise ValueError(f"unknown topology {topology!r}; the six are {', '.join(TOPOLOGIES)}")
    if not 1 <= num_agents <= MAX_AGENTS:
        raise ValueError(f"num_agents is {num_agents}; it must be between 1 and {MAX_AGENTS}")
    agents = tuple(range(num_agents))
    if topology == "Chain":
        return Graph(tuple(1 << (i - 1) if i else 0 for i in agents), agents, 1)
    if topology == "FullConnected":
        return Graph(tuple((1 << i) - 1 for i in agents), agents, 1)
    if topology == "Debate":
        first_round = (1 << num_agents) - 1
        return Graph((0,) * num_agents + (first_round,) * num_agents, agents * DEBATE_ROUNDS, 1)
    return Graph((0,) * num_agents, agents, 2 if topology == "Reflection" else 1)


def distinct_plans(
    num_agents: Iterable[int] = range(1, MAX_AGENTS + 1),
) -> tuple[tuple[int, int], ...]:
    """Return topologies with numbers of agents, without those that are others under another name.

    CoT has the graph of IO, and one agent alone in a Chain or a FullConnected is one in IO. (Two
    agents in a Chain are two in a FullConnected; both are listed, as searches have always had it.)

    Args:
        num_agents: numbers of agents to list, each in 1..6.

    Returns:
        (index into TOPOLOGIES, number of agents), by topology, then in the order of `num_agents`.
    """
    counts = tuple(num_agents)
    return tuple(
        (topology, count)
        for topology, name in enumerate(TOPOLOGIES)
        for count in counts
        if name != "CoT" and (count > 1 or name not in ("Chain", "FullConnected"))
    )


def custom_graph(num_agents: int, edges: Sequence[tuple[int, int]]) -> Graph:
    """Return a graph in which agent j reads the answer of agent i for each edge (i, j), i < j."""
    predecessors = [0] * num_agents
    for first, second in edges:
        predecessors[second] |= 1 << first
    return Graph(tuple(predecessors), tuple(range(num_agents)), 1)


class GraphTables(NamedTuple):
    """All graphs as arrays for the compiled code, by topology (T), agents - 1 (K) and node (N)."""

    predecessors: Annotated[NDArray[np.uint32], "T K N"]
    agents: Annotated[Int32s, "T K N"]
    waves: Annotated[Int32s, "T K N"]
    num_nodes: Annotated[Int32s, "T K"]
    calls_per_node: Annotated[Int32s, "T"]
    structure: Annotated[Int32s, "T K"]  # index into STRUCTURES


def graph_tables(extra: Sequence[Graph] = ()) -> GraphTables:
    """Tabulate the six topologies for 1..6 agents.

    Args:
        extra: further graphs of 1..6 nodes, for one number of agents each, as topologies with the
            indices that follow the six. They are in no action space.
    """
    counts = range(1, MAX_AGENTS + 1)
    graphs = [(t, k, graph(name, k)) for t, name in enumerate(TOPOLOGIES) for k in counts]
    graphs += [(t, len(set(g.agents)), g) for t, g in enumerate(extra, len(TOPOLOGIES))]
    sizes = {"T": len(TOPOLOGIES) + len(extra), "K": MAX_AGENTS, "N": MAX_NODES}
    tables = zeros(GraphTables, sizes)
    for t, count, g in graphs:
        place = t, count - 1
        tables.predecessors[place][: g.num_nodes] = g.predecessors
        tables.agents[place][: g.num_nodes] = g.agents
        tables.waves[place][: g.num_nodes] = g.waves
        tables.num_nodes[place] = g.num_nodes
        tables.structure[place] = STRUCTURES.index(g.structure)
        tables.calls_per_node[t] = g.calls_per_node
    return tables
