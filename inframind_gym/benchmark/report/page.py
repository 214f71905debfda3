"""The file of a report: style, scripts and data in one, without a reference to the network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.report.data import report_data
from inframind_gym.benchmark.report.replay import (
    MOST_BYTES,
    MOST_EPISODES,
    choose,
    replayed,
    require_episodes,
)
from inframind_gym.benchmark.results import Results, load_results
from inframind_gym.files import replace_text

_SCRIPTS: Final = ("charts.js", "gantt.js", "page.js")
# A script element ends at "</script", wherever that stands; JSON can say "<" in another way.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    episodes: Sequence[str] = (),
    most_episodes: int = MOST_EPISODES,
    bootstrap_seed: int = 0,
) -> None:
    """Write a report of results folders.

    Args:
        folders: Of any families.
        out: The file.
        episodes: Names of episodes that are played again, CELL:POLICY:SEED.
        most_episodes: Further episodes of each run: worst and median ones of the policies.
        bootstrap_seed: Seed of the intervals.

    Raises:
        InfraMindError: A folder holds no results, there is no such episode, or it cannot be played
            again; or the file cannot be written.
    """
    if out.is_dir():
        raise BenchmarkError(f"--out {out} is a folder; name a file, such as {out}/report.html.")
    runs = [load_results(folder) for folder in folders]
    require_episodes(runs, episodes)
    data = report_data(runs, bootstrap_seed=bootstrap_seed)
    room = MOST_BYTES
    for run, found in zip(runs, data["runs"], strict=True):
        room -= _add_episodes(run, found, episodes, most_episodes, room)
    replace_text(out, render(data))


def _add_episodes(
    run: Results, found: dict[str, Any], asked: Sequence[str], most: int, room: int
) -> int:
    """Add the episodes of a run to its data; returns the bytes that they take."""
    ranked = [one["name"] for one in sorted(found["policies"], key=lambda one: one["bound"])]
    for one in replayed(run, choose(run, ranked, asked, most), room):
        found["episode_notes" if isinstance(one, str) else "episodes"].append(one)
    return len(json.dumps(found["episodes"]))


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
