"""Tables for people: on the terminal with rich, or as markdown; a report has them as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from inframind_gym.evaluation.metrics import Metric

MOST_CHARS: Final = 28  # of a policy's name
_BOUND_METRICS: Final = (  # comparisons with the best bound
    Metric("of_bound", "of bound", "%"),
    Metric("regret", "regret", decimals=3),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table before it is rendered."""

    title: str  # heading
    # One for each column; the first columns up to `left` are text, the others numbers
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]  # cells as text
    caption: str = ""  # explanation below it
    left: int = 1  # number of left-aligned columns
    best: set[tuple[int, int]] = field(default_factory=set)  # row and column of the best values


# Renderings


def show(tables: Sequence[Table], notes: Sequence[str] = (), *, markdown: bool = False) -> None:
    """Print tables to standard output, the best values of a column bold, and notes below them."""
    if not tables:
        print(
            "No cell has been finished by every policy yet; --json shows the rows that are there."
        )
    elif markdown:
        print("\n\n".join(map(to_markdown, tables)))
    else:
        rendered = []
        for table in tables:
            one = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
            for i, heading in enumerate(table.headings):
                is_text = i < table.left
                one.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
            for r, row in enumerate(table.rows):
                bold = ("bold" if (r, c) in table.best else "" for c in range(len(row)))
                one.add_row(*map(Text, row, bold))
            rendered.append(one)
        console = Console()
        if not console.is_terminal:
            wide = Console(width=1_000)  # a file has room for every interval
            console = Console(width=max([120, *(wide.measure(one).maximum for one in rendered)]))
        # A caption can be wider than its table.
        for table, one in zip(tables, rendered, strict=True):
            caption = [Text(f"{table.caption}\n", "dim italic")] if table.caption else []
            console.print(Text(table.title, "bold"), one, *caption, sep="\n")
    for note in notes:
        print(f"Note: {note.rstrip('.')}.")


def to_markdown(table: Table, *, title: bool = True) -> str:
    """Render in GitHub's markdown, with its title or for a page that has one."""
    rule = ["---" if i < table.left else "--:" for i in range(len(table.headings))]
    body = [
        [f"**{text}**" if (r, c) in table.best else text for c, text in enumerate(row)]
        for r, row in enumerate(table.rows)
    ]
    lines = []
    for row in (table.headings, rule, *body):
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    parts = [f"### {table.title}" if title else "", "\n".join(lines), table.caption]
    return "\n\n".join(part for part in parts if part)


# Parts of leaderboards


def short(policy: str) -> str:
    """Shorten a long policy's name: leave out the first parts of its path."""
    rest = policy
    while len(rest) > MOST_CHARS and (mark := re.search("[./:]", rest)):
        rest = rest[mark.end() :]
    return policy if rest == policy else "…" + rest


def with_margin(row: Mapping[str, Any], metric: Metric) -> str:
    """Format a metric and half of the width of its interval."""
    value, (low, high) = row[metric.name], row[f"{metric.name}_ci95"]
    return f"{metric.text(value)}±{metric.text((high - low) / 2, like=value)}"


def of_planned(board: Mapping[str, Any], unit: str, policies: int = 1) -> str:
    """Count the records and episodes of a leaderboard, and the planned ones if some are missing.

    Records of several policies that played the same ones are shown as a product.
    """
    each, over = divmod(board["records"], policies)
    counted = f"{each:,} {unit} x {policies} policies, {board['cells']:,}"
    if over or policies == 1:
        counted = f"{board['records']:,} {unit}, {board['cells']:,}"
    if not board["missing"]:
        return f"{counted} episodes"
    return f"{counted} of {board['planned']:,} episodes (unfinished)"


def metrics_table(
    title: str, rows: Sequence[Mapping[str, Any]], main: Sequence[Metric], caption: str = ""
) -> Table:
    """Make a table of policies in their order, with the main metrics.

    Metrics with the same numbers in every row share a column: if all budgets are 100 s, the SLO of
    the query's own budget and the SLO of 100 s.
    """
    columns: dict[tuple[str, ...], list[Metric]] = {}
    for metric in main:
        if all(metric.name in row for row in rows):
            texts = tuple(with_margin(row, metric) for row in rows)
            columns.setdefault((metric.unit, str(metric.better), *texts), []).append(metric)
    headings = ["#", "policy"]
    for same in columns.values():
        labels = ", ".join(metric.label for metric in same)
        headings.append(f"{labels} {same[0].unit}".rstrip())
    bounded = next((one for one in _BOUND_METRICS if any(one.name in row for row in rows)), None)
    headings += [bounded.heading] if bounded else []
    ranked = [row for row in rows if not row.get("bound")]
    body = []
    for r, row in enumerate(rows):
        rank = "" if row.get("bound") else str(ranked.index(row) + 1)
        name = short(row["policy"]) + (" *" if row["missing"] else "")
        body.append([rank, name, *(own[r] for _, _, *own in columns)])
        if bounded:  # what the policy reaches of the bound, or loses to it
            hidden = row.get("bound") or bounded.name not in row
            body[-1].append("" if hidden else with_margin(row, bounded))
    if any(row["missing"] for row in rows):
        caption += " * Unfinished: some of the policy's episodes are missing."
    shown = enumerate((same[0] for same in columns.values()), start=2)
    best = {(r, c) for c, one in shown if one.better for r in _best(rows, one)}
    return Table(title, headings, body, caption, left=2, best=best)


def _best(rows: Sequence[Mapping[str, Any]], metric: Metric) -> list[int]:
    """Return the positions of the best rows; a bound is none of them."""
    values = {
        r: metric.signed(row[metric.name]) for r, row in enumerate(rows) if not row.get("bound")
    }
    return [r for r, value in values.items() if value == max(values.values())]


def matrix(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    axis: str,
    policies: Sequence[str],
    score: Metric,
    beside: Metric | None = None,
    label: Callable[[Any], str] = str,
) -> Table:
    """Make a table of scores of policies by the values of an axis; the best of a column is bold.

    Each score has the metric `beside` in brackets, or without one half of its interval.
    """

    def text(row: Mapping[str, Any]) -> str:
        if beside is None:
            return with_margin(row, score)
        return f"{score.text(row[score.name])} ({beside.text(row[beside.name])})"

    values = list(dict.fromkeys(row[axis] for row in rows))
    by_place = {(row["policy"], row[axis]): row for row in rows}
    best = {
        (r, c)
        for c, value in enumerate(values, start=1)
        for r in _best([by_place[policy, value] for policy in policies], score)
    }
    body = [[short(policy), *(text(by_place[policy, v]) for v in values)] for policy in policies]
    return Table(title, ["policy", *map(label, values)], body, best=best)
