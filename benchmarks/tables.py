"""Tables for people: on the terminal with rich, or as markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.fluid import KINDS
from benchmarks.metrics import METRICS

_MAIN = (
    "goodput",
    "accuracy",
    "slo_own",
    "slo_100s",
    "latency_mean_s",
    "latency_p95_s",
    "cost_ratio",
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table before it is rendered.

    Attributes:
        title: What it shows.
        headings: One for each column; the first columns up to `left` are text, the others numbers.
        rows: Cells as text.
        caption: How to read it.
        left: Number of left-aligned columns.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    left: int = 1
    best: set[tuple[int, int]] = field(default_factory=set)


def show(
    sheets: Sequence[Sheet], *, markdown: bool = False, console: Console | None = None
) -> None:
    """Print tables to standard output."""
    if markdown:
        print("\n\n".join(to_markdown(sheet) for sheet in sheets))
        return
    console = console or _console()
    for sheet in sheets:
        console.print(to_rich(sheet))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)


def to_rich(sheet: Sheet) -> Table:
    """A table for the terminal; the best values of a column are bold."""
    table = Table(
        title=sheet.title,
        caption=sheet.caption or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    for i, heading in enumerate(sheet.headings):
        table.add_column(
            heading, justify="left" if i < sheet.left else "right", no_wrap=i < sheet.left
        )
    for r, row in enumerate(sheet.rows):
        table.add_row(
            *(Text(text, "bold" if (r, c) in sheet.best else "") for c, text in enumerate(row))
        )
    return table


def to_markdown(sheet: Sheet) -> str:
    """A table in GitHub's markdown."""
    rule = ["---" if i < sheet.left else "--:" for i in range(len(sheet.headings))]
    body = [
        [f"**{text}**" if (r, c) in sheet.best else text for c, text in enumerate(row)]
        for r, row in enumerate(sheet.rows)
    ]
    headings = [heading.replace("\n", " ") for heading in sheet.headings]
    lines = ["| " + " | ".join(row) + " |" for row in (headings, rule, *body)]
    parts = [f"### {sheet.title}", "\n".join(lines), sheet.caption]
    return "\n\n".join(part for part in parts if part)


def leaderboard_sheets(board: dict[str, Any]) -> list[Sheet]:
    """The tables of a leaderboard: ranking, by workload, rate and budget, what was used."""
    if not board["ranking"]:
        return []
    policies = [row["policy"] for row in board["ranking"]]
    count = board["ranking"][0]["cells"]
    cells = "1 cell" if count == 1 else f"{count} cells"
    live = f", live on {Path(board['pool']).stem}" if board["backend"] == "vllm" else ""
    sheets = [
        _metrics_sheet(
            f"{board['suite']}: {board['episodes']:,} queries, {board['cells']:,} sweeps{live}",
            board["ranking"],
            f"Means over {cells} (workload x rate x budget) ± half of the 95 % interval. "
            "Goodput: solved within the query's own budget; SLO: answered within it; lat./β: "
            f"latency over budget.{_about_bounds(board)}",
        )
    ]
    workloads = list(dict.fromkeys(row["workload"] for row in board["by_workload"]))
    if len(workloads) > 1:
        limits = (board.get("fluid") or {}).get("by_workload", ())
        sheets.append(
            _matrix("by workload", board["by_workload"], "workload", policies, str, limits)
        )
    rates = list(dict.fromkeys(row["rate_per_min"] for row in board["by_rate"]))
    for rate in rates:
        rows = [row for row in board["by_rate"] if row["rate_per_min"] == rate]
        sheets.append(_metrics_sheet(f"At {rate:g} queries/min", rows))
    if len({row["budget_s"] for row in board["by_budget"]}) > 1:
        sheets.append(_matrix("by budget", board["by_budget"], "budget_s", policies, _budget))
    sheets.append(_use_sheet(board["ranking"]))
    return sheets


def value_text(name: str, value: float) -> str:
    """A metric's value as it is shown."""
    shown = value * METRICS[name].scale
    return f"{shown:,.{_decimals(name, shown)}f}"


