"""The results page: `python -m benchmarks results [FOLDER ...]`.

Tables and the picture of docs/results.md are made of records alone (`record.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.pages import INK, NONE, QUIET, RULE, refresh, save_all, table
from benchmarks.published import published_blocks
from benchmarks.record import RECORDS, Board, origin_text, read_board
from inframind_gym.benchmark.tables import Sheet, to_markdown
from inframind_gym.benchmark.tracks.tables import (
    costs_sheet,
    promises_sheet,
    ranked_policies,
    scores_sheet,
    trainings_sheet,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGENTS: Final = ("bid_price", "ppo_lagrangian")
# Scenarios whose questions an agent was trained on, though they are held out there.
HELD_OUT: Final = {
    ("ppo_lagrangian", "shift"): {"math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro"},
}
_LINES: Final = {  # of the picture: colour-blind-safe (Okabe and Ito), with a mark each
    "bid_price": ("#0072b2", "o"),
    "ppo_lagrangian": ("#d55e00", "s"),
    "fixed_recipe_by_rate": ("#009e73", "^"),
    "fixed_recipe": ("#e69f00", "v"),
}


def refresh_pages(docs: Path, *, records: Path = RECORDS, check: bool = False) -> list[Path]:
    """Refresh tables and, unless only checking, the picture; return the pages that were stale."""
    board = fair(read_board("standard", records))
    pages = {
        docs / "results.md": standard_blocks(board, records),
        docs / "results" / "published.md": published_blocks(records),
    }
    stale = [page for page, blocks in pages.items() if not refresh(page, blocks, check=check)]
    if not check:
        save_all({"standard": lambda: _picture(board)}, docs / "results")
    return stale


def fair(board: Board) -> Board:
    """Return a board without the scores of agents on what a track holds out of their training.

    Nobody is first with a promise on such a track: the record does not say who is second.
    """

    def whole(track: str, *policies: str) -> bool:
        return not any((policy, track) in HELD_OUT for policy in policies)

    rows = [
        row
        for row in board["rows"]
        if row["scenario"] not in HELD_OUT.get((row["policy"], row["track"]), ())
    ]
    pairs = [
        pair
        | {
            side: [t for t in pair[side] if whole(t, pair["policy"], pair["other"])]
            for side in ("above", "below")
        }
        for pair in board["pairs"]
    ]
    tracks = [row for row in board["tracks"] if whole(row["track"], row["policy"])]
    held = {track for _, track in HELD_OUT}
    promises = [row for row in board["promises"] if row["track"] not in held]
    return {**board, "tracks": tracks, "pairs": pairs, "promises": promises, "rows": rows}


def standard_blocks(board: Board, records: Path = RECORDS) -> dict[str, str]:
    """Return the tables of docs/results.md by name."""
    trainings = trainings_sheet(board)
    return {
        "tracks": _markdown(scores_sheet(board)),
        "loads": loads_table(board),
        "pairs": pairs_table(board),
        "trainings": _markdown(trainings) if trainings.rows else "No policy has several trainings.",
        "scenarios": scenarios_table(board),
        "promises": _markdown(promises_sheet(board)),
        "costs": _markdown(costs_sheet(board)),
        "ablations": _markdown(scores_sheet(read_board("ablations", records))),
        "origin": origin_text(board["origin"]),
    }


def _markdown(sheet: Sheet) -> str:
    """Render a table of the library without its title, which the page has."""
    return to_markdown(sheet).partition("\n\n")[2]


def pairs_table(board: Board) -> str:
    """Tabulate in how many tracks each agent is above and below every other policy."""
    found = {(pair["policy"], pair["other"]): pair for pair in board["pairs"]}
    body = []
    for other in ranked_policies(board):
        cells = []
        for agent in AGENTS:
            pair = found.get((agent, other))
            cells.append(NONE if pair is None else _verdict(pair))
        body.append([f"`{other}`", *cells])
    return table(["", *(f"`{agent}`" for agent in AGENTS)], body)


def _verdict(pair: Mapping[str, Any]) -> str:
    below = f", below in {len(pair['below'])} ({', '.join(pair['below'])})" if pair["below"] else ""
    return f"{'**ahead**: ' if pair['ahead'] else ''}above in {len(pair['above'])}{below}"


def loads_table(board: Board, track: str = "steady") -> str:
    """Tabulate what policies reach of a track's bound at each load: mean and worst scenario."""
    shares: dict[tuple[str, float], list[float]] = {}
    for row, share in _over_bound(board):
        if row["track"] == track:
            shares.setdefault((row["policy"], row["load"]), []).append(100 * share)
    loads = sorted({load for _, load in shares})
    body = [
        [f"`{policy}`", *(_mean_and_least(shares[policy, load]) for load in loads)]
        for policy in ranked_policies(board)
    ]
    return table([f"`{track}`, % of the bound", *(f"ρ {load:g}" for load in loads)], body)


