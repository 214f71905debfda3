"""Measured runs, published cells of a routing comparison as JSON, and the errors of predictions.

    {method: {dataset: [cell, ...]}, "metadata": {...}}

A cell is one episode: a method at one arrival rate and one budget (or cost rate), with its
accuracy, the distribution of its latencies, and the method's choices: shares of models, strategies
and topologies, agents, executions ("steps") or active edges. Fields that a method has no use for
may be missing, and other fields are ignored. Source of the format: the measurements published by
the authors of InfraMind (arXiv 2606.11440).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import AfterValidator, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from inframind_gym.calibration.report import pair
from inframind_gym.configs import Fraction, NonNegative, Number, Positive, validate
from inframind_gym.errors import ConfigError
from inframind_gym.files import read_json

Row = dict[str, Any]
ERRORS: Final = {  # absolute error: its column, signed
    "latency_mean_abs_pct": "mean_error_pct",
    "latency_p95_abs_pct": "p95_error_pct",
    "accuracy_abs_points": "accuracy_error_points",
}
SETTINGS: Final = (
    "method",
    "dataset",
    "arrival_rate_per_min",
    "cost_rate",
    "budget_s",
    "num_queries",
)
QUANTILES: Final = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
SLO_S: Final = 100.0  # SLO target of methods without a budget: that of the published comparison


def _mean(value: object) -> object:
    """Return a number as it is, and the mean where the file gives a distribution."""
    return value.get("mean") if isinstance(value, dict) else value


def _scaled(shares: dict[str, float]) -> dict[str, float]:
    """Scale shares to sum to 1: published ones are rounded, and rare choices left out."""
    total = math.fsum(shares.values())
    if abs(total - 1.0) > 0.05:
        raise ValueError(f"the shares sum to {total:.3g}; they must sum to 1")
    return {name: share / total for name, share in shares.items()}


def _without_domain(shares: dict[str, float]) -> dict[str, float]:
    """Name topologies without their domain: Math/IO is IO."""
    return {name.rpartition("/")[2]: share for name, share in shares.items()}


def _published(name: str, default: Any = None) -> Any:
    return Field(default, validation_alias=name)


_Shares = Annotated[dict[str, Fraction], AfterValidator(_scaled)]


class MeasuredCell(BaseModel):
    """One measured episode. Optional fields are None where they were not measured."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    source: str  # of the cell, for messages: "runs.json: mas.math[3]"
    method: str  # "mas", "inframind", ...
    dataset: str
    arrival_rate_per_min: Positive = _published("arrival_rate", ...)
    num_queries: Annotated[int, Field(ge=1, le=100_000)] = _published("n_episodes", 500)
    accuracy: Fraction  # share of the queries that were solved
    latency_s: dict[str, NonNegative] = _published("latency", ...)  # "mean" and QUANTILES, in s
    budget_s: Positive | None = _published("budget")
    cost_rate: NonNegative | None = None  # of a method that is trained with one
    # name of the model, as its server knows it -> share of the executions
    model_share: _Shares | None = _published("model_distribution")
    # "model|strategy" -> share of the executions, of an adaptive router
    route_share: _Shares | None = _published("model_strategy_joint")
    # topology -> share of the queries
    topology_share: Annotated[_Shares, AfterValidator(_without_domain)] | None = _published(
        "topology_distribution"
    )
    num_agents: Annotated[Number, BeforeValidator(_mean), Field(ge=1)] | None = None
    steps: NonNegative | None = Field(  # executions of a query
        None, validation_alias=AliasPath("tokens_per_episode", "steps_per_episode")
    )
    # Of a query's graph; where there are none the middle of the measured 4 to 7.
    edges: Annotated[NonNegative, BeforeValidator(_mean)] = _published("active_edges", 5.0)


def read_runs(path: str | Path) -> list[MeasuredCell]:
    """Read measured cells, in the file's order.

    Raises:
        ConfigError: The file cannot be read, or a cell lacks a required field, or holds an
            impossible number; names the cell and the field.
    """
    path = Path(path)
    data, cells = read_json(path), []
    shape = f"{path}: wanted {{method: {{dataset: [cell, ...]}}}}."
    if not isinstance(data, dict):
        raise ConfigError(shape)
    data.pop("metadata", None)
    for method, of_dataset in data.items():
        if not isinstance(of_dataset, dict):
            raise ConfigError(shape)
        for dataset, found in of_dataset.items():
            for index, cell in enumerate(found if isinstance(found, list) else [found]):
                place = f"{path.name}: {method}.{dataset}[{index}]"
                facts = {"source": place, "method": method, "dataset": dataset}
                if not isinstance(cell, dict) or _mean(cell.get("latency")) is None:
                    raise ConfigError(f"{place}: wanted a cell, {{latency: {{mean: ...}}, ...}}.")
                cells.append(validate(cell | facts, MeasuredCell, source=place))
    if not cells:
        raise ConfigError(f"{path}: holds no measured cell.")
    return cells


# Errors of predictions


class Prediction(NamedTuple):
    """Simulated figures of a cell: means over its seeds."""

    accuracy: float
    latency_s: dict[str, float]  # "mean" and the QUANTILES
    calls: float  # per query
    completion_tokens: float  # per query, all calls
    latency_mean_sd: float  # standard deviation of the mean latency over seeds, relative


def cell_rows(cells: Sequence[MeasuredCell], predictions: Sequence[Prediction]) -> list[Row]:
    """Return one flat record a cell: its settings, figures and signed errors, to five digits.

    Figures of latency are None where the cell lacks the measured one.
    """
    rows = []
    for cell, said in zip(cells, predictions, strict=True):
        row: Row = {name: getattr(cell, name) for name in SETTINGS}
        for name in ("mean", "p95"):
            both = pair(cell.latency_s.get(name), said.latency_s[name])
            row |= {f"{name}_{key}": value for key, value in both.items()}
        row |= {"accuracy_measured": cell.accuracy, "accuracy_predicted": said.accuracy}
        row["accuracy_error_points"] = 100.0 * (said.accuracy - cell.accuracy)
        # A measured cell is one episode: a perfect model, too, would miss it by as much.
        row["episode_sd"] = said.latency_mean_sd
        rows.append({name: _rounded(name, value) for name, value in row.items()})
    return rows


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the median and the 90th percentile of the absolute errors, by method."""
    summary = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        entry: dict[str, Any] = {"cells": len(own)}
        for name, column in ERRORS.items():
            known = [abs(row[column]) for row in own if row[column] is not None]
            for suffix, level in (("median", 50.0), ("p90", 90.0)):
                value = float(np.percentile(known, level)) if known else None
                entry[f"{name}_{suffix}"] = _rounded(name, value)
        summary[method] = entry
    return summary


def _rounded(name: str, value: Any) -> Any:
    """Round a number to five digits, unless it was measured."""
    if not isinstance(value, float) or name.endswith("_measured") or name in SETTINGS:
        return value
    return float(f"{value:.5g}")
