"""Tables and plots of the results pages: `python -m benchmarks results` makes them from records.

The prose of the pages is written by hand around the tables (`benchmarks.pages`). Every
score is a mean with a 95 % interval over training seeds and episodes (`benchmarks.intervals`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.intervals import Draws
from benchmarks.pages import INK, NONE, QUIET, RULE, embolden, refresh, save_all, table
from benchmarks.plan import EntryConfig, Execution, PlanConfig
from benchmarks.published import SYSTEMS, Published, beside_table, causes_table, effects_table
from benchmarks.record_table import DECISIONS, RECORDS, Place, read_rows
from benchmarks.scores import (
    AGENT,
    BOUND,
    COLUMNS,
    ELSEWHERE,
    GOODPUT,
    OBLIVIOUS,
    PAPER,
    REPLAYED,
    Board,
    difference,
    margin,
    named,
    per_minute,
    text,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGES: Final = ("results.md", "results/published.md", "results/tables.md")
RANKED: Final = ("agent", "baseline")
_LINES: Final = {AGENT: ("#0072b2", 2.4), PAPER: ("#d55e00", 1.6), OBLIVIOUS: ("#009e73", 1.6)}
_FLUID: Final = {
    "fluid bound, knows the episodes": "clairvoyant",
    "fluid bound, knows distributions": "informed",
}


def refresh_pages(
    plan: PlanConfig, docs: Path, *, records: Path = RECORDS, check: bool = False
) -> list[Path]:
    """Refresh tables and, unless only checking, plots; return the pages that were out of date."""
    boards = {execution: Board(plan, execution, records) for execution in plan.suites}
    blocks = all_tables(plan, boards, records)
    stale = [docs / p for p in PAGES if not refresh(docs / p, blocks, check=check)]
    if not check:
        figures = {f"goodput-{e}": _goodput_plot(board) for e, board in boards.items()}
        save_all(figures, docs / "results")
    return stale


def all_tables(
    plan: PlanConfig, boards: Mapping[Execution, Board], records: Path = RECORDS
) -> dict[str, str]:
    """Every table by name."""
    main, replay = boards["parallel"], boards["sequential"]
    published = Published()
    blocks = {
        "entries": entries_table(plan),
        "informed": informed_table(main),
        "ablations": ablations_table(main, AGENT),
        "ablations-inframind": ablations_table(main, PAPER),
        "ablations-sequential": ablations_table(replay, REPLAYED),
        "strategies": shares_table(main, "strategy_share"),
        "models": shares_table(main, "model_share"),
        "beside": beside_table(replay, published),
        "effects": effects_table(replay, published, REPLAYED),
        "effects-on-time": effects_table(replay, published, f"{REPLAYED}-on-time"),
        "causes": causes_table(replay, published),
        "origin": origin_text(boards),
        "datasets": "\n\n".join(
            f"## {title(workload)}\n\n{dataset_tables(boards, workload, published)}"
            for workload in main.workloads
        ),
    }
    for execution, board in boards.items():
        blocks[f"goodput-{execution}"] = goodput_table(board)
        blocks[f"rivals-{execution}"] = rivals_table(board)
        blocks[f"load-{execution}"] = load_table(board, execution, published, records)
    return blocks | {"differences": differences_table(main)}


def entries_table(plan: PlanConfig) -> str:
    """Entries and numbers of training seeds."""
    rows = [
        (f"`{e.name}`", e.kind, e.what, str(len(e.seeds)) if e.training else NONE)
        for e in plan.entries
    ]
    return table(("Name", "", "What it is", "training seeds"), rows, left=3)


def goodput_table(board: Board) -> str:
    """Goodput by rate, averaged over the datasets, and its share of the clairvoyant bound."""
    rates = (*board.rates, None)
    possible = board.mean(BOUND, "goodput")
    body, values = [], []
    for entry in board.of_kind(*RANKED, "bound"):
        draws = [board.mean(entry.name, "goodput", rate) for rate in rates]
        cells = [margin(one, GOODPUT) for one in (*draws, draws[-1] / possible)]
        body.append([named(entry), *cells])
        values.append([one.value if entry.kind in RANKED else -np.inf for one in draws])
    embolden(body, values)
    for name, bound in _FLUID.items():
        means = [np.mean([board.bounds[place][bound] for place in board.places(r)]) for r in rates]
        body.append([f"*{name}*", *(f"*{100 * mean:.1f}*" for mean in means), NONE])
    return table(["Goodput %", *map(per_minute, board.rates), "all", "of the bound %"], body)


def informed_table(board: Board) -> str:
    """Share of the informed bound's goodput that the agent and the best baseline reach."""
    baselines = [entry.name for entry in board.of_kind("baseline")]

    def cell(place: Place) -> str:
        informed = board.bounds[place]["informed"]
        own = board.draws(AGENT, place, "goodput")
        low, high = own.interval()
        best = board.draws(board.best(baselines, place), place, "goodput").value
        half = (high - low) / 2 / informed
        return f"{100 * own.value / informed:.1f}±{100 * half:.1f}; {100 * best / informed:.0f}"

    return _by_workload(board, cell, f"`{AGENT}`; best baseline")


