"""Results folders as the JSON that a report draws.

    {"format": 1, "version": ..., "runs": [RUN], "comparisons": [COMPARISON], "sections": [...]}

Sections are the parts that the page shows, all if there are none.

RUN
    name, folder, kind, unit, score   of the suite; records in words; the metric that ranks
    metrics     {name: {label, unit, better, decimals}}; "%" metrics are shares between 0 and 1
    terms       {label: explanation} of metrics and of words on the page
    axes        [{name, label, table, numeric, values: [[value, text]]}], coordinates of a cell
    policies    [{name, bound}], best first
    board       what ``inframind bench leaderboard --json`` prints
    tables      its tables as text: [{title, headings, rows, caption, left, best: [[row, column]]}]
    made        command lines, versions and machine
    episodes    [EPISODE], see `inframind_gym.benchmark.report.replay`
    episode_notes  sentences on episodes that are not there

COMPARISON of all policies of the runs of one family, on the episodes that all of them have
    kind, episodes, sides: [{run, policy}], notes
    metrics     {name: rows}: rows[i][j] is ``[difference, interval, verdict]`` of side i less j

Numbers have six significant digits.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np

import inframind_gym
from inframind_gym.benchmark.cells import Place, in_order
from inframind_gym.benchmark.compare import Side, difference_text, run_differences
from inframind_gym.benchmark.episodes import Episode
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.results import Estimate, Results, Stratum
from inframind_gym.benchmark.routing.metrics import SLO_TARGETS_S
from inframind_gym.benchmark.stats import NUM_RESAMPLES, interval
from inframind_gym.benchmark.tables import leaderboard_sheets

FORMAT: Final = 1
MOST_SIDES: Final = 40  # of a comparison
_DIGITS: Final = 6


def report_data(runs: Sequence[Results], *, bootstrap_seed: int = 0) -> dict[str, Any]:
    """Return the data of a report, without episodes.

    Args:
        runs: Results folders, of any families.
        bootstrap_seed: Seed of the intervals.
    """
    found = [run_data(run, bootstrap_seed) for run in runs]
    compared = []
    for kind in dict.fromkeys(run.family.kind for run in runs):
        sides = [
            (i, Side(runs[i], policy["name"]))
            for i, run in enumerate(found)
            for policy in run["policies"]
            if run["kind"] == kind
        ]
        compared.append(compare_all(sides, bootstrap_seed))
    return {
        "format": FORMAT,
        "version": inframind_gym.__version__,
        "runs": found,
        "comparisons": [one for one in compared if one],
    }


def run_data(results: Results, bootstrap_seed: int = 0) -> dict[str, Any]:
    """Return the data of a run, without episodes."""
    family, header = results.family, results.header
    board = leaderboard(results, bootstrap_seed=bootstrap_seed)
    measured = results.layout.measured(family.metrics)
    ranked = [row["policy"] for row in board["ranking"]] or list(results.policies)
    bounds = header.get("bounds", ())
    found: dict[str, Any] = lean(
        {
            "name": header["suite"]["name"],
            "folder": str(results.folder),
            "kind": family.kind,
            "unit": family.unit,
            "score": family.score,
            "metrics": {
                name: {
                    "label": one.label.replace("\n", " "),
                    **{key: getattr(one, key) for key in ("unit", "better", "decimals")},
                }
                for name, one in family.metrics.items()
                if name in measured
            },
            "terms": _terms(family.kind, measured),
            "axes": _axes(results),
            "policies": [{"name": name, "bound": name in bounds} for name in ranked],
            "board": board,
            "tables": [_table(sheet) for sheet in leaderboard_sheets(board)],
            "made": _made(header),
            "episodes": [],
            "episode_notes": [],
        }
    )
    return found


def _axes(results: Results) -> list[dict[str, Any]]:
    """Return the coordinates of cells, and the values that they have."""
    cell, found = results.family.suite.cell, []
    places = {cell.without_draw(one.place)[0] for one in results.episodes}
    for i, axis in enumerate(cell.axes):
        values = sorted({place[i] for place in places}, key=lambda value: in_order((value,)))
        numeric = all(isinstance(value, int | float) for value in values)
        found.append(
            {
                "name": axis.name,
                "label": axis.label,
                "table": axis.table,
                "numeric": numeric,
                "values": [[value, axis.text(value)] for value in values],
            }
        )
    return found


def _terms(kind: str, measured: Sequence[str]) -> dict[str, str]:
    """Return the words of a family's report with their explanations."""
    text = (files(__package__) / "glossary.json").read_text(encoding="utf-8")
    words: dict[str, dict[str, str]] = json.loads(text)
    targets = {
        f"≤{target} s": f"Share of queries answered within {target} s."
        for target in SLO_TARGETS_S
        if f"slo_{target}s" in measured
    }
    routing = words["routing"] if targets else {}
    return {**routing, **targets, **words[kind], **words["everywhere"]}


