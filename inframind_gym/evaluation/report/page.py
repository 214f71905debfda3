"""The file of a report: style, scripts and data in one, without a reference to the network.

Some episodes are played again with everything that happened in them. Policy, environment and seeds
are those of the folder, and an episode is a function of them. Its records are compared with those
of the folder, bit by bit: an episode that differs is not shown.

EPISODE
    key         how ``--episode`` names it, CELL:POLICY:SEED
    policy, where, seed, cell   its coordinates
    chosen      "worst", "median" or "asked for"
    score       its score
    timeline    see `inframind_gym.evaluation.report.timelines`
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

from inframind_gym.errors import InfraMindError, shortened, unknown
from inframind_gym.evaluation.board import Results, load_results
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.report.data import lean, report_data
from inframind_gym.evaluation.report.timelines import KINDS, Watch
from inframind_gym.evaluation.store import Finished, digest_of, read_cells
from inframind_gym.evaluation.suite import Cell
from inframind_gym.files import replace_text
from inframind_gym.progress import say

SECTIONS: Final = (  # those of page.js, in their order
    *("board", "load", "frontier", "paired", "shares", "cells", "episodes", "made", "words"),
)
MOST_EPISODES: Final = 12  # of a run
MOST_BYTES: Final = 4_000_000  # of the timelines of a report
ASKED: Final = "asked for"
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
    drawn = [run.family.model_fields["kind"].default in KINDS for run in runs]
    shown = [run for run, has_timelines in zip(runs, drawn, strict=True) if has_timelines]
    known = [key_of(cell) for run in shown for cell in run.episodes]
    for key in episodes:
        if key not in known:
            raise BenchmarkError(
                "--episode takes CELL:POLICY:SEED of a finished episode of routing, tracks or "
                f"placement{f', such as {known[0]}' if known else ''}. "
                f"{unknown('episode', key, known)[:600]}"
            )
    data = report_data(runs, bootstrap_seed=bootstrap_seed)
    data["sections"] = list(sections)
    room = MOST_BYTES
    for run, part, has_timelines in zip(runs, data["runs"], drawn, strict=True):
        if has_timelines and (not sections or "episodes" in sections):
            ranked = [one["name"] for one in sorted(part["policies"], key=lambda p: p["bound"])]
            for one in replayed(run, choose(run, ranked, episodes, most_episodes), room):
                part["episode_notes" if isinstance(one, str) else "episodes"].append(one)
            room -= len(json.dumps(part["episodes"]))
    return Report(render(data), height_px)


def write_report(folders: Sequence[Path], out: Path, **options: Any) -> None:
    """Write a report of results folders into a file; options are those of `make_report`.

    Raises:
        InfraMindError: See there; or the file cannot be written.
    """
    if out.is_dir():
        raise BenchmarkError(f"--out {out} is a folder; name a file, such as {out}/report.html.")
    replace_text(out, make_report(folders, **options).html)


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


# Episodes that are played again


class Chosen(NamedTuple):
    """An episode that is to be played again, and why."""

    finished: Finished
    score: float
    why: str


def key_of(cell: Cell) -> str:
    """Return the name of an episode, CELL:POLICY:SEED, such as mixed/200/100:random:0."""
    parts = (f"{one:g}" if isinstance(one, float) else str(one) for one in cell.place)
    return f"{'/'.join(parts)}:{cell.policy}:{cell.seed}"


def choose(
    results: Results, ranked: Sequence[str], asked: Sequence[str], most: int = MOST_EPISODES
) -> list[Chosen]:
    """Choose the episodes of a run that are shown.

    Args:
        results: The run.
        ranked: Its policies, best first.
        asked: Names of episodes that are shown whatever their number.
        most: Number of further ones: the worst episode of each policy, then the median ones.
    """
    score = results.family.metrics[results.family.score]
    by_policy: dict[str, list[Chosen]] = {policy: [] for policy in ranked}
    chosen: dict[Cell, Chosen] = {}
    for cell in read_cells(results.folder):
        if cell is not None and cell.cell in results.episodes:
            one = Chosen(cell, cell.metrics(results.layout)[score.name], ASKED)
            by_policy.setdefault(cell.cell.policy, []).append(one)
            if key_of(cell.cell) in asked:
                chosen[cell.cell] = one
    for why in ("worst", "median"):
        for episodes in by_policy.values():
            episodes.sort(key=lambda one: (score.signed(one.score), one.finished.cell.sort_key))
            at = 0 if why == "worst" else len(episodes) // 2
            for one in episodes[at : at + 1] if most > 0 else ():
                if one.finished.cell not in chosen:
                    chosen[one.finished.cell] = one._replace(why=why)
                    most -= 1
    return list(chosen.values())


def replayed(
    results: Results, chosen: Sequence[Chosen], room: int = MOST_BYTES
) -> Iterator[dict[str, Any] | str]:
    """Play episodes again; yields each, or a sentence on why it is not there.

    Args:
        results: The run.
        chosen: Its episodes.
        room: Bytes of JSON that they may take together; those that were asked for are always in.

    Raises:
        BenchmarkError: An episode that was asked for cannot be played again.
    """
    if not chosen:
        return
    try:
        suite = results.family.model_validate(results.header["suite"])
        if getattr(suite, "backend", "") == "vllm":
            raise BenchmarkError("it ran on live servers, which do nothing a second time")
        watch = Watch(suite)
    except (InfraMindError, ValueError) as error:
        why = f"Episodes of {results.folder} cannot be played again: {shortened(error, 300)}"
        if any(one.why == ASKED for one in chosen):
            raise BenchmarkError(why) from None
        yield why
        return
    for i, one in enumerate(chosen):
        if room <= 0 and one.why != ASKED:
            yield f"The file is full: {len(chosen) - i} further episodes are left out."
            return
        say(f"replay {i + 1} of {len(chosen)}: {one.finished.cell}")
        try:
            episode = _replay(results, one, watch)
        except (InfraMindError, ValueError, OSError) as error:
            why = f"{key_of(one.finished.cell)} is not shown: {shortened(error, 300)}"
            if one.why == ASKED:
                raise BenchmarkError(why) from None
            yield why
            continue
        room -= len(json.dumps(episode))
        yield episode


def _replay(results: Results, chosen: Chosen, watch: Watch) -> dict[str, Any]:
    """Play an episode and compare its records with those of the folder."""
    cell, header = chosen.finished.cell, results.header
    columns = watch.play(cell)
    if digest_of(columns) != chosen.finished.digest:
        version = header.get("packages", {}).get("inframind-gym", "?")
        raise BenchmarkError(
            f"played again it has other records. The folder was made by inframind-gym {version} "
            f"with simulator version {header['settings'].get('simulator', '?')}; that version "
            "plays it again."
        )
    return {
        "key": key_of(cell),
        "policy": cell.policy,
        "where": cell.where,
        "seed": cell.seed,
        "cell": lean(results.family.describe(cell.place)),
        "chosen": chosen.why,
        "score": lean(chosen.score),
        "timeline": watch.timeline(columns),
    }