def _mean_and_least(shares: Sequence[float]) -> str:
    return f"{np.mean(shares):.1f} ({min(shares):.1f})"


def scenarios_table(board: Board) -> str:
    """Tabulate scenarios: what the best policies reach of the bound, means over the loads."""
    policies = ranked_policies(board)[:6]
    shares: dict[tuple[str, str, str], list[float]] = {}
    for row, share in _over_bound(board):
        shares.setdefault((row["track"], row["scenario"], row["policy"]), []).append(share)
    body = []
    for track, scenario in dict.fromkeys(key[:2] for key in shares):
        own = [shares.get((track, scenario, policy)) for policy in policies]
        means = [100 * float(np.mean(share)) if share else -np.inf for share in own]
        texts = [f"{mean:.1f}" if share else NONE for share, mean in zip(own, means, strict=True)]
        texts[int(np.argmax(means))] = f"**{max(means):.1f}**"
        body.append([f"{track}/{scenario}", *texts])
    return table(["% of the bound", *(f"`{policy}`" for policy in policies)], body)


def _over_bound(board: Board) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield the rows of places that have a bound, with the score over the bound."""
    at = ("track", "scenario", "load")
    informed = {tuple(place[k] for k in at): place["informed"] for place in board["places"]}
    for row in board["rows"]:
        if bound := informed[tuple(row[k] for k in at)]:
            yield row, row["score"] / bound


def _picture(board: Board) -> Figure:
    """Draw what policies reach of the bound against load, a panel for each track."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator

    tracks = list(dict.fromkeys(at["track"] for at in board["places"]))
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    panels: Any = figure.subplots(2, -(-len(tracks) // 2), sharey=True, squeeze=False).flat
    for panel, track in zip(panels, tracks, strict=False):
        for policy, (colour, mark) in _LINES.items():
            by_load: dict[float, list[float]] = {}
            for row, share in _over_bound(board):
                here = (row["policy"], row["track"]) == (policy, track)
                if here and (policy, track) not in HELD_OUT:
                    by_load.setdefault(row["load"], []).append(100 * share)
            means = [float(np.mean(shares)) for shares in by_load.values()]
            style = {"color": colour, "marker": mark, "ms": 4.5, "lw": 1.6}
            panel.plot(list(by_load), means, label=policy, **style)
        panel.set_title(track)
        panel.set_ylim(0.0, 104.0)
        panel.set_xlim(0.2, 1.2)
        panel.xaxis.set_major_locator(FixedLocator([0.3, 0.6, 0.9, 1.1]))
        panel.grid(axis="y", color=RULE, lw=0.6)
        panel.axhline(100.0, color=QUIET, lw=0.8, ls=":")
    figure.supxlabel("load ρ, share of capacity", color=INK, fontsize=10)
    figure.supylabel("% of the informed bound", color=INK, fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    style = {"ncols": len(labels), "frameon": False, "columnspacing": 1.2, "handletextpad": 0.4}
    figure.legend(handles, labels, loc="outside upper center", fontsize=9, **style)
    return figure
