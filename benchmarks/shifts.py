"""Distribution shifts: suites that differ from the one that policies were fitted to.

`shifts.yaml` says what differs. `write_suites` makes a suite of each, `inframind_gym.benchmark`
runs them, and `tables` makes the tables of docs/robustness.md from the results folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field

from benchmarks.pages import table
from benchmarks.record_table import origin_of
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.routing.suite import RoutingSuite
from inframind_gym.benchmark.suite import load_suite, name_of
from inframind_gym.configs import (
    Number,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload

SHIFTS: Final = Path(__file__).with_name("shifts.yaml")
_STEP_TIMES: Final = (
    *("base_s", "per_seq_s", "per_kv_token_s"),
    *("per_new_token_s", "per_attention_unit_s", "sparse_s"),
)


class Shift(StrictModel):
    """One shift.

    Attributes:
        what: Description.
        suite: Settings in place of the suite's own.
        traced: Whether arrivals are those of a recorded trace, which has to be given.
        step_factors: Factor on the duration of engine steps, by the model's alias.
        ability_offsets: Change of the ability in every workload, in logits, by the model's alias.
        quality: Settings of `QualityConfig` in place of every workload's own.
    """

    what: str
    suite: dict[str, Any] = Field(default_factory=dict)
    traced: bool = False
    step_factors: dict[str, Positive] = Field(default_factory=dict)
    ability_offsets: dict[str, Number] = Field(default_factory=dict)
    quality: dict[str, Any] = Field(default_factory=dict)


class Shifts(StrictModel):
    """Content of `shifts.yaml`.

    Attributes:
        suite: The suite that they vary.
        seeds: Episodes of every cell.
        ours: Policy whose differences to all others are shown.
        policies: Policies that play.
        shifts: By name.
    """

    suite: str
    seeds: PositiveInt
    ours: str
    policies: tuple[str, ...] = Field(min_length=2)
    shifts: dict[str, Shift] = Field(min_length=1)

    @property
    def rivals(self) -> tuple[str, ...]:
        """All policies but `ours`, whatever its checkpoint."""
        return tuple(name for name in self.policies if name.partition(":")[0] != self.ours)


def load_shifts(path: Path = SHIFTS) -> Shifts:
    """Read a file of shifts; a BenchmarkError if `ours` does not play, or nothing else does."""
    found = load_yaml_model(path, Shifts)
    if found.ours not in found.policies:
        raise BenchmarkError(f"{path}: ours: {unknown('policy', found.ours, found.policies)}")
    if not found.rivals:
        raise BenchmarkError(f"{path}: policies: add one that is not {found.ours!r}, to compare.")
    return found


def slug(name: str) -> str:
    """Name of the files and of the results folder of a shift."""
    return name.replace(" ", "-")


def write_suites(shifts: Shifts, folder: Path, trace: Path | None = None) -> dict[str, Path]:
    """Write the suite of each shift, with its pool and workloads where these differ.

    Without a `trace`, a CSV file of recorded arrivals, the shifts that need one are left out.
    """
    found = {}
    for name, shift in shifts.shifts.items():
        if trace or not shift.traced:
            suite = suite_of(shifts, name, folder, trace)
            content = suite.model_dump(mode="json", exclude_defaults=True)
            found[name] = Path(_write(content, folder / f"{slug(name)}.yaml"))
    return found


def suite_of(shifts: Shifts, name: str, folder: Path, trace: Path | None = None) -> RoutingSuite:
    """The suite of one shift; a pool or workloads that differ are written to a folder."""
    shift = shifts.shifts[name]
    settings: dict[str, Any] = {"policies": shifts.policies, "seeds": shifts.seeds} | shift.suite
    if shift.traced:
        settings["arrivals"] = {"kind": "trace", "path": str(trace), "rescale": True}
    suite = load_suite(shifts.suite, settings)
    changes: dict[str, Any] = {"name": name}
    if shift.step_factors:
        changes["pool"] = _write_pool(suite.pool, shift.step_factors, folder / slug(name))
    if shift.ability_offsets or shift.quality:
        own = [_write_workload(one, shift, folder / slug(name)) for one in suite.workloads]
        changes["workloads"] = tuple(own)
    changed: RoutingSuite = suite.model_copy(update=changes)
    return changed


def _write_pool(pool: str, factors: Mapping[str, float], folder: Path) -> str:
    data = yaml.safe_load(find_config("pools", pool).read_text(encoding="utf-8"))
    models = {model["alias"]: model for model in data["models"]}
    for alias, factor in factors.items():
        step = _known(alias, models)["server"]["step"]
        step.update({key: step[key] * factor for key in _STEP_TIMES if key in step})
    path = _write(data, folder / f"{data['name']}.yaml")
    load_pool(path)
    return path


def _write_workload(workload: str, shift: Shift, folder: Path) -> str:
    """Write a changed workload under its own name, so that its episodes are the same."""
    data = yaml.safe_load(find_config("workloads", workload).read_text(encoding="utf-8"))
    for alias, offset in shift.ability_offsets.items():
        _known(alias, data["models"])["ability"] += offset
    data["quality"] = {**data["quality"], **shift.quality}
    path = _write(data, folder / f"{name_of(workload)}.yaml")
    load_workload(path)
    return path


def _known(alias: str, models: Mapping[str, Any]) -> Any:
    if alias not in models:
        raise BenchmarkError(unknown("model", alias, models))
    return models[alias]


def _write(data: Mapping[str, Any], path: Path) -> str:
    replace_text(path, yaml.safe_dump(dict(data), sort_keys=False))
    return str(path)


def tables(shifts: Shifts, found: Mapping[str, Results]) -> dict[str, str]:
    """Tables of docs/robustness.md from the results of each shift."""
    boards = {name: leaderboard(results) for name, results in found.items()}
    nearest = {name: _nearest(results, shifts) for name, results in found.items()}
    described = []
    for name, results in found.items():
        arrivals = results.header["suite"]["arrivals"]
        trace = f" (`{Path(arrivals['path']).name}`)" if isinstance(arrivals, dict) else ""
        described.append([name, shifts.shifts[name].what + trace])
    episodes = sum(len(results.episodes) for results in found.values())
    return {
        "shifts": table(["shift", "what it is"], described, left=2),
        "goodput": _scores(boards, "goodput", shifts),
        "within": _scores(boards, "slo_100s", shifts),
        "leads": _leads(nearest),
        "losses": _losses(nearest, shifts.ours),
        "origin": f"{episodes:,} episodes; {origin_of([one.header for one in found.values()])}",
    }


def _label(policy: str) -> str:
    """A policy's name in a table, with the last folder of its checkpoint."""
    name, _, checkpoint = policy.partition(":")
    return f"`{name}_{Path(checkpoint).name}`" if checkpoint else f"`{name}`"


