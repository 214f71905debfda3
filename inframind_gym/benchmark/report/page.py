"""The file of a report: style, scripts and data in one, without a reference to the network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text

SECTIONS: Final = (  # those of page.js, in their order
    *("board", "load", "frontier", "paired", "shares", "cells", "episodes", "made", "words"),
)
_SCRIPTS: Final = ("charts.js", "gantt.js", "page.js")
# A script element ends at "</script", wherever that stands; JSON can say "<" in another way.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Report:
    """A report, which a notebook shows in a frame.

    Attributes:
        html: Its file.
        height_px: Height of the frame.
    """

    html: str = field(repr=False)
    height_px: int = 640

    def _repr_html_(self) -> str:
        style = f"border:0;width:100%;height:{self.height_px}px"
        page = html.escape(self.html)
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def make_report(
    folders: Sequence[Path],
    *,
    sections: Sequence[str] = (),
    episodes: Sequence[str] = (),
    most_episodes: int = MOST_EPISODES,
    bootstrap_seed: int = 0,
    height_px: int = 640,
) -> Report:
    """Make a report of results folders.

    Args:
        folders: Of any families.
        sections: Parts that it shows: board, load, frontier, paired, shares, cells, episodes, made
            and words; none: all, with a heading and links to them.
        episodes: Names of episodes that are played again, CELL:POLICY:SEED.
        most_episodes: Further episodes of each run: the worst of each policy, then the median
            ones; none are played if their section is not shown.
        bootstrap_seed: Seed of the intervals.
        height_px: Height of the frame in a notebook.

    Raises:
        InfraMindError: A folder holds no results, there is no such section or episode, or an
            episode cannot be played again.
    """
    for name in sections:
        if name not in SECTIONS:
            raise BenchmarkError(unknown("section", name, SECTIONS))
    runs = [load_results(folder) for folder in folders]
    require_episodes(runs, episodes)
    data = report_data(runs, bootstrap_seed=bootstrap_seed)
    data["sections"] = list(sections)
    room = MOST_BYTES
    for run, found in zip(runs, data["runs"], strict=True):
        if not sections or "episodes" in sections:
            room -= _add_episodes(run, found, episodes, most_episodes, room)
    return Report(render(data), height_px)


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    episodes: Sequence[str] = (),
    most_episodes: int = MOST_EPISODES,
    bootstrap_seed: int = 0,
) -> None:
    """Write a report of results folders into a file.

    Args:
        folders: See `make_report`, as for all but `out`.
        out: The file.
        episodes: See there.
        most_episodes: See there.
        bootstrap_seed: See there.

    Raises:
        InfraMindError: See there; or the file cannot be written.
    """
    if out.is_dir():
        raise BenchmarkError(f"--out {out} is a folder; name a file, such as {out}/report.html.")
    made = make_report(
        folders, episodes=episodes, most_episodes=most_episodes, bootstrap_seed=bootstrap_seed
    )
    replace_text(out, made.html)


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