def rivals_table(board: Board) -> str:
    """The best rival of every cell, and the agent's goodput minus its."""
    rivals = board.rivals(AGENT)

    def cell(place: Place) -> str:
        best = board.best(rivals, place)
        own = board.draws(AGENT, place, "goodput") - board.draws(best, place, "goodput")
        return f"`{best}` {difference(own, GOODPUT)}"

    return _by_workload(board, cell, "")


def _by_workload(board: Board, cell: Callable[[Place], str], heading: str) -> str:
    """A table of workloads by rates."""
    rows = [[title(w), *map(cell, board.places(workload=w))] for w in board.workloads]
    return table([heading, *map(per_minute, board.rates)], rows)


def differences_table(board: Board, workload: str | None = None) -> str:
    """Goodput of the agent minus that of every other entry."""
    body = []
    for other in board.of_kind(*RANKED, "bound"):
        if other.name != AGENT:
            paired = [
                board.difference(AGENT, other.name, rate=rate, workload=workload)
                for rate in board.rates
            ]
            body.append([named(other), *(difference(one, GOODPUT) for one in paired)])
    return table(["", *map(per_minute, board.rates)], body)


def ablations_table(board: Board, agent: str) -> str:
    """Ablations minus the agent that something was taken away from."""
    shown = [("goodput", rate, GOODPUT) for rate in (*board.rates, None)]
    shown += [("accuracy", None, COLUMNS[0]), ("slo_own", None, COLUMNS[3])]
    body = []
    for entry in board.of_kind("ablation"):
        if entry.of == agent:
            cells = [
                difference(board.difference(entry.name, agent, metric, rate), column)
                for metric, rate, column in shown
            ]
            body.append([entry.what, *cells])
    headings = [f"`{agent}`", *map(per_minute, board.rates)]
    return table([*headings, "all loads", "solved, all", "in budget, all"], body)


def load_table(board: Board, execution: str, published: Published, records: Path) -> str:
    """Shares of decisions for queries that kept and that missed their budget."""
    headings = [""]
    for model in published.shares:
        headings += [f"{model}, ratio ≤ 1", f"{model}, ratio > 1"]
    there = [share[s] for share in published.shares.values() for s in ("below", "above")]
    body = [[f"published agent, {ELSEWHERE}", *(f"{100 * share:.1f}" for share in there), NONE]]
    rows = [row for row in read_rows(records / DECISIONS) if row["execution"] == execution]
    for entry in _watched(board):
        sides = [row for row in rows if row["entry"] == entry.name]
        counts = [Counter(_counts(row["decisions"])) for row in sides]
        cells = []
        for model in published.shares:
            cells += [f"{100 * n[model] / n.total():.1f}" if n else NONE for n in counts]
        queries = [int(row["queries"]) for row in sides]
        body.append([f"`{entry.name}`", *cells, f"{100 * queries[1] / sum(queries):.1f}"])
    return table([*headings, "queries with ratio > 1, %"], body)


def _counts(text: str) -> dict[str, int]:
    return {model: int(n) for model, _, n in (part.partition("=") for part in text.split())}


def _watched(board: Board) -> list[EntryConfig]:
    """Agents, and the entries that stand for the published systems."""
    systems = (PAPER, REPLAYED, OBLIVIOUS)
    return [entry for entry in board.entries if entry.kind == "agent" or entry.name in systems]


def shares_table(board: Board, share: str) -> str:
    """Shares of decisions against load, %, averaged over the datasets."""
    body = []
    for entry in _watched(board):
        for column in board.scores[entry.name][board.places()[0]].columns:
            kind, _, name = column.partition(".")
            if kind == share:
                values = [100 * board.share(entry.name, column, rate) for rate in board.rates]
                body.append([f"`{entry.name}`", name, *(f"{value:.1f}" for value in values)])
    return table(["", "share, %", *map(per_minute, board.rates)], body, left=2)


