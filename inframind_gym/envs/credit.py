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
    "i8: node",  # of its workflow; -1: the plan
    "i8: ago",  # steps of its row between the decision and this one
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
        ages: (n, MAX_NODES + 1) steps since each decision, the plan's last.
        level: whose decisions are the agent's.
        in_time: late queries earn nothing.
    """
    routes = np.arange(MAX_NODES) < records["num_nodes"][:, None]
    plans = np.full((len(rows), 1), level != "executor")
    of, node = np.hstack([routes & (level != "planner"), plans]).nonzero()
    record, is_plan = records[of], node == MAX_NODES
    out = np.zeros(len(of), EARNED)
    out["row"], out["query"], out["node"] = rows[of], record["query"], node
    out["ago"], out["cost"] = ages[of, node], record["cost"]
    out["late"] = late = record["latency_s"] > record["budget_s"]
    out["reward"] = record["solved"] * ~(late & in_time)
    at = np.arange(len(of)), np.minimum(node, MAX_NODES - 1)
    out["model"], out["seconds"] = record["model"][at], record["node_latency_s"][at]
    out["node"][is_plan] = out["model"][is_plan] = -1
    out["seconds"][is_plan] = 0.0
    return out


def cost_vectors(costs: Floats, rows: Ints, records: NDArray[Any], models: int) -> Floats:
    """Return the costs of a step, (E, 2 + M).

    They are latency / budget, queries that ended late, and the seconds that calls of the
    ended queries have spent at each server, its queue included.

    Args:
        costs: (E,) the first of them.
        rows: (n,) environments of the queries that ended.
        records: (n,) COMPLETED.
        models: M.
    """
    out = np.zeros((len(costs), 2 + models))
    out[:, 0] = costs
    np.add.at(out[:, 1], rows, records["latency_s"] > records["budget_s"])
    of, node = (records["model"] >= 0).nonzero()
    seconds = records["node_latency_s"][of, node]
    np.add.at(out, (rows[of], 2 + records["model"][of, node].astype(np.int64)), seconds)
    return out


def columns_of(records: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return records as a dict of arrays, which Gymnasium's checkers compare."""
    return {name: records[name].copy() for name in records.dtype.names or ()}
