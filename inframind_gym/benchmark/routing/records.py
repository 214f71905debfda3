"""From the environment's records of queries to the lines of a results folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.routing.metrics import Columns
from inframind_gym.benchmark.routing.suite import RoutingCell
from inframind_gym.benchmark.store import CellResult, encode_cell

_AS_THEY_ARE = (
    *("num_agents", "solved", "arrival_s", "finish_s", "latency_s", "budget_s", "cost"),
    *("calls", "truncated_calls", "prompt_tokens", "output_tokens"),
)
_FIELDS = (
    *("query", "task", "domain", "topology", "num_nodes", "final_model", "model", "strategy"),
    *_AS_THEY_ARE,
)


@dataclass(frozen=True, slots=True)
class Names:
    """Meaning of the numbers in the environment's records.

    Attributes:
        columns: Models, strategies and topologies in the order of their indices.
        domains: Domains in the order of their indices.
        task_ids: Id of every task.
        datasets: Dataset of every task.
    """

    columns: Columns
    domains: tuple[str, ...]
    task_ids: tuple[str, ...]
    datasets: tuple[str, ...]


def encode_episode(
    cell: RoutingCell, cell_id: str, completed: NDArray[np.void], names: Names
) -> CellResult:
    """Encode a finished episode, its queries in the order of arrival.

    Args:
        cell: The cell's coordinates; its budget is "cell_budget_s" in a query's record, which has
            "budget_s" of its own.
        cell_id: Its id.
        completed: One record of the COMPLETED dtype for each query, in any order.
        names: Meaning of the records' numbers.
    """
    ordered = completed[np.argsort(completed["query"], kind="stable")]
    return encode_cell(names.columns, cell, cell_id, list(_queries(ordered, names)))


def _queries(completed: NDArray[np.void], names: Names) -> Iterator[dict[str, Any]]:
    columns = names.columns
    fields = [completed[field].tolist() for field in _FIELDS]
    for record in zip(*fields, strict=True):
        value: dict[str, Any] = dict(zip(_FIELDS, record, strict=True))
        models, strategies = (value[field][: value["num_nodes"]] for field in ("model", "strategy"))
        yield {
            "query": value["query"],
            "task": names.task_ids[value["task"]],
            "dataset": names.datasets[value["task"]],
            "domain": names.domains[value["domain"]],
            "topology": columns.topologies[value["topology"]],
            **{field: value[field] for field in _AS_THEY_ARE},
            "final_model": columns.models[value["final_model"]],
            "models": _count(models, columns.models),
            "strategies": _count(strategies, columns.strategies),
            "actions": [
                model * len(columns.strategies) + strategy
                for model, strategy in zip(models, strategies, strict=True)
            ],
        }


def _count(indices: list[int], names: tuple[str, ...]) -> dict[str, int]:
    return {name: indices.count(i) for i, name in enumerate(names) if i in indices}
