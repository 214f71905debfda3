"""`docs/robustness.md` from the results folders of circumstances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.pages.markdown import NONE, table
from benchmarks.pages.writing import origin, write_page
from benchmarks.robustness.circumstances import Circumstances
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.results import Results

POINTS: Final = 100.0  # of a share of 1


def write(played: Circumstances, found: Mapping[str, Results], out: Path) -> Path:
    """Write the page.

    Args:
        played: The circumstances.
        found: Results by circumstance; those without are left out.
        out: Folder of the page.

    Returns:
        The page.

    Raises:
        InfraMindError: The page cannot be written.
    """
    boards = {name: leaderboard(results) for name, results in found.items()}
    header = next(iter(found.values())).header
    names = {
        "circumstances": table(
            ["circumstance", "what it is"],
            [[name, played.circumstances[name].what + _trace(found[name])] for name in found],
            left=2,
        ),
        "goodput": _scores(boards, "goodput", played),
        "within": _scores(boards, "slo_100s", played),
        "rivals": _rivals(found, played),
        "losses": _losses(found, played),
        "ours": f"`{played.ours}`",
        "notes": "".join(
            f"Note: {name}: {note}.\n" for name, board in boards.items() for note in board["notes"]
        ),
        "missing": "".join(
            f"Not shown: {name}.\n" for name in played.circumstances if name not in found
        ),
        "sweeps": f"{sum(len(results.episodes) for results in found.values()):,}",
        **origin(header),
    }
    return write_page(out / "robustness.md", "robustness.md", names, command="robustness")


def _trace(results: Results) -> str:
    """The file of recorded arrivals, if there is one, in words."""
    arrivals = results.header["suite"]["arrivals"]
    return f" (`{Path(arrivals['path']).name}`)" if isinstance(arrivals, dict) else ""


def _label(policy: str) -> str:
    """A policy's name in a table: a checkpoint is called by its last folder."""
    name, _, checkpoint = policy.partition(":")
    return f"`{name}_{Path(checkpoint).name}`" if checkpoint else f"`{name}`"


def _scores(boards: Mapping[str, dict[str, Any]], metric: str, played: Circumstances) -> str:
    rows = []
    for name, board in boards.items():
        mean = {row["policy"]: row for row in board["ranking"]}
        best = max(row[metric] for row in mean.values())
        cells = []
        for policy in played.policies:
            if policy not in mean:
                cells.append(NONE)
                continue
            low, high = mean[policy][f"{metric}_ci95"]
            text = f"{POINTS * mean[policy][metric]:.1f}±{POINTS * (high - low) / 2:.1f}"
            cells.append(f"**{text}**" if mean[policy][metric] == best else text)
        rows.append([name, *cells])
    return table(["", *(_label(policy) for policy in played.policies)], rows)


def _differences(
    results: Results, played: Circumstances
) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Paired differences in goodput, ours less every rival's, by place."""
    axes = results.family.suite.cell.axes
    found = {}
    for rival in played.rivals:
        compared = compare(Side(results, rival), Side(results, played.ours))
        found[rival] = {
            tuple(row[axis.name] for axis in axes): row["goodput"] for row in compared["rows"]
        }
    return found


def _nearest(results: Results, played: Circumstances) -> list[tuple[Any, str, dict[str, Any]]]:
    """For each place the rival with the highest goodput, and our difference to it."""
    found = _differences(results, played)
    places = list(dict.fromkeys(place for rows in found.values() for place in rows))
    nearest = []
    for place in places:
        rival = max(
            (name for name in found if place in found[name]), key=lambda n: found[n][place]["a"]
        )
        nearest.append((place, rival, found[rival][place]))
    return nearest


def _rivals(found: Mapping[str, Results], played: Circumstances) -> str:
    rows = []
    for name, results in found.items():
        nearest = _nearest(results, played)
        ahead = sum(d["difference_ci95"][0] > 0 for _, _, d in nearest)
        behind = sum(d["difference_ci95"][1] < 0 for _, _, d in nearest)
        mean = sum(d["difference"] for _, _, d in nearest) / len(nearest)
        place, rival, worst = min(nearest, key=lambda item: item[2]["difference"])
        rows.append(
            [
                name,
                str(len(nearest)),
                str(ahead),
                str(len(nearest) - ahead - behind),
                str(behind),
                f"{POINTS * mean:+.1f}",
                f"{_text(worst)} {_where(place)}, {_label(rival)}",
            ]
        )
    headings = ["", "cells", "ahead", "level", "behind", "mean lead", "smallest lead"]
    return table(headings, rows)


def _losses(found: Mapping[str, Results], played: Circumstances) -> str:
    rows = [
        [name, _where(place), _label(rival), _text(difference)]
        for name, results in found.items()
        for place, rival, difference in _nearest(results, played)
        if difference["difference_ci95"][1] < 0
    ]
    if not rows:
        return "In no cell is a rival ahead with an interval that leaves 0 out."
    return table(["circumstance", "cell", "best rival", f"`{played.ours}` less it"], rows, left=3)


def _where(place: tuple[Any, ...]) -> str:
    return f"{place[0]} at {place[1]:g}/min"


def _text(difference: Mapping[str, Any]) -> str:
    low, high = (POINTS * end for end in difference["difference_ci95"])
    return f"{POINTS * difference['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
