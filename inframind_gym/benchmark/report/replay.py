"""Episodes of a results folder, played again with everything that happened in them.

Policy, environment and seeds are those of the folder, and an episode is a function of them. Its
records are compared with those of the folder, bit by bit: an episode that differs is not shown.

EPISODE
    key         how ``--episode`` names it, CELL:POLICY:SEED
    policy, where, seed, cell   its coordinates
    chosen      "worst", "median" or "asked for"
    score       its score
    timeline    see `inframind_gym.benchmark.report.timelines`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from inframind_gym.benchmark.cells import BaseCell
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.lines import FinishedCell, unseal
from inframind_gym.benchmark.report.data import lean
from inframind_gym.benchmark.report.timelines import Watch, watch
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.store import read_cells
from inframind_gym.errors import InfraMindError, shortened, unknown
from inframind_gym.progress import say

MOST_EPISODES: Final = 12  # of a run
MOST_BYTES: Final = 4_000_000  # of the timelines of a report
_ORDER: Final = ("asked for", "worst", "median")


class Chosen(NamedTuple):
    """An episode that is to be played again, and why."""

    finished: FinishedCell
    why: str


def key_of(cell: BaseCell) -> str:
    """Return the name of an episode, CELL:POLICY:SEED."""
    return f"{path_of(cell.place)}:{cell.policy}:{cell.seed}"


def path_of(place: Iterable[Any]) -> str:
    """Return coordinates of a cell with slashes between, e.g. "mixed/200/100"."""
    return "/".join(f"{one:g}" if isinstance(one, float) else str(one) for one in place)


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
    own: dict[str, list[FinishedCell]] = {policy: [] for policy in ranked}
    found: list[Chosen] = []
    for one in read_cells(results.folder):
        if one is None or one.cell not in results.episodes:
            continue
        own.setdefault(one.cell.policy, []).append(one)
        if key_of(one.cell) in asked:
            found.append(Chosen(one, "asked for"))
    for episodes in own.values():
        episodes.sort(key=lambda one: (score.signed(one.line[score.name]), one.cell.sort_key))
    taken = {id(one.finished) for one in found}
    for why in _ORDER[1:]:
        for episodes in own.values():
            if episodes and most > 0:
                one = episodes[0 if why == "worst" else len(episodes) // 2]
                if id(one) not in taken:
                    found.append(Chosen(one, why))
                    taken.add(id(one))
                    most -= 1
    return found


def require_episodes(runs: Sequence[Results], asked: Sequence[str]) -> None:
    """Check that the episodes that were asked for are there.

    Raises:
        BenchmarkError: One is in no run; names the nearest.
    """
    known = {key_of(cell): None for run in runs for cell in run.episodes}
    for key in asked:
        if key not in known:
            raise BenchmarkError(
                f"--episode takes CELL:POLICY:SEED of a finished episode, such as "
                f"{next(iter(known))}. {unknown('episode', key, tuple(known))[:600]}"
            )


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
    family = results.family
    try:
        suite = family.suite.model_validate(results.header["suite"])
        if getattr(suite, "backend", "") == "vllm":
            raise BenchmarkError("it ran on live servers, which do nothing a second time")
        player = watch(family, suite)
    except (InfraMindError, ValueError) as error:
        why = f"Episodes of {results.folder} cannot be played again: {shortened(error, 300)}"
        if any(one.why == "asked for" for one in chosen):
            raise BenchmarkError(why) from None
        if chosen:
            yield why
        return
    for i, one in enumerate(chosen):
        if room <= 0 and one.why != "asked for":
            yield f"The file is full: {len(chosen) - i} further episodes are left out."
            return
        say(f"replay {i + 1} of {len(chosen)}: {one.finished.cell}")
        try:
            episode = _replay(results, one, player)
        except (InfraMindError, ValueError, OSError) as error:
            why = f"{key_of(one.finished.cell)} is not shown: {shortened(error, 300)}"
            if one.why == "asked for":
                raise BenchmarkError(why) from None
            yield why
            continue
        room -= len(json.dumps(episode))
        yield episode


def _replay(results: Results, chosen: Chosen, player: Watch) -> dict[str, Any]:
    """Play an episode and compare its records with those of the folder."""
    family, (finished, why) = results.family, chosen
    cell, line = finished.cell, finished.line
    (content,) = [one for batch in player.run([cell]) for one in batch]
    again = unseal(family.encode(cell, line["cell"], *content[1:]).line)
    if not finished.is_met_by(again, results.layout):
        raise BenchmarkError(
            "played again it has other records. The folder was made by "
            f"{_version(results.header)}; that version plays it again."
        )
    return {
        "key": key_of(cell),
        "policy": cell.policy,
        "where": cell.where,
        "seed": cell.seed,
        "cell": lean(cell.describe(cell.place)),
        "chosen": why,
        "score": lean(float(line[family.score])),
        "timeline": player.timeline(FinishedCell(cell, again).columns()),
    }


def _version(header: Mapping[str, Any]) -> str:
    settings, packages = header["settings"], header.get("packages", {})
    return (
        f"inframind-gym {packages.get('inframind-gym', '?')} with simulator version "
        f"{settings.get('simulator', '?')}"
    )
