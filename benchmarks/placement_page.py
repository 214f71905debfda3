"""`docs/placement.md` from a results folder: leaderboard, paired differences, times of solvers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.pages.writing import origin, write_page
from benchmarks.placement_solver import SOLVERS
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.placement.metrics import METRICS
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.tables import Sheet, leaderboard_sheets, to_markdown

OURS: Final = "mcf_plus"
JUDGED: Final = ("call_latency_s", "slo")


def write(results: Results, out: Path, *, solver: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page.

    Args:
        results: A folder of placements in which `OURS` has played.
        out: Folder of the page.
        solver: What `benchmarks.placement_solver.measure` returned.

    Returns:
        The page.

    Raises:
        BenchmarkError: The folder is of another family, or lacks `OURS`.
    """
    if results.family.kind != "placement":
        raise BenchmarkError(f"{results.folder} holds results of {results.family.kind}.")
    board = leaderboard(results)
    sheets = [*leaderboard_sheets(board), *paired_sheets(results, OURS), solver_sheet(solver)]
    blocks = [to_markdown(sheet) for sheet in sheets]
    names = dict(
        leaderboard="\n\n".join(blocks[: -len(JUDGED) - 1]),
        paired="\n\n".join(blocks[-len(JUDGED) - 1 : -1]),
        solver=blocks[-1],
        notes="".join(f"Note: {note}.\n" for note in board["notes"]),
        seeds=seeds_text(board["rows"]),
        trace="" if not board["arrivals"] else f" (`{Path(board['arrivals']).name}`)",
        **origin(results.header),
    )
    command = "placement-page results/placement"
    return write_page(out / "placement.md", "placement.md", names, command=command)


def seeds_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many seeds each cluster has, in words."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["cluster"], set()).add(len(row["seeds"]))
    return ", ".join(
        f"{min(counts)} on {cluster}"
        if len(counts) == 1
        else f"{min(counts)} to {max(counts)} on {cluster}"
        for cluster, counts in seeds.items()
    )


def paired_sheets(results: Results, ours: str) -> list[Sheet]:
    """Differences of a policy to every other one, by place, one table for each judged metric.

    Raises:
        BenchmarkError: The folder lacks the policy.
    """
    bounds = results.header.get("bounds", ())
    others = [name for name in results.policies if name != ours and name not in bounds]
    found = {name: compare(Side(results, name), Side(results, ours)) for name in others}
    return [_paired(found, ours, name) for name in JUDGED]


def _paired(found: Mapping[str, dict[str, Any]], ours: str, metric: str) -> Sheet:
    places = list(
        dict.fromkeys((row["cluster"], row["demand"]) for c in found.values() for row in c["rows"])
    )
    rows = []
    for place in places:
        at = {
            name: next((r for r in c["rows"] if (r["cluster"], r["demand"]) == place), None)
            for name, c in found.items()
        }
        rows.append([*place, *(_text(metric, row[metric]) if row else "" for row in at.values())])
    rows.append(["all", "mean", *(_text(metric, c["overall"][metric]) for c in found.values())])
    return Sheet(
        f"{METRICS[metric].heading}: {ours} less the other policy [95 % interval]",
        ["cluster", "demand", *found],
        rows,
        "Better: bold. Worse: in italics. Neither: the interval holds 0.",
        left=2,
    )


def _text(name: str, difference: Mapping[str, Any]) -> str:
    metric = METRICS[name]
    low, high = difference["difference_ci95"]
    sign = "+" if difference["difference"] > 0 else ""
    ends = f"[{metric.text(low)}, {metric.text(high)}]"
    text = f"{sign}{metric.text(difference['difference'])} {ends}"
    if low <= 0.0 <= high:
        return text
    mark = "**" if (low > 0.0) == (metric.better == "higher") else "*"
    return f"{mark}{text}{mark}"


def solver_sheet(table: Sequence[Mapping[str, Any]]) -> Sheet:
    """Milliseconds of every solver by size of the problem."""
    return Sheet(
        "Milliseconds to solve one decision's flow",
        ["GPUs", "models", *SOLVERS],
        [
            [
                str(line["gpus"]),
                str(line["models"]),
                *("" if line[s] is None else f"{line[s]:.2f}" for s in SOLVERS),
            ]
            for line in table
        ],
        "Median of five. Empty: took more than two seconds on a smaller size, or is not installed.",
        left=0,
    )
