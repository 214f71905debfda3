"""Tables of docs/placement.md from a results folder: leaderboard and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.pages import table
from benchmarks.record_table import origin_of
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.placement.metrics import METRICS
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.tables import leaderboard_sheets, to_markdown

OURS: Final = "mcf_plus"


def tables(results: Results, ours: str = OURS) -> dict[str, str]:
    """Tables of docs/placement.md.

    Args:
        results: A folder of placements in which `ours` has played.
        ours: Policy whose differences to the others are shown.

    Raises:
        BenchmarkError: The folder is of another family, or lacks `ours`.
    """
    if results.family.kind != "placement":
        raise BenchmarkError(f"{results.folder} holds results of {results.family.kind}.")
    board = leaderboard(results)
    seeds: dict[str, int] = {row["cluster"]: len(row["seeds"]) for row in board["rows"]}
    counted = ", ".join(f"{count} on {cluster}" for cluster, count in seeds.items())
    notes = [f"Note: {note}." for note in board["notes"]]
    others = [n for n in results.policies if n not in (ours, *results.header.get("bounds", ()))]
    found = {name: compare(Side(results, name), Side(results, ours)) for name in others}
    return {
        "leaderboard": "\n\n".join([*map(to_markdown, leaderboard_sheets(board)), *notes]),
        "latency": _paired(found, "call_latency_s"),
        "slo": _paired(found, "slo"),
        "origin": f"Seeds: {counted}. {origin_of([results.header])}",
    }


def _paired(found: Mapping[str, dict[str, Any]], metric: str) -> str:
    """Differences to every other policy, by place."""
    rows = [
        [at[0]["cluster"], at[0]["demand"], *(_text(metric, row[metric]) for row in at)]
        for at in zip(*(one["rows"] for one in found.values()), strict=True)
    ]
    rows.append(["all", "mean", *(_text(metric, one["overall"][metric]) for one in found.values())])
    return table(["cluster", "demand", *found], rows, left=2)


def _text(name: str, difference: Mapping[str, Any]) -> str:
    """A difference with its interval; bold if better, in italics if worse."""
    metric = METRICS[name]
    low, high = difference["difference_ci95"]
    sign = "+" if difference["difference"] > 0 else ""
    ends = f"[{metric.text(low)}, {metric.text(high)}]"
    text = f"{sign}{metric.text(difference['difference'])} {ends}"
    if low <= 0.0 <= high:
        return text
    mark = "**" if (low > 0.0) == (metric.better == "higher") else "*"
    return f"{mark}{text}{mark}"
