"""The tables of a leaderboard of placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inframind_gym.benchmark.placement.metrics import METRICS
from inframind_gym.benchmark.tables import (
    Sheet,
    about_bounds,
    cells_text,
    matrix,
    metrics_sheet,
    short,
    value_text,
)

_MAIN = tuple(METRICS.values())


def placement_sheets(board: Mapping[str, Any]) -> list[Sheet]:
    """Ranking, by cluster, by demand, and how long policies take to decide."""
    policies = [row["policy"] for row in board["ranking"]]
    sheets = [
        metrics_sheet(
            f"{board['suite']}: {board['cells']:,} episodes, {board['episodes']:,} decisions",
            board["ranking"],
            _MAIN,
            f"Means over {cells_text(board)} (cluster x demand) ± half of the 95 % interval; best "
            "mean latency of a call first. call s: request-seconds over calls, those that were "
            "never served included; SLO: jobs whose deadline did not pass, of all that came; "
            "job s, job p95 s: of jobs that ended; done: those, of all that came; "
            f"of bound: the bound's latency over the policy's.{about_bounds(board)}",
        )
    ]
    clusters = list(dict.fromkeys(row["cluster"] for row in board["by_cluster"]))
    if len(clusters) > 1:
        sheets += [
            metrics_sheet(
                f"On {cluster}",
                [row for row in board["by_cluster"] if row["cluster"] == cluster],
                _MAIN,
            )
            for cluster in clusters
        ]
    if len({row["demand"] for row in board["by_demand"]}) > 1:
        sheets.append(
            matrix(
                "Mean latency of a call, s, by demand (SLO %)",
                board["by_demand"],
                "demand",
                policies,
                METRICS["call_latency_s"],
                _latency_and_slo,
            )
        )
    if board.get("timing"):
        sheets.append(_timing_sheet(board["timing"], policies))
    return sheets


def _latency_and_slo(row: Mapping[str, Any]) -> str:
    latency, slo = METRICS["call_latency_s"], METRICS["slo"]
    return f"{value_text(latency, row[latency.name])} ({value_text(slo, row[slo.name])})"


def _timing_sheet(rows: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> Sheet:
    """Milliseconds a decision, by policy and cluster."""
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    found = {(row["policy"], row["cluster"]): row for row in rows}

    def text(policy: str, cluster: str) -> str:
        row = found.get((policy, cluster))
        return f"{row['decide_median_ms']:.2f} ({row['decide_p95_ms']:.2f})" if row else ""

    return Sheet(
        "Milliseconds of one decision: median (95th percentile)",
        ["policy", *clusters],
        [[short(p), *(text(p, c) for c in clusters)] for p in policies],
        "Processor time of the deciding thread, medians over cells.",
    )
