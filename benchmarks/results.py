"""The results pages: `python -m benchmarks results [FOLDER ...]`.

Tables and the picture of docs/results.md are made of records alone.
A record is what a page needs of a results folder, in a folder of `benchmarks/records`:

run.yaml          provenance: versions, revision, machine, commands, settings
board.json.gz     the leaderboard of `inframind_gym.evaluation`, less what is not shown
episodes.csv.gz   scores of every episode: place, policy, seed, training
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml

from benchmarks.pages import INK, NONE, QUIET, RULE, refresh, save_all, table
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.store import read_cells
from inframind_gym.evaluation.tables import Table, to_markdown
from inframind_gym.evaluation.track_board import (
    over_bound,
    ranked_policies,
    scores_table,
    trainings_table,
)
from inframind_gym.files import parse_json, replace_bytes, replace_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Board = Mapping[str, Any]
RECORDS: Final = Path(__file__).with_name("records")
SHOWN: Final = ("score", "goodput", "accuracy", "slo_100s", "latency_mean_s", "work_s_per_query")
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
    page = docs / "results.md"
    stale = [] if refresh(page, standard_blocks(board, records), check=check) else [page]
    if not check:
        save_all({"standard": lambda: _picture(board)}, docs / "results")
    return stale


# Records


def record(folder: Path, records: Path = RECORDS) -> Path:
    """Write the record of a finished results folder; return its folder, of the same name.

    Raises:
        InfraMindError: The folder cannot be read, or is unfinished.
    """
    results = load_results(folder)
    if results.missing:
        raise BenchmarkError(f"{folder}: {results.notes()[0]}.")
    board, header, out = leaderboard(results), results.header, records / folder.resolve().name
    left = ("rows", "ranking", "folder", "timing", "notes", "intervals")
    kept = {k: v for k, v in board.items() if k not in left and not k.startswith("by_")}
    place = ("policy", "track", "scenario", "load", "workload", "rate_per_min", "budget_s")
    columns = (*place, *SHOWN, "score_ci95", "goodput_ci95", "trainings")
    kept["rows"] = [{k: row[k] for k in columns if k in row} for row in board["rows"]]
    text = json.dumps(kept, separators=(",", ":"), allow_nan=False)
    episodes = io.StringIO()
    for found in read_cells(folder):
        if found is not None and found.cell in results.episodes:
            metrics = found.metrics(results.layout)
            scores = {name: f"{metrics[name]:.6g}" for name in SHOWN if name in metrics}
            row: dict[str, Any] = found.cell.to_json() | {"training": found.cell.training} | scores
            writer = csv.DictWriter(episodes, list(row), lineterminator="\n")
            if not episodes.tell():
                writer.writeheader()
            writer.writerow(row)
    git, machine = header["git"] or {}, header["machine"]
    revision = str(git.get("commit", "unknown"))[:12]
    origin = {
        "suite": header["suite"]["name"],
        "episodes": board["cells"],
        "queries": board["records"],
        "revision": revision + (" with uncommitted files" if git.get("dirty") else ""),
        "started": header["runs"][0]["started"],
        "commands": list(dict.fromkeys(" ".join(run["command"]) for run in header["runs"])),
        "simulator": header["settings"]["simulator"],
        "packages": header["packages"],
        "python": header["python"],
        "machine": f"{machine['processor']}, {machine['cores']} cores",
        "policies": header["policies"],
        "intervals": board["intervals"],
    }
    replace_bytes(out / "board.json.gz", gzip.compress(text.encode(), mtime=0))
    replace_bytes(out / "episodes.csv.gz", gzip.compress(episodes.getvalue().encode(), mtime=0))
    replace_text(out / "run.yaml", yaml.safe_dump(origin, sort_keys=False))
    return out


def read_board(name: str, records: Path = RECORDS) -> dict[str, Any]:
    """Read a record: the board, with `origin` beside it.

    Raises:
        BenchmarkError: There is none, or it is damaged.
    """
    folder = records / name
    try:
        text = gzip.decompress((folder / "board.json.gz").read_bytes()).decode()
        origin = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        return {**parse_json(text, "the text"), "origin": origin}
    except (OSError, EOFError, ValueError, yaml.YAMLError) as error:
        raise BenchmarkError(
            f"{folder} is no record: {error}. Make it: python -m benchmarks results FOLDER"
        ) from None


def origin_text(origin: Mapping[str, Any]) -> str:
    """Return where a record is from, and the commands that made it."""
    commands = "\n".join(f"inframind {command}" for command in origin["commands"])
    return (
        f"{origin['episodes']:,} episodes, {origin['queries']:,} scored queries; simulator version "
        f"{origin['simulator']}, revision {origin['revision']}, {origin['started'][:10]}; "
        f"{origin['machine']}:\n\n<!-- not run: plays whole boards -->\n```sh\n{commands}\n```"
    )


# docs/results.md


def fair(board: Board) -> Board:
    """Return a board without the scores of agents on what a track holds out of their training."""

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
    return {**board, "tracks": tracks, "pairs": pairs, "rows": rows}


def standard_blocks(board: Board, records: Path = RECORDS) -> dict[str, str]:
    """Return the tables of docs/results.md by name."""
    trainings = trainings_table(board)
    return {
        "tracks": _markdown(scores_table(board)),
        "loads": loads_table(board),
        "pairs": pairs_table(board),
        "trainings": _markdown(trainings) if trainings.rows else "No policy has several trainings.",
        "scenarios": scenarios_table(board),
        "ablations": _markdown(scores_table(read_board("ablations", records))),
        "origin": origin_text(board["origin"]),
    }


def _markdown(sheet: Table) -> str:
    """Render a table of the library without its title, which the page has."""
    return to_markdown(sheet).partition("\n\n")[2]


def pairs_table(board: Board) -> str:
    """Tabulate in how many tracks each agent is above and below every other policy."""
    found = {(pair["policy"], pair["other"]): pair for pair in board["pairs"]}
    body = [[f"`{other}`"] for other in ranked_policies(board)]
    for line, other in zip(body, ranked_policies(board), strict=True):
        for pair in (found.get((agent, other)) for agent in AGENTS):
            if pair is None:
                line.append(NONE)
                continue
            ahead, below = "**ahead**: " if pair["ahead"] else "", pair["below"]
            worse = f", below in {len(below)} ({', '.join(below)})" if below else ""
            line.append(f"{ahead}above in {len(pair['above'])}{worse}")
    return table(["", *(f"`{agent}`" for agent in AGENTS)], body)


def loads_table(board: Board, track: str = "steady") -> str:
    """Tabulate what policies reach of a track's bound at each load: mean and worst scenario."""
    shares: dict[tuple[str, float], list[float]] = {}
    for row, share in over_bound(board):
        if row["track"] == track:
            shares.setdefault((row["policy"], row["load"]), []).append(100 * share)
    loads = sorted({load for _, load in shares})
    body = []
    for policy in ranked_policies(board):
        of_loads = [shares[policy, load] for load in loads]
        body.append([f"`{policy}`", *(f"{np.mean(of):.1f} ({min(of):.1f})" for of in of_loads)])
    return table([f"`{track}`, % of the bound", *(f"ρ {load:g}" for load in loads)], body)


def scenarios_table(board: Board) -> str:
    """Tabulate scenarios: what the best policies reach of the bound, means over the loads."""
    policies = ranked_policies(board)[:6]
    shares: dict[tuple[str, str, str], list[float]] = {}
    for row, share in over_bound(board):
        shares.setdefault((row["track"], row["scenario"], row["policy"]), []).append(share)
    body = []
    for track, scenario in dict.fromkeys(key[:2] for key in shares):
        own = [shares.get((track, scenario, policy)) for policy in policies]
        means = [100 * float(np.mean(share)) if share else -np.inf for share in own]
        texts = [f"{mean:.1f}" if share else NONE for share, mean in zip(own, means, strict=True)]
        texts[int(np.argmax(means))] = f"**{max(means):.1f}**"
        body.append([f"{track}/{scenario}", *texts])
    return table(["% of the bound", *(f"`{policy}`" for policy in policies)], body)


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
            for row, share in over_bound(board):
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
