"""A report of results folders: one HTML file that needs neither network nor server.

Style, scripts and data (JSON) are in the file: `charts.js` draws parts, `page.js` puts them
together.

    {"version": ..., "runs": [RUN], "comparisons": [COMPARISON]}

RUN
    name, folder, kind, unit, score   of the suite; records in words; the metric that ranks
    metrics     {name: {label, unit, better, decimals}}; "%" metrics are shares between 0 and 1
    terms       {label: explanation} of metrics and of words on the page
    axes        [{name, label, table, numeric, values: [[value, text]]}], coordinates of a cell
    policies    [{name, bound}], best first
    board       what ``inframind bench leaderboard --json`` prints
    tables      its tables as text: [{title, headings, rows, caption, left, best: [[row, column]]}]
    made        command lines, versions and machine

COMPARISON of all policies of the runs of one family, see `inframind_gym.evaluation.compare`.

Numbers have six significant figures.
"""

from __future__ import annotations

import dataclasses
import html
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

import inframind_gym
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import Results, leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import in_order, rounded
from inframind_gym.evaluation.compare import Side, compare_all
from inframind_gym.evaluation.queries import SLO_TARGETS_S
from inframind_gym.files import replace_text

MOST_SIDES: Final = 40  # of a comparison
_FIGURES: Final = 6  # of a number
_SCRIPTS: Final = ("charts.js", "page.js")
# A script element ends at any "</script": in JSON, "<" can be escaped.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


class Report(str):
    """The HTML of a report, which a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        style = "border:0;width:100%;height:780px"
        page = html.escape(self)
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def make_report(folders: Sequence[Path]) -> Report:
    """Make a report of results folders, of any families.

    Raises:
        InfraMindError: A folder holds no results.
    """
    return Report(render(report_data([load_results(folder) for folder in folders])))


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Write a report of results folders into a file.

    Raises:
        InfraMindError: A folder holds no results, or the file cannot be written.
    """
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file, such as {out}/report.html.")
    replace_text(out, make_report(folders))


def render(data: Mapping[str, Any]) -> str:
    """Return the HTML of a report's data."""
    folder = files(__package__)

    def part(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    title = ", ".join(dict.fromkeys(run["name"] for run in data["runs"]))
    return Template(part("report.html")).substitute(
        title=html.escape(f"{title}: benchmark report"),
        style=part("report.css"),
        script="\n".join(map(part, _SCRIPTS)),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
    )


def report_data(runs: Sequence[Results]) -> dict[str, Any]:
    """Return the data of a report of results folders, of any families."""
    data = [_run(run) for run in runs]
    compared = []
    for kind in dict.fromkeys(run["kind"] for run in data):
        sides = [
            (i, Side(runs[i], policy["name"]))
            for i, run in enumerate(data)
            for policy in run["policies"]
            if run["kind"] == kind
        ]
        compared.append(compare_all(sides[:MOST_SIDES]))
    comparisons = [one for one in compared if one]
    version = inframind_gym.__version__
    return {"version": version, "runs": data, "comparisons": comparisons}


def _run(results: Results) -> dict[str, Any]:
    """Return the data of a run."""
    family, header, measured = results.family, results.header, results.measured
    board, kind = leaderboard(results), results.kind
    ranked = [row["policy"] for row in board["ranking"]] or list(results.policies)
    axes = []
    for i, axis in enumerate(family.axes):
        used = {cell.place[i] for cell in results.episodes}
        values = sorted(used, key=lambda value: in_order((value,)))
        numeric = all(isinstance(value, int | float) for value in values)
        texts = [[value, axis.text(value)] for value in values]
        names = {"name": axis.name, "label": axis.label, "table": axis.table}
        axes.append({**names, "numeric": numeric, "values": texts})
    metrics = {}
    for name in measured:
        metric = family.metrics[name]
        about = {"unit": metric.unit, "better": metric.better, "decimals": metric.decimals}
        metrics[name] = {"label": metric.label.replace("\n", " "), **about}
    words = json.loads((files(__package__) / "glossary.json").read_text(encoding="utf-8"))
    targets = {
        f"≤{target} s": f"Share of queries answered within {target} s."
        for target in SLO_TARGETS_S
        if f"slo_{target}s" in measured
    }
    of_queries = words["routing"] if targets else {}
    tables = [dataclasses.asdict(table) for table in leaderboard_tables(board)]
    for table in tables:
        table["headings"] = [heading.replace("\n", " ") for heading in table["headings"]]
        table["best"] = sorted(map(list, table["best"]))
    bounds = header.get("bounds", ())
    commands = [
        {"started": run.get("started", ""), "command": shlex.join(run["command"])}
        for run in header["runs"]
    ]
    versions = {"simulator": header["settings"]["simulator"], **header["packages"]}
    run: dict[str, Any] = rounded(
        {
            "name": header["suite"]["name"],
            "folder": str(results.folder),
            "kind": kind,
            "unit": family.unit,
            "score": family.score,
            "metrics": metrics,
            "terms": {**of_queries, **targets, **words.get(kind, {}), **words["everywhere"]},
            "axes": axes,
            "policies": [{"name": name, "bound": name in bounds} for name in ranked],
            "board": board,
            "tables": tables,
            "made": {
                "commands": commands,
                "versions": {**versions, "python": header["python"]},
                "machine": header["machine"],
            },
        },
        _FIGURES,
    )
    return run
