"""The way of one query through its workflow, with fixed call latencies, in plain Python.

The yardstick for `inframind_gym.simulator.workflow`: calls of one query and their order, the
remaining budget at each routing decision, the latency that counts, and the cost of each decision.
Nothing is imported from `inframind_gym`.

How to read it: `build_nodes` draws the graphs of the six topologies, `run_query` carries one out
in one of two ways:

- `parallel`: a node starts when its predecessors are done; the latency is the wall-clock time to
  the end of the final call.
- `sequential`: one call at a time, in node order; a clock of its own counts the latency along the
  graph (a node starts, on that clock, when its predecessors end); the final call does not count.

In both, one decision (model, strategy) is made per node, just before its first call, and the final
call goes to the most used model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

FINAL_NODE = -1  # the `node` of the final decision call
NO_STRATEGY = -1  # ... and its `strategy`: nobody chose one

Topology = Literal["IO", "CoT", "Chain", "Debate", "Reflection", "FullConnected"]


@dataclass(frozen=True)
class Node:
    """One execution of an agent: it is routed once, and makes one or two calls."""

    index: int
    agent: int
    round: int
    predecessors: tuple[int, ...]  # indices of the nodes whose answers it reads
    num_calls: int = 1


@dataclass(frozen=True)
class Call:
    """One call as it was made; times in seconds of wall clock since the query's arrival."""

    node: int  # FINAL_NODE for the final decision call
    repeat: int  # 0, or 1 for a node's second call
    model: int
    strategy: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Decision:
    """One routing decision."""

    node: int
    model: int
    strategy: int
    used_s: float  # latency that counts so far: what the node's ancestors took
    remaining_budget_s: float  # budget - used_s; negative when overspent


@dataclass(frozen=True)
class QueryResult:
    """All that happened to one query."""

    calls: list[Call]  # by start, then node, then repeat; the final call is the last
    decisions: list[Decision]
    latency_s: float  # what is compared with the budget
    step_costs: list[float]  # one per decision; they sum to latency_s / budget
    finished_s: float  # wall clock at the end of the final call


# (node, remaining budget in s) -> (model, strategy)
Decide = Callable[[Node, float], tuple[int, int]]
# (node index or FINAL_NODE, repeat, model, strategy) -> seconds
CallLatency = Callable[[int, int, int, int], float]


def build_nodes(topology: Topology, num_agents: int) -> list[Node]:
    """The graph of a topology over `num_agents` agents; every edge goes to a higher index."""
    agents = range(num_agents)
    if topology in ("IO", "CoT"):
        return [Node(j, j, 0, ()) for j in agents]
    if topology == "Reflection":
        return [Node(j, j, 0, (), num_calls=2) for j in agents]
    if topology == "Chain":
        return [Node(j, j, 0, (j - 1,) if j > 0 else ()) for j in agents]
    if topology == "FullConnected":
        return [Node(j, j, 0, tuple(range(j))) for j in agents]
    if topology == "Debate":  # everybody speaks; then everybody has heard everybody, and speaks
        first = [Node(j, j, 0, ()) for j in agents]
        second = [Node(num_agents + j, j, 1, tuple(agents)) for j in agents]
        return first + second
    raise ValueError(f"unknown topology {topology!r}")


def run_query(
    topology: Topology,
    num_agents: int,
    budget_s: float,
    decide: Decide,
    call_latency: CallLatency,
    execution: str,
    twice: Collection[int] = (),
) -> QueryResult:
    """Carry one query out, `parallel` or `sequential`.

    `decide` is called once per node in the order of the decisions; the roles of the agents in
    `twice` make two calls in every node, whatever the topology.
    """
    nodes = [
        replace(node, num_calls=2) if node.agent in twice else node
        for node in build_nodes(topology, num_agents)
    ]
    decisions: list[Decision] = []
    calls: list[Call] = []

    def route(node: Node, used_s: float) -> Decision:
        remaining_s = budget_s - used_s
        decision = Decision(node.index, *decide(node, remaining_s), used_s, remaining_s)
        decisions.append(decision)
        return decision

    def call(node: int, repeat: int, model: int, strategy: int, start_s: float) -> float:
        end_s = start_s + call_latency(node, repeat, model, strategy)
        calls.append(Call(node, repeat, model, strategy, start_s, end_s))
        return end_s

    # When a node is done: wall clock in `parallel`, the graph's own clock in `sequential`.
    done_s: dict[int, float] = {}

    def ready_s(node: Node) -> float:
        return max((done_s[p] for p in node.predecessors), default=0.0)

    if execution == "parallel":
        open_nodes = list(nodes)
        while open_nodes:
            # The next decision is that of the node that is ready first, ties by index.
            ready = [n for n in open_nodes if all(p in done_s for p in n.predecessors)]
            node = min(ready, key=lambda n: (ready_s(n), n.index))
            open_nodes.remove(node)
            decision = route(node, used_s=ready_s(node))
            now_s = ready_s(node)
            for repeat in range(node.num_calls):
                now_s = call(node.index, repeat, decision.model, decision.strategy, now_s)
            done_s[node.index] = now_s
        calls.sort(key=lambda c: (c.start_s, c.node, c.repeat))
        final_start_s = max(done_s.values())
    elif execution == "sequential":
        now_s = 0.0
        for node in nodes:
            decision = route(node, used_s=ready_s(node))
            start_s = now_s
            for repeat in range(node.num_calls):
                now_s = call(node.index, repeat, decision.model, decision.strategy, now_s)
            done_s[node.index] = ready_s(node) + (now_s - start_s)
        final_start_s = now_s
    else:
        raise ValueError(f"unknown execution {execution!r}")

    final_model = most_used([decision.model for decision in decisions])
    finished_s = call(FINAL_NODE, 0, final_model, NO_STRATEGY, final_start_s)
    latency_s = finished_s if execution == "parallel" else max(done_s.values())
    return QueryResult(
        calls=calls,
        decisions=decisions,
        latency_s=latency_s,
        step_costs=step_costs(decisions, latency_s, budget_s),
        finished_s=finished_s,
    )


def most_used(models: list[int]) -> int:
    """The model decided for most often; among equals the one that was used first."""
    return max(dict.fromkeys(models), key=models.count)


def step_costs(decisions: list[Decision], latency_s: float, budget_s: float) -> list[float]:
    """What passes from one decision to the next (from the last one: to the end), over the budget.

    Of the decisions of one wave all but the last cost nothing; the last costs max(latency) / budget
    of the wave, and that of the last wave includes the final call where it counts (`parallel`).
    """
    clock = [decision.used_s for decision in decisions] + [latency_s]
    return [(after - before) / budget_s for before, after in pairwise(clock)]
