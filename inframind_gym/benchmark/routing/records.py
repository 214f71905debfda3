"""From the environment's records of queries to the lines of a results folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.lines import CellResult, encode_cell
from inframind_gym.benchmark.routing.metrics import QueryLayout
from inframind_gym.benchmark.routing.suite import RoutingCell

FIELDS = (  # of the environment's records, as they are
    *("query", "topology", "num_agents", "num_nodes", "solved"),
    *("arrival_s", "finish_s", "latency_s", "budget_s", "cost"),
    *("calls", "truncated_calls", "prompt_tokens", "output_tokens"),
    *("final_model", "model", "strategy"),
)


@dataclass(frozen=True, slots=True)
class Names:
    """Meaning of the numbers in the environment's records.

    Attributes:
        layout: Models, strategies and topologies in the order of their indices.
        domains: Domains in the order of their indices.
        task_ids: Id of every task.
        datasets: Dataset of every task.
    """

    layout: QueryLayout
    domains: NDArray[np.str_]
    task_ids: NDArray[np.str_]
    datasets: NDArray[np.str_]


def encode_episode(
    cell: RoutingCell, cell_id: str, completed: NDArray[np.void], names: Names
) -> CellResult:
    """Encode a finished episode, its queries in the order of arrival; see `columns_of`."""
    return encode_cell(names.layout, cell, cell_id, columns_of(completed, names))


def columns_of(completed: NDArray[np.void], names: Names) -> dict[str, NDArray[Any]]:
    """Return the records of an episode by field, in the order of arrival.

    Args:
        completed: One record of the COMPLETED dtype for each query, in any order; with `usd` if
            the pool has prices (`prices.with_prices`).
        names: Meaning of the records' numbers.
    """
    ordered = completed[np.argsort(completed["query"], kind="stable")]
    priced = ("usd",) if names.layout.priced else ()
    columns = {name: ordered[name] for name in (*FIELDS, *priced)}
    for name in ("model", "strategy"):  # (num_queries, most nodes); -1 where a query has fewer
        unused = np.arange(columns[name].shape[1]) >= ordered["num_nodes"][:, None]
        chosen = np.where(unused, np.int8(-1), columns[name])
        columns[name] = chosen[:, : max(ordered["num_nodes"].max(), 1)]
    task = ordered["task"]
    columns |= {"task": names.task_ids[task], "dataset": names.datasets[task]}
    columns["domain"] = names.domains[ordered["domain"]]
    return columns
