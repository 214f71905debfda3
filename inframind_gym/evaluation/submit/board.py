"""The public board: a page with the tables of all suites, and a report of each.

The pages are static: they need no server, no network and, but for the charts of the reports, no
script. Nothing is played. A submission has no values for tails: boards of submissions have none.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from inframind_gym import __version__
from inframind_gym.errors import InfraMindError
from inframind_gym.evaluation import report
from inframind_gym.evaluation.board import Results, leaderboard, leaderboard_tables
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.report.page import render, report_data
from inframind_gym.evaluation.stats import Episode
from inframind_gym.evaluation.submit.submission import MANIFEST, Checked, check
from inframind_gym.evaluation.suite import Cell
from inframind_gym.evaluation.tables import Table, to_html
from inframind_gym.files import replace_text
from inframind_gym.progress import say

PAGE: Final = "index.html"


def build(folder: Path, out: Path) -> Path:
    """Build the board.

    A submission that is damaged, incomplete or of another version is left out, and the page says
    why.

    Args:
        folder: Of all submissions, SUITE/NAME.
        out: Folder of the pages.

    Returns:
        The first page.

    Raises:
        InfraMindError: There is no submission that can be shown, or a page cannot be written.
    """
    groups: dict[str, list[Checked]] = {}
    notes: list[str] = []
    for path in sorted(folder.glob(f"*/*/{MANIFEST}")):
        try:
            one = check(path.parent)
            groups.setdefault(one.submission.suite, []).append(one)
        except InfraMindError as error:
            why = str(error).replace(f"{folder.resolve()}/", "")
            notes.append(f"{path.parent.parent.name}/{path.parent.name} is left out: {why}")
            say(notes[-1])
    if not groups:
        raise BenchmarkError(
            f"{folder} has no submission that can be shown. Make one: inframind submit prepare RUN "
            "--name NAME --authors NAMES"
        )
    sections = []
    for suite, entries in groups.items():
        results = merge(entries)
        replace_text(out / f"{suite}.html", render(report_data([results])))
        board = leaderboard(results)
        table = leaderboard_tables(board)[0]
        about = [table.title, results.header["suite"].get("description", "")]
        said = " ".join(f"{sentence.rstrip('.')}." for sentence in about if sentence)
        sections += [
            f'<section id="{suite}"><h2>{html.escape(suite)}</h2>',
            f'<p class="hint">{html.escape(said)}</p>',
            to_html(table),
            f'<p><a href="{suite}.html">Charts, paired comparison and all tables</a></p>',
            "<h3>Entries</h3>",
            to_html(_entries_table(entries, board)),
            "</section>",
        ]
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    text = Template((files(__package__) / "board.html").read_text(encoding="utf-8")).substitute(
        style=(files(report) / "report.css").read_text(encoding="utf-8"),
        version=html.escape(__version__),
        links=" ".join(f'<a href="#{suite}">{html.escape(suite)}</a>' for suite in groups),
        sections="\n".join(sections),
        notes=f'<ul class="notes">{items}</ul>' if items else "",
    )
    replace_text(out / PAGE, text)
    return out / PAGE


def merge(entries: Sequence[Checked]) -> Results:
    """Return the results of submissions to one suite, under their names."""
    first = entries[0]
    header: dict[str, Any] = {**first.header, "runs": [], "policies": {}, "planned": {}}
    fits: dict[str, int] = {}
    episodes: dict[Cell, Episode] = {}
    for one in entries:
        name, policy = one.submission.name, one.submission.policy
        for key in ("policies", "planned"):
            header[key][name] = one.header[key][policy]
        header["runs"] += one.header["runs"]
        if one.submission.training.queries is not None:
            fits[name] = one.submission.training.queries
        episodes |= {replace(cell, policy=name): own for cell, own in one.episodes.items()}
    for key in ("machine", "packages", "python"):  # where all have the same
        if any(one.header.get(key) != first.header.get(key) for one in entries):
            header.pop(key, None)
    header["suite"] = {**first.header["suite"], "policies": list(header["policies"])}
    if "fits" in header:
        budgets = [one.header["fits"]["budget_queries"] for one in entries]
        header["fits"] = {"budget_queries": max(budgets), "queries": fits}
    family, where = type(first.suite), Path(first.suite.name)
    layout = family.layout(first.header)
    return Results(where, header, family, layout, episodes, {}, {}, has_tails=False)


def _entries_table(entries: Sequence[Checked], board: Mapping[str, Any]) -> Table:
    """Return who submitted what, in the order of the board."""
    order = [row["policy"] for row in board["ranking"]]
    rows = []
    for one in sorted(entries, key=lambda one: order.index(one.submission.name)):
        entry, header = one.submission, one.header
        queries = entry.training.queries
        budget = "" if queries is None else f"{queries:,} simulated queries" if queries else "none"
        row = {
            "name": entry.name,
            "plays": entry.policy,
            "by": entry.authors,
            "training": "; ".join(part for part in (budget, entry.training.about) if part),
            "about": entry.about,
            "page": entry.url,
            "played": ", ".join(str(run.get("started", ""))[:10] for run in header["runs"][-1:]),
            "version": header.get("packages", {}).get("inframind-gym", "?"),
        }
        rows.append(row)
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    return Table("", used, [[row[name] for name in used] for row in rows], left=99)
