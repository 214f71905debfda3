"""From the environment's records to the lines of a results folder, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import Cell
from inframind_gym.benchmark.metrics import TAIL, Columns
from inframind_gym.benchmark.store import CellResult

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_AS_THEY_ARE = (
    "num_agents",
    "solved",
    "arrival_s",
    "finish_s",
    "latency_s",
    "budget_s",
    "cost",
    "calls",
    "truncated_calls",
    "prompt_tokens",
    "output_tokens",
)
_FIELDS = (
    *("query", "task", "domain", "topology", "num_nodes", "final_model", "model", "strategy"),
    *_AS_THEY_ARE,
)


@dataclass(frozen=True, slots=True)
class Names:
    """What the numbers in the environment's records stand for.

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


def encode_cell(cell: Cell, cell_id: str, completed: NDArray[np.void], names: Names) -> CellResult:
    """Write down a finished sweep.

    Args:
        cell: The cell's coordinates.
        cell_id: Its id.
        completed: One record of the COMPLETED dtype for each query, in any order.
        names: What the records' numbers stand for.

    Returns:
        Its block of ``episodes.jsonl``, in the order of arrival, and its line of ``cells.jsonl``.
    """
    ordered = completed[np.argsort(completed["query"], kind="stable")]
    coordinates = {"cell": cell_id, **cell.to_json()}
    coordinates["cell_budget_s"] = coordinates.pop("budget_s")  # budget_s is the query's own
    episodes = [{**coordinates, **episode} for episode in _episodes(ordered, names)]
    block = "".join(_ENCODER.encode(episode) + "\n" for episode in episodes).encode()
    sums = names.columns.sums(episodes)
    metrics = {name: float(value) for name, value in names.columns.evaluate(sums).items()}
    line = {
        "cell": cell_id,
        **cell.to_json(),
        "episodes": len(episodes),
        "episodes_bytes": len(block),
        **metrics,
        "latency_p95_s": float(np.quantile(ordered["latency_s"], TAIL)),
        **names.columns.shares(sums),
        "makespan_s": float(ordered["finish_s"].max()),
    }
    return CellResult(line, block)


def _episodes(completed: NDArray[np.void], names: Names) -> Iterator[dict[str, Any]]:
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
