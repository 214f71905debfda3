"""Measured and predicted side by side, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inframind_gym.calibration.measured import QUANTILES, MeasuredCell
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.calibration.replay_runs import SLO_S, Prediction

ERRORS = ("latency_mean_abs_pct", "latency_p95_abs_pct", "accuracy_abs_points")


def compare(
    cells: Sequence[MeasuredCell], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """One record a cell: what it is, measured and predicted values, absolute errors.

    Errors are None where the cell was not measured so far.
    """
    return [_row(cell, said) for cell, said in zip(cells, predictions, strict=True)]


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Median and 90th percentile of the absolute errors, by method."""
    summary = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row["errors"] for row in rows if row["method"] == method]
        entry: dict[str, float | int | None] = {"cells": len(of)}
        for name in ERRORS:
            known = [errors[name] for errors in of if errors[name] is not None]
            for suffix, level in (("median", 50.0), ("p90", 90.0)):
                value = _rounded(float(np.percentile(known, level))) if known else None
                entry[f"{name}_{suffix}"] = value
        summary[method] = entry
    return summary


def _row(cell: MeasuredCell, said: Prediction) -> dict[str, Any]:
    measured = cell.latency_s
    limit_s = cell.budget_s or SLO_S
    points = 100.0 * abs(said.accuracy - cell.accuracy)
    return {
        "cell": cell.source.split(": ", 1)[-1],
        "method": cell.method,
        "adaptive": HARNESSES[cell.method].adaptive,
        "dataset": cell.dataset,
        "arrival_rate_per_min": cell.arrival_rate_per_min,
        "budget_s": cell.budget_s,
        "cost_rate": cell.cost_rate,
        "num_queries": cell.num_queries,
        "accuracy": {
            "measured": cell.accuracy,
            "predicted": _rounded(said.accuracy),
            "predicted_se": _rounded(said.accuracy_se),
        },
        "latency_s": {
            key: {"measured": measured.get(key), "predicted": _rounded(said.latency_s[key])}
            for key in ("mean", *QUANTILES)
        },
        "latency_mean_predicted_se_pct": _rounded(100.0 * said.latency_mean_se),
        "slo": {
            "limit_s": limit_s,
            "measured": _rounded(cell.share_within(limit_s)),  # between its quantiles
            "predicted": _rounded(said.within_limit),
        },
        "calls": _rounded(said.calls),
        "tokens": {
            "prompt": {"measured": cell.prompt_tokens, "predicted": _rounded(said.prompt_tokens)},
            "completion": {
                "measured": cell.completion_tokens,
                "predicted": _rounded(said.completion_tokens),
            },
        },
        "errors": {
            "latency_mean_abs_pct": _percent(said.latency_s["mean"], measured.get("mean")),
            "latency_p95_abs_pct": _percent(said.latency_s["p95"], measured.get("p95")),
            "accuracy_abs_points": _rounded(points),
        },
    }


def _percent(said: float, measured: float | None) -> float | None:
    return _rounded(100.0 * abs(said / measured - 1.0)) if measured else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
