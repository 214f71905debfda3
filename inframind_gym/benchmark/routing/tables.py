"""The tables of a leaderboard of routing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inframind_gym.benchmark.routing.limits import KIND
from inframind_gym.benchmark.routing.metrics import METRICS, PRICE
from inframind_gym.benchmark.routing.suite import budget_text
from inframind_gym.benchmark.tables import (
    Sheet,
    about_bounds,
    about_draws,
    cells_text,
    matrix,
    metrics_sheet,
    of_planned,
    short,
)

_SHOWN = ("goodput", "accuracy", "slo_own", "slo_100s", "latency_mean_s", "latency_p95_s")
_MAIN = tuple(METRICS[name] for name in (*_SHOWN, "cost_ratio"))
_USED = ("imbalance", "tokens_per_query", "truncated_share")


def routing_sheets(board: Mapping[str, Any]) -> list[Sheet]:
    """Make the tables of a leaderboard: ranking, by workload, rate and budget, what was used."""
    policies = [row["policy"] for row in board["ranking"]]
    priced = PRICE in board["ranking"][0]
    main = (*_MAIN, METRICS[PRICE]) if priced else _MAIN
    paid = " $: GPUs from the first arrival to the last answer, and tokens." if priced else ""
    live = f", live on {Path(board['pool']).stem}" if board["backend"] == "vllm" else ""
    sheets = [
        metrics_sheet(
            f"{board['suite']}: {of_planned(board, 'queries')}{live}",
            board["ranking"],
            main,
            f"Means over {cells_text(board)} (workload x rate x budget) ± half of the 95 % "
            "interval. Goodput: solved within the query's own budget; SLO: answered within it; "
            f"lat./β: latency over budget.{paid}{about_draws(board)}{about_bounds(board)}"
            f"{_about_fluid(board)}",
        )
    ]
    if len({row["workload"] for row in board["by_workload"]}) > 1:
        limits = (board.get("fluid") or {}).get("by_workload", ())
        sheets.append(_goodput("workload", board["by_workload"], "workload", policies, limits))
    rates = list(dict.fromkeys(row["rate_per_min"] for row in board["by_rate"]))
    for rate in rates:
        rows = [row for row in board["by_rate"] if row["rate_per_min"] == rate]
        sheets.append(metrics_sheet(f"At {rate:g} queries/min", rows, main))
    if len({row["budget_s"] for row in board["by_budget"]}) > 1:
        sheets.append(_goodput("budget", board["by_budget"], "budget_s", policies))
    sheets.append(_use_sheet(board["ranking"]))
    return sheets


def _about_fluid(board: Mapping[str, Any]) -> str:
    if not board.get("fluid"):
        known = board["backend"] == "vllm" or any(row.get("bound") for row in board["ranking"])
        return (
            "" if known else " How far from the possible: leaderboard --fluid, or run clairvoyant."
        )
    bound = 100 * board["fluid"]["mean"][KIND]
    return f" A router that knows distributions, but no outcome: {bound:.1f} % goodput at best."


def _goodput(
    what: str,
    rows: Sequence[Mapping[str, Any]],
    axis: str,
    policies: Sequence[str],
    fluid: Sequence[Mapping[str, Any]] = (),
) -> Sheet:
    """Make a table of goodput along an axis, with the fluid bound below."""
    sheet = matrix(
        f"Goodput % by {what} (solved %)",
        rows,
        axis,
        policies,
        METRICS["goodput"],
        lambda row: f"{100 * row['goodput']:.1f} ({100 * row['accuracy']:.1f})",
        budget_text if axis == "budget_s" else str,
    )
    limits = {row[axis]: row for row in fluid}
    if not limits:
        return sheet
    values = dict.fromkeys(row[axis] for row in rows)
    below = ["informed bound", *(f"{100 * limits[value][KIND]:.1f}" for value in values)]
    return dataclasses.replace(sheet, rows=[*sheet.rows, below])


def _use_sheet(rows: Sequence[Mapping[str, Any]]) -> Sheet:
    models, strategies = list(rows[0]["model_share"]), list(rows[0]["strategy_share"])
    return Sheet(
        "What was used: % of decisions",
        [
            "policy",
            *(name.replace("-", "\n") for name in models),
            *strategies,
            *("imbal.", "tokens/q", "cut %"),
        ],
        [
            [
                short(row["policy"]),
                *(f"{100 * row['model_share'][name]:.0f}" for name in models),
                *(f"{100 * row['strategy_share'][name]:.0f}" for name in strategies),
                *(METRICS[name].text(row[name]) for name in _USED),
            ]
            for row in rows
        ],
        "Imbalance: standard deviation over mean of the models' shares. "
        "Cut: calls that hit the limit of output tokens.",
    )