def _table(sheet: Any) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "headings": [heading.replace("\n", " ") for heading in sheet.headings],
        "rows": [list(row) for row in sheet.rows],
        "caption": sheet.caption,
        "left": sheet.left,
        "best": sorted(map(list, sheet.best)),
    }


def _made(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a run was made: its commands, versions and machine."""
    commands = [
        {"started": run.get("started", ""), "command": shlex.join(run.get("command", ()))}
        for run in header["runs"]
    ]
    settings = header["settings"]
    versions = {"simulator": settings["simulator"]} if "simulator" in settings else {}
    versions |= {**header.get("packages", {}), "python": header.get("python", "")}
    return {"commands": commands, "versions": versions, "machine": header.get("machine", {})}


def compare_all(
    sides: Sequence[tuple[int, Side]], bootstrap_seed: int = 0
) -> dict[str, Any] | None:
    """Compare every two policies of runs of one family, paired by place and seed.

    Args:
        sides: Number of the run, and the policy in it.
        bootstrap_seed: Seed of the intervals.

    Returns:
        See the module; None where there are not two policies with an episode in common.
    """
    sides = sides[:MOST_SIDES]
    strata = [side.results.strata(side.policy) for _, side in sides]
    common = _common(strata)
    if len(sides) < 2 or not common:
        return None
    runs = {i: side.results for i, side in sides}
    first, *others = runs.values()
    family = first.family
    measured = [set(run.layout.measured(family.metrics)) for run in runs.values()]
    names = tuple(name for name in family.compared if all(name in own for own in measured))
    estimates = [
        _estimate(side, own, common, names, bootstrap_seed)
        for (_, side), own in zip(sides, strata, strict=True)
    ]
    rows: dict[str, list[list[list[str]]]] = {name: [] for name in names}
    for one in estimates:
        differences = [_difference(other, one, family) for other in estimates]
        for name in names:
            rows[name].append([between[name] for between in differences])
    return {
        "kind": family.kind,
        "episodes": sum(map(len, common.values())),
        "sides": [{"run": i, "policy": side.policy} for i, side in sides],
        "metrics": rows,
        "notes": [note for run in others for note in run_differences(first, run)],
    }


def _common(
    strata: Sequence[Mapping[Place, Mapping[int, tuple[Episode, ...]]]],
) -> dict[Place, list[int]]:
    """Return the places and seeds that all sides have, with episodes of the same length."""
    first, *others = strata or [{}]
    found = {}
    for place, by_seed in first.items():
        seeds = [
            seed
            for seed, own in by_seed.items()
            if all(
                (there := other.get(place, {}).get(seed)) and there[0].records == own[0].records
                for other in others
            )
        ]
        if seeds:
            found[place] = sorted(seeds)
    return found


def _estimate(
    side: Side,
    strata: Mapping[Place, Mapping[int, tuple[Episode, ...]]],
    common: Mapping[Place, Sequence[int]],
    names: tuple[str, ...],
    seed: int,
) -> Estimate:
    """Return the means over places of a policy on some episodes."""
    shown: dict[Place, list[Estimate]] = {}  # of every draw of quality
    run = side.results
    for place, seeds in common.items():
        there, _ = run.family.suite.cell.without_draw(place)
        trainings = Stratum.by_training(strata[place][one] for one in seeds)
        estimate = Estimate.of(
            names, run.layout, side.policy, trainings, there, seed, NUM_RESAMPLES
        )
        shown.setdefault(there, []).append(estimate)
    first, *rest = map(Estimate.over_draws, shown.values())
    for estimate in rest:
        first = first + estimate
    return first


def _difference(a: Estimate, b: Estimate, family: Any) -> dict[str, list[str]]:
    """Return b - a in words, by metric."""
    of_both = [a.by_training, b.by_training]
    ends = interval(b.draws - a.draws, np.asarray(a.units), by_training=of_both)
    return {
        name: difference_text(
            family.metrics[name],
            {"difference": float(b.values[i] - a.values[i]), "difference_ci95": ends[:, i]},
        )
        for i, name in enumerate(a.names)
    }


def lean(content: Any) -> Any:
    """Return JSON content whose numbers have six significant digits."""
    if isinstance(content, bool | int | str) or content is None:
        return content
    if isinstance(content, float):
        return float(f"{content:.{_DIGITS}g}")
    if isinstance(content, Mapping):
        return {str(key): lean(value) for key, value in content.items()}
    if isinstance(content, Path):
        return str(content)
    return [lean(value) for value in content]