def _scores(boards: Mapping[str, dict[str, Any]], metric: str, shifts: Shifts) -> str:
    rows = []
    for name, board in boards.items():
        mean = {row["policy"]: row for row in board["ranking"]}
        best = max(row[metric] for row in mean.values())
        cells = []
        for row in (mean[policy] for policy in shifts.policies):
            low, high = row[f"{metric}_ci95"]
            text = f"{100 * row[metric]:.1f}±{100 * (high - low) / 2:.1f}"
            cells.append(f"**{text}**" if row[metric] == best else text)
        rows.append([name, *cells])
    return table(["", *map(_label, shifts.policies)], rows)


Lead = tuple[str, str, dict[str, Any]]  # place, best rival there, our difference to it


def _nearest(results: Results, shifts: Shifts) -> list[Lead]:
    """The rival with the highest goodput at each place, and the paired difference to it."""
    axes = [axis.name for axis in results.family.suite.cell.axes]
    ours = Side(results, shifts.ours)
    rows = {rival: compare(Side(results, rival), ours)["rows"] for rival in shifts.rivals}
    leads = []
    for at in zip(*rows.values(), strict=True):
        found = dict(zip(rows, at, strict=True))
        rival = max(found, key=lambda name: found[name]["goodput"]["a"])
        workload, rate = (found[rival][axis] for axis in axes[:2])
        leads.append((f"{workload} at {rate:g}/min", rival, found[rival]["goodput"]))
    return leads


def _leads(nearest: Mapping[str, Sequence[Lead]]) -> str:
    rows = []
    for name, leads in nearest.items():
        ahead = sum(own["difference_ci95"][0] > 0 for _, _, own in leads)
        behind = sum(own["difference_ci95"][1] < 0 for _, _, own in leads)
        mean = sum(own["difference"] for _, _, own in leads) / len(leads)
        place, rival, worst = min(leads, key=lambda lead: lead[2]["difference"])
        counts = [len(leads), ahead, len(leads) - ahead - behind, behind]
        smallest = f"{_text(worst)} {place}, {_label(rival)}"
        rows.append([name, *map(str, counts), f"{100 * mean:+.1f}", smallest])
    headings = ["", "cells", "ahead", "level", "behind", "mean lead", "smallest lead"]
    return table(headings, rows)


def _losses(nearest: Mapping[str, Sequence[Lead]], ours: str) -> str:
    rows = [
        [name, place, _label(rival), _text(own)]
        for name, leads in nearest.items()
        for place, rival, own in leads
        if own["difference_ci95"][1] < 0
    ]
    if not rows:
        return "In no cell is a rival ahead with an interval that leaves 0 out."
    return table(["shift", "cell", "best rival", f"`{ours}` less it"], rows, left=3)


def _text(difference: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in difference["difference_ci95"])
    return f"{100 * difference['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
