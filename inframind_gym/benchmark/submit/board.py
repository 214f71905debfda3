"""The public board: a page with the tables of all suites, and a report of each.

The pages are static: they need no server, no network and, but for the charts of the reports, no
script. Nothing is played; code of submissions is not run.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from inframind_gym import __version__
from inframind_gym.benchmark import report
from inframind_gym.benchmark.cells import content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.report.data import report_data
from inframind_gym.benchmark.report.page import render
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.submit.check import Checked, check
from inframind_gym.benchmark.submit.manifest import MANIFEST, Submission
from inframind_gym.benchmark.tables import Sheet, leaderboard_sheets
from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_text
from inframind_gym.progress import say

PAGE: Final = "index.html"
_OF_ONE: Final = ("policies", "planned")  # keys of a header that go by the policy
_CODE: Final = {"built-in": "this package", "files": "in the entry", "package": "its package"}


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
    groups: dict[tuple[str, str], list[Checked]] = {}
    left_out: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/*/{MANIFEST}")):
        where = path.parent
        try:
            one = check(where, "ignore")
        except InfraMindError as error:
            why = str(error).replace(f"{folder.resolve()}/", "")
            left_out[f"{where.parent.name}/{where.name}"] = why
            say(f"left out: {why}")
            continue
        groups.setdefault(_group(one), []).append(one)
    if not groups:
        raise BenchmarkError(
            f"{folder} has no submission that can be shown. Make one: inframind submit prepare RUN "
            "--name NAME --authors NAMES"
        )
    sections = []
    for (suite, page), found in groups.items():
        results = merge(found)
        replace_text(out / f"{page}.html", render(report_data([results])))
        sections.append(_section(suite, page, results, found))
    notes = [f"{name} is left out: {why}" for name, why in left_out.items()]
    style = (files(report) / "report.css").read_text(encoding="utf-8")
    template = (files(__package__) / "board.html").read_text(encoding="utf-8")
    text = Template(template).substitute(
        style=style,
        version=_text(__version__),
        links=" ".join(f'<a href="#{page}">{_text(page)}</a>' for _, page in groups),
        sections="\n".join(sections),
        notes=f'<ul class="notes">{"".join(map(_item, notes))}</ul>' if notes else "",
    )
    replace_text(out / PAGE, text)
    return out / PAGE


def _group(one: Checked) -> tuple[str, str]:
    """Return suite and page of a submission; live runs on other pools have pages of their own."""
    suite = one.submission.suite
    pool = one.expected.header["settings"].get("pool")
    return suite, f"{suite}-live-{content_hash(pool)[:6]}" if one.submission.live else suite


def merge(found: Sequence[Checked]) -> Results:
    """Return the results of submissions to one suite, under their names."""
    first = found[0].expected
    header = {**first.header, "runs": [], **{key: {} for key in _OF_ONE}}
    fits: dict[str, int] = {}
    episodes = {}
    layout = first.kind.layout(first.header)
    for one in found:
        submission, own = one.submission, one.expected.header
        name, queries = submission.name, submission.training.queries
        for key in _OF_ONE:
            header[key] = {**header[key], name: own[key][submission.policy]}
        header["runs"] = [*header["runs"], *own["runs"]]
        if queries is not None:
            fits[name] = queries
        for cell, line in one.cells.items():
            episodes[replace(cell, policy=name)] = line.episode(layout)  # type: ignore[type-var]
    for key in ("machine", "packages", "python"):  # where all have the same
        if any(one.expected.header.get(key) != first.header.get(key) for one in found):
            header.pop(key, None)
    header["suite"] = {**first.header["suite"], "policies": list(header["policies"])}
    if "fits" in header:
        budgets = [one.expected.header["fits"]["budget_queries"] for one in found]
        header["fits"] = {"budget_queries": max(budgets), "queries": fits}
    return Results(Path(first.suite.name), header, first.kind, layout, episodes, {}, {}, 0, 0)


def _section(suite: str, page: str, results: Results, found: Sequence[Checked]) -> str:
    """Return the HTML of a suite: its first table, and who submitted what."""
    board = leaderboard(results)
    sheet = leaderboard_sheets(board)[0]
    about = [sheet.title, results.header["suite"].get("description", "")]
    if page != suite:
        about.append("Live servers, which cannot be played again")
    said = " ".join(f"{sentence.rstrip('.')}." for sentence in about if sentence)
    return "\n".join(
        [
            f'<section id="{page}"><h2>{_text(page)}</h2>',
            f'<p class="hint">{_text(said)}</p>',
            _table(sheet),
            f'<p><a href="{page}.html">Charts, paired comparison and all tables</a></p>',
            "<h3>Entries</h3>",
            _table(_entries(found, board)),
            "</section>",
        ]
    )


def _entries(found: Sequence[Checked], board: Mapping[str, Any]) -> Sheet:
    """Return who submitted what, in the order of the board."""
    order = [row["policy"] for row in board["ranking"]]
    rows = []
    for one in sorted(found, key=lambda one: order.index(one.submission.name)):
        entry, header = one.submission, one.expected.header
        made = header["runs"][-1].get("started", "")[:10]
        package = header.get("packages", {}).get("inframind-gym", "?")
        rows.append([entry.name, entry.policy, entry.authors, _CODE[entry.code], _training(entry),
                     entry.about, entry.url, made, package])  # fmt: skip
    headings = ["name", "plays", "by", "code", "training", "about", "page", "played", "version"]
    used = [c for c in range(len(headings)) if any(row[c] for row in rows)]
    return Sheet("", [headings[c] for c in used], [[row[c] for c in used] for row in rows], left=99)


def _training(entry: Submission) -> str:
    queries = entry.training.queries
    budget = "" if queries is None else f"{queries:,} simulated queries" if queries else "none"
    return "; ".join(part for part in (budget, entry.training.about) if part)


def _table(sheet: Sheet) -> str:
    """Return the HTML of a table; its text stays text."""

    def row(tag: str, cells: Iterable[str], r: int = -1) -> str:
        kinds = [
            " ".join(
                ["left"] * (c < sheet.left)
                + ["best"] * ((r, c) in sheet.best)
                + ["wrap"] * (len(cell) > 30)
            )
            for c, cell in enumerate(cells)
        ]
        pairs = zip(kinds, cells, strict=True)
        inner = "".join(f'<{tag} class="{kind}">{_link(cell)}</{tag}>' for kind, cell in pairs)
        return f"<tr>{inner}</tr>"

    head = row("th", [heading.replace("\n", " ") for heading in sheet.headings])
    body = "".join(row("td", cells, r) for r, cells in enumerate(sheet.rows))
    caption = f"<figcaption>{_text(sheet.caption)}</figcaption>" if sheet.caption else ""
    inner = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f'<figure><div class="scroll" tabindex="0">{inner}</div>{caption}</figure>'


def _link(text: str) -> str:
    """Return text as HTML; an address becomes a link."""
    if text.startswith(("https://", "http://")):
        return f'<a href="{_text(text)}" rel="nofollow">{_text(text)}</a>'
    return _text(text)


def _text(text: str) -> str:
    return html.escape(str(text))


def _item(text: str) -> str:
    return f"<li>{_text(text)}</li>"