def dataset_tables(boards: Mapping[Execution, Board], workload: str, published: Published) -> str:
    """Paired differences on a dataset, and every metric of every entry at every rate."""
    differences = differences_table(boards["parallel"], workload)
    parts = [f"`{AGENT}` minus each other entry, goodput in points, parallel execution:"]
    parts.append(differences)
    for execution, board in boards.items():
        for place in board.places(workload=workload):
            parts.append(f"### {title(workload)}, {place[1]:g} queries/min, {execution}")
            beside = published if execution == "sequential" else None
            parts.append(_metrics_table(board, place, beside))
    return "\n\n".join(parts)


def _metrics_table(board: Board, place: Place, published: Published | None) -> str:
    body, values = [], []
    for entry in board.of_kind(*RANKED, "bound"):
        draws = [board.draws(entry.name, place, column.name) for column in COLUMNS]
        body.append([named(entry), *map(margin, draws, COLUMNS)])
        better = [column.sign * own.value for own, column in zip(draws, COLUMNS, strict=True)]
        values.append(better if entry.kind in RANKED else [-np.inf] * len(COLUMNS))
    embolden(body, values)
    for name, bound in _FLUID.items():
        goodput = f"*{100 * board.bounds[place][bound]:.1f}*"
        body.append([f"*{name}*", *[NONE] * (len(COLUMNS) - 1), goodput])
    for system in SYSTEMS:
        own = published.value if published else lambda *_: None
        there = [own(system, place, column.name) for column in COLUMNS]
        if any(value is not None for value in there):
            body.append([f"`{system}`, {ELSEWHERE}", *map(text, there, COLUMNS)])
    return table(["", *(column.label for column in COLUMNS)], body)


def origin_text(boards: Mapping[Execution, Board]) -> str:
    """Numbers of episodes and queries, versions and machines behind the tables."""
    records = [record for board in boards.values() for record in board.index.values()]
    queries = [
        scores.columns["queries"]
        for board in boards.values()
        for places in board.scores.values()
        for scores in places.values()
    ]

    def every(key: str) -> str:
        return ", ".join(sorted({one for record in records for one in record[key]}))

    versions = ", ".join(sorted({str(record["simulator_version"]) for record in records}))
    return (
        f"The tables rest on {sum(own.size for own in queries):,} episodes "
        f"({int(sum(own.sum() for own in queries)):,} queries) of simulator version {versions}; "
        f"revisions {every('revisions')}; {every('machines')}."
    )


def _goodput_plot(board: Board) -> Callable[[], Figure]:
    """Goodput against load, a panel for each dataset."""

    def draw() -> Figure:
        from matplotlib.figure import Figure

        columns = 3
        rows = -(-len(board.workloads) // columns)
        figure = Figure(figsize=(3.3 * columns, 2.7 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for i, (panel, workload) in enumerate(zip(panels, board.workloads, strict=False)):
            legend = _panel(panel, board, workload)
            if i % columns == 0:
                panel.set_ylabel("goodput, %")
            if i + columns >= len(board.workloads):
                panel.set_xlabel("queries/min")
                panel.tick_params(labelbottom=True)
        for panel in panels[len(board.workloads) :]:
            panel.set_axis_off()
        panels[-1].legend(legend.values(), legend, loc="center left", frameon=False)
        return figure

    return draw


def _panel(panel: Axes, board: Board, workload: str) -> dict[str, Any]:
    """Draw one dataset; returns the lines of the legend."""
    places, ticks = board.places(workload=workload), np.arange(len(board.rates))
    legend: dict[str, Any] = {}

    def line(label: str, values: Sequence[float], colour: str, **style: Any) -> None:
        percent = 100 * np.array(values)
        (legend[label],) = panel.plot(ticks, percent, color=colour, **style)

    for entry in board.of_kind(*RANKED, "bound"):
        draws: list[Draws] = [board.draws(entry.name, place, "goodput") for place in places]
        values = [one.value for one in draws]
        if entry.kind == "bound":
            line(f"{entry.name} (bound)", values, INK, lw=1.2, ls="--", zorder=6)
        elif entry.name in _LINES:
            colour, width = _LINES[entry.name]
            line(entry.name, values, colour, lw=width, marker="o", ms=3.5, zorder=4)
        else:
            line("other entries", values, "#b6bdc5", lw=1.0, zorder=2)
        if entry.name == AGENT:
            low, high = 100 * np.array([one.interval() for one in draws]).T
            panel.fill_between(ticks, low, high, color=colour, alpha=0.18, lw=0)
    fluid = [board.bounds[place]["clairvoyant"] for place in places]
    line("fluid bound", fluid, QUIET, lw=1.2, ls=":", zorder=6)
    panel.set_xticks(ticks, [f"{rate:g}" for rate in board.rates])
    panel.set_ylim(0, 100)
    panel.grid(axis="y", color=RULE, lw=0.6)
    panel.set_axisbelow(True)
    panel.set_title(title(workload))
    return legend
