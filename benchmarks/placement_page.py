"""Tables of docs/placement.md from a results folder: leaderboard, paired differences, solvers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.pages import table
from benchmarks.placement_solver import SOLVERS
from benchmarks.record_table import machine_of, revision_of
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.placement.metrics import METRICS
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.tables import leaderboard_sheets, to_markdown

OURS: Final = "mcf_plus"


def tables(
    results: Results, solver: Sequence[Mapping[str, Any]], ours: str = OURS
) -> dict[str, str]:
    """Tables of docs/placement.md.

    Args:
        results: A folder of placements in which `ours` has played.
        solver: Rows of `benchmarks.placement_solver.measure`.
        ours: Policy whose differences to the others are shown.

    Raises:
        BenchmarkError: The folder is of another family, or lacks `ours`.
    """
    if results.family.kind != "placement":
        raise BenchmarkError(f"{results.folder} holds results of {results.family.kind}.")
    board, header = leaderboard(results), results.header
    seeds: dict[str, int] = {row["cluster"]: len(row["seeds"]) for row in board["rows"]}
    counted = ", ".join(f"{count} on {cluster}" for cluster, count in seeds.items())
    notes = [f"Note: {note}." for note in board["notes"]]
    return {
        "leaderboard": "\n\n".join([*map(to_markdown, leaderboard_sheets(board)), *notes]),
        "latency": paired(results, ours, "call_latency_s"),
        "slo": paired(results, ours, "slo"),
        "solver": _solvers(solver),
        "origin": f"Seeds: {counted}. {machine_of(header['machine'])}; "
        f"revision {revision_of(header['git'] or {})}.",
    }


def paired(results: Results, ours: str, metric: str) -> str:
    """Differences of a policy to every other one, by place.

    Raises:
        BenchmarkError: The folder lacks the policy.
    """
    others = [n for n in results.policies if n not in (ours, *results.header.get("bounds", ()))]
    found = [compare(Side(results, name), Side(results, ours)) for name in others]
    rows = [
        [at[0]["cluster"], at[0]["demand"], *(_text(metric, row[metric]) for row in at)]
        for at in zip(*(one["rows"] for one in found), strict=True)
    ]
    rows.append(["all", "mean", *(_text(metric, one["overall"][metric]) for one in found)])
    return table(["cluster", "demand", *others], rows, left=2)


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


def _solvers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds of every solver by size of the problem."""
    shown = [
        [f"{row['gpus']}", f"{row['models']}"]
        + ["" if row[name] is None else f"{row[name]:.2f}" for name in SOLVERS]
        for row in rows
    ]
    return table(["GPUs", "models", *SOLVERS], shown, left=0)
