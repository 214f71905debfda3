"""Rewards and costs of routed queries, credited to the decisions that earned them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import Floats, Ints
from inframind_gym.simulator.jit import record
from inframind_gym.simulator.workflow.topology import MAX_NODES

# One decision of a query that ended in a step, and what the query has earned.
EARNED: Final = record(
    "i8: row",  # of the batch
    "i8: query",  # ordinal in the stream
    "i8: node",  # of its workflow, for which the decision was; -1: the plan
    "i8: ago",  # steps of the row between the decision and the end of the query
    "f8: reward",  # of the query
    "f8: cost",  # of the query: latency / budget
    "i8: late",  # 1: it ended after its deadline
    "i8: model",  # that the decision chose; -1: the plan
    "f8: seconds",  # of the decision's calls at that model's server, queue included
)


def earned_by(
    rows: Ints, records: NDArray[Any], ages: Ints, level: str, *, in_time: bool
) -> NDArray[Any]:
    """Return the agent's decisions of queries that ended, (k,) EARNED.

    Args:
        rows: (n,) environments of the queries.
        records: (n,) COMPLETED.
        ages: (n, MAX_NODES + 1) steps since each node's decision, the plan's last.
        level: level of the environment: routes, plans or both are the agent's.
        in_time: late queries earn nothing.
    """
    routes = np.arange(MAX_NODES) < records["num_nodes"][:, None]
    plans = np.full((len(rows), 1), level != "executor")
    query, node = np.hstack([routes & (level != "planner"), plans]).nonzero()
    record, is_plan = records[query], node == MAX_NODES
    out = np.zeros(len(query), EARNED)
    out["row"], out["query"], out["node"] = rows[query], record["query"], node
    out["ago"], out["cost"] = ages[query, node], record["cost"]
    out["late"] = late = record["latency_s"] > record["budget_s"]
    out["reward"] = record["solved"] * ~(late & in_time)
    of_node = np.arange(len(query)), np.minimum(node, MAX_NODES - 1)
    out["model"], out["seconds"] = record["model"][of_node], record["node_latency_s"][of_node]
    out["node"][is_plan] = out["model"][is_plan] = -1
    out["seconds"][is_plan] = 0.0
    return out


def cost_vectors(costs: Floats, rows: Ints, records: NDArray[Any], models: int) -> Floats:
    """Return the costs of a step, (E, 2 + M).

    They are latency / budget, the number of queries that ended late, and the seconds that calls of
    the ended queries have spent at each server, its queue included.

    Args:
        costs: (E,) latency / budget.
        rows: (n,) environments of the queries that ended.
        records: (n,) COMPLETED.
        models: M, number of servers.
    """
    out = np.zeros((len(costs), 2 + models))
    out[:, 0] = costs
    np.add.at(out[:, 1], rows, records["latency_s"] > records["budget_s"])
    query, node = (records["model"] >= 0).nonzero()
    server = records["model"][query, node].astype(np.int64)
    np.add.at(out, (rows[query], 2 + server), records["node_latency_s"][query, node])
    return out


def columns_of(records: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return records as a dict of arrays, which Gymnasium's checkers compare."""
    return {name: records[name].copy() for name in records.dtype.names or ()}