def with_margin(row: dict[str, Any], name: str) -> str:
    """A metric and half of the width of its interval."""
    low, high = row[f"{name}_ci95"]
    shown = row[name] * METRICS[name].scale
    half = (high - low) / 2 * METRICS[name].scale
    return f"{value_text(name, row[name])}±{half:,.{_decimals(name, shown)}f}"


def _decimals(name: str, shown: float) -> int:
    if METRICS[name].scale != 1.0:
        return 1
    if name.endswith("_s"):
        return 0 if abs(shown) >= 100 else 1
    return 0 if abs(shown) >= 100 else 2


def short(policy: str) -> str:
    """A policy's name, without its beginning if it is long."""
    return policy if len(policy) <= 28 else "…" + policy[-27:]


def _budget(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g} s"


def _metrics_sheet(title: str, rows: Sequence[dict[str, Any]], caption: str = "") -> Sheet:
    bounded = any("of_bound" in row for row in rows)
    headings = ["#", "policy", *(METRICS[name].label for name in _MAIN)]
    headings += ["of bound %"] if bounded else []
    ranked = [row for row in rows if not row.get("bound")]
    body = []
    for row in rows:
        place = "" if row.get("bound") else str(ranked.index(row) + 1)
        extra = [_of_bound(row)] if bounded else []
        body.append([place, short(row["policy"]), *(with_margin(row, n) for n in _MAIN), *extra])
    best = set()
    for c, name in enumerate(_MAIN, start=2):
        pick = max if METRICS[name].higher_is_better else min
        top = pick((row[name] for row in ranked), default=None)
        best |= {(r, c) for r, row in enumerate(rows) if row in ranked and row[name] == top}
    return Sheet(title, headings, body, caption, left=2, best=best)


def _of_bound(row: dict[str, Any]) -> str:
    if row.get("bound") or "of_bound" not in row:
        return ""
    low, high = row["of_bound_ci95"]
    return f"{100 * row['of_bound']:.1f}±{50 * (high - low):.1f}"


def _about_bounds(board: dict[str, Any]) -> str:
    """What the caption says of what cannot be beaten."""
    names = [row["policy"] for row in board["ranking"] if row.get("bound")]
    text = f" Not ranked, because it is a bound: {', '.join(names)}." if names else ""
    if board.get("fluid"):
        values = [
            f"{100 * board['fluid']['mean'][kind]:.1f} ({what})" for kind, what in KINDS.items()
        ]
        text += f" Fluid bounds on goodput %: {', '.join(values)}."
    return text


def _matrix(
    title: str,
    rows: Sequence[dict[str, Any]],
    axis: str,
    policies: Sequence[str],
    label: Callable[[Any], str],
    fluid: Sequence[dict[str, Any]] = (),
) -> Sheet:
    values = list(dict.fromkeys(row[axis] for row in rows))
    found = {(row["policy"], row[axis]): row for row in rows}
    best = set()
    for c, value in enumerate(values, start=1):
        goodput = [
            -1.0 if found[policy, value].get("bound") else found[policy, value]["goodput"]
            for policy in policies
        ]
        best |= {(r, c) for r, one in enumerate(goodput) if one == max(goodput) >= 0}
    limits = {row[axis]: row for row in fluid}
    return Sheet(
        f"Goodput % {title} (solved %)",
        ["policy", *(label(value) for value in values)],
        [
            [short(policy), *(_goodput_text(found[policy, value]) for value in values)]
            for policy in policies
        ]
        + [
            [f"fluid bound, {what}", *(f"{100 * limits[value][kind]:.1f}" for value in values)]
            for kind, what in KINDS.items()
            if limits
        ],
        best=best,
    )


def _goodput_text(row: dict[str, Any]) -> str:
    return f"{100 * row['goodput']:.1f} ({100 * row['accuracy']:.1f})"


def _use_sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
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
                value_text("imbalance", row["imbalance"]),
                value_text("tokens_per_query", row["tokens_per_query"]),
                value_text("truncated_share", row["truncated_share"]),
            ]
            for row in rows
        ],
        "Imbalance: standard deviation over mean of the models' shares. "
        "Cut: calls that hit the limit of output tokens.",
    )
