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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from inframind_gym.calibration.report import Pair, pair
from inframind_gym.configs import Fraction, NonNegative, Number, Positive, validate
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.files import read_json

ERRORS: Final = ("latency_mean_abs_pct", "latency_p95_abs_pct", "accuracy_abs_points")
QUANTILES: Final = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
SLO_S: Final = 100.0  # SLO target of methods without a budget: that of the published comparison
_SHARE_TOLERANCE: Final = 0.05  # published shares are rounded, and rare choices left out


def _mean(value: object) -> object:
    """Return a number as it is, and the mean where the file gives a distribution."""
    return value.get("mean") if isinstance(value, dict) else value


def _latencies(value: object) -> object:
    """Keep the known figures of a distribution of latencies."""
    if not isinstance(value, dict) or value.get("mean") is None:
        raise ValueError("must be {mean: seconds, p5: ..., p95: ...}; lacks its mean")
    return {name: value[name] for name in ("mean", *QUANTILES) if value.get(name) is not None}


def _in_order(latency_s: dict[str, float]) -> dict[str, float]:
    for low, high in pairwise(name for name in QUANTILES if name in latency_s):
        if latency_s[low] > latency_s[high]:
            raise ValueError(f"{low} ({latency_s[low]:g}) exceeds {high} ({latency_s[high]:g})")
    return latency_s


def _scaled(shares: dict[str, float]) -> dict[str, float]:
    """Scale shares to sum to 1, and name topologies without their domain."""
    total = math.fsum(shares.values())
    if abs(total - 1.0) > _SHARE_TOLERANCE:
        raise ValueError(f"the shares sum to {total:.3g}; they must sum to 1")
    return {name: share / total for name, share in shares.items()}


def _published(name: str) -> Any:
    return Field(None, validation_alias=name)


_Mean = Annotated[NonNegative, BeforeValidator(_mean)]
_Shares = Annotated[dict[str, Fraction], AfterValidator(_scaled)]
_WITHOUT_DOMAIN = AfterValidator(
    lambda shares: {k.rsplit("/", 1)[-1]: v for k, v in shares.items()}
)


class MeasuredCell(BaseModel):
    """One measured episode. Optional fields are None where they were not measured."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)

    source: str  # of the cell, for messages: "runs.json: mas.math[3]"
    method: str  # "mas", "inframind", ...
    dataset: str
    # An episode of a lower rate lasts for weeks.
    arrival_rate_per_min: Annotated[Number, Field(ge=0.01, le=1e6)] = Field(
        validation_alias="arrival_rate"
    )
    num_queries: Annotated[int, Field(ge=1, le=100_000)] | None = _published("n_episodes")
    accuracy: Fraction  # share of the queries that were solved
    # "mean" and the QUANTILES, as far as they were measured, in s
    latency_s: Annotated[
        dict[str, NonNegative], BeforeValidator(_latencies), AfterValidator(_in_order)
    ] = Field(validation_alias="latency")
    budget_s: Positive | None = _published("budget")
    cost_rate: NonNegative | None = None  # of a method that is trained with one
    # name of the model, as its server knows it -> share of the executions
    model_share: _Shares | None = _published("model_distribution")
    strategy_share: _Shares | None = _published("strategy_distribution")
    # "model|strategy" -> share of the executions
    route_share: _Shares | None = _published("model_strategy_joint")
    # topology -> share of the queries
    topology_share: Annotated[_Shares, _WITHOUT_DOMAIN] | None = _published("topology_distribution")
    num_agents: Annotated[Number, BeforeValidator(_mean), Field(ge=1)] | None = None
    steps: _Mean | None = _published("steps_per_episode")  # executions of a query
    edges: _Mean | None = _published("active_edges")  # of a query's graph

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, data: object) -> object:
        """Move the count of steps up; drop what is None or empty."""
        if not isinstance(data, dict):
            raise ValueError("wanted a cell, {arrival_rate: ..., accuracy: ...}")
        counts = data.get("tokens_per_episode")
        flat = {**(counts if isinstance(counts, dict) else {}), **data}
        return {name: value for name, value in flat.items() if value is not None and value != {}}


def read_runs(path: str | Path, methods: Sequence[str] | None = None) -> list[MeasuredCell]:
    """Read measured cells.

    Args:
        path: A JSON file.
        methods: The methods to read; None: all of the file.

    Returns:
        The cells, in the file's order.

    Raises:
        ConfigError: The file cannot be read, has none of a method that was asked for, or a cell
            lacks a required field, or holds an impossible number; names the cell and the field.
    """
    path = Path(path)
    data, cells = read_json(path), []
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: wanted {{method: {{dataset: [cell, ...]}}}} at the top.")
    data.pop("metadata", None)
    for method in data if methods is None else methods:
        if method not in data:
            raise ConfigError(f"{path}: {unknown('method', method, data)}")
        source, of_dataset = f"{path.name}: {method}", data[method]
        if not isinstance(of_dataset, dict) or any(
            not isinstance(found, list) for found in of_dataset.values()
        ):
            raise ConfigError(f"{source}: wanted a list of cells for every dataset.")
        for dataset, found in of_dataset.items():
            for index, cell in enumerate(found):
                place = f"{source}.{dataset}[{index}]"
                facts = {"source": place, "method": method, "dataset": dataset}
                fields = {**cell, **facts} if isinstance(cell, dict) else cell
                cells.append(validate(fields, MeasuredCell, source=place))
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
    latency_mean_se: float  # standard error of the mean latency over seeds, relative


def cell_rows(
    cells: Sequence[MeasuredCell], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """Return one record a cell, as JSON: its settings, pairs of figures, absolute errors.

    Errors are None where the cell lacks the measured figure.
    """
    rows = []
    for cell, said in zip(cells, predictions, strict=True):
        latency_s = {
            name: _rounded(pair(cell.latency_s.get(name), said.latency_s[name]))
            for name in ("mean", *QUANTILES)
        }
        off = [latency_s[name]["error_pct"] for name in ("mean", "p95")]
        errors = [None if error is None else abs(error) for error in off]
        errors.append(100.0 * abs(said.accuracy - cell.accuracy))
        measured = ("method", "dataset", "arrival_rate_per_min", "budget_s", "cost_rate")
        row = {name: getattr(cell, name) for name in (*measured, "num_queries")}
        row["accuracy"] = {"measured": cell.accuracy, **_rounded({"predicted": said.accuracy})}
        row["latency_s"] = latency_s
        row |= _rounded({"latency_mean_predicted_se_pct": 100.0 * said.latency_mean_se})
        row["errors"] = _rounded(dict(zip(ERRORS, errors, strict=True)))
        rows.append(row)
    return rows


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Pair]:
    """Return the median and the 90th percentile of the absolute errors, by method."""
    summary = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row["errors"] for row in rows if row["method"] == method]
        entry: Pair = {"cells": len(of)}
        for name in ERRORS:
            known = [errors[name] for errors in of if errors[name] is not None]
            for suffix, level in (("median", 50.0), ("p90", 90.0)):
                entry[f"{name}_{suffix}"] = float(np.percentile(known, level)) if known else None
        summary[method] = _rounded(entry)
    return summary


def _rounded(values: Mapping[str, float | None]) -> Pair:
    """Round to five digits, except measured figures and counts."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) and name != "measured" else value
        for name, value in values.items()
    }
