"""The results pages: `python -m benchmarks results [FOLDER ...]`.

Tables and the picture of docs/results.md and docs/results/scenarios.md are made from records alone.
A record has what a page needs of a results folder, in a folder of `benchmarks/records`:

run.yaml          provenance: versions, revision, machine, commands, settings
board.json.gz     the leaderboard of `inframind_gym.evaluation`, without what no page shows
episodes.csv.gz   scores of every episode: place, policy, seed, training
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml

from benchmarks.pages import NONE, QUIET, RULE, csv_text, refresh, table
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.store import read_cells
from inframind_gym.evaluation.tables import to_markdown
from inframind_gym.evaluation.track_board import over_bound, ranked_policies, scores_table
from inframind_gym.files import parse_json, replace_bytes, replace_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Board = Mapping[str, Any]
RECORDS: Final = Path(__file__).with_name("records")
SHOWN: Final = ("score", "goodput", "accuracy", "slo_100s", "latency_mean_s", "work_s_per_query")
AGENTS: Final = ("bid_price", "ppo_lagrangian", "adaptive")
OURS: Final = {  # in the picture; colour-blind-safe (Okabe and Ito)
    "bid_price": "#0072b2",
    "ppo_lagrangian": "#d55e00",
    "adaptive": "#009e73",
}


def refresh_pages(docs: Path, *, records: Path = RECORDS, check: bool = False) -> list[Path]:
    """Refresh tables and, unless only checking, the picture; return the pages that were stale."""
    board, route = read_board("standard", records), read_board("standard_route", records)
    blocks = blocks_of(board, route, read_board("bursts", records))
    figures = {docs / "results/standard.svg": lambda: _picture(route)}
    stale = refresh(docs / "results.md", blocks, figures, check=check)
    return stale + refresh(docs / "results/scenarios.md", blocks, check=check)


# Records


def record(folder: Path, records: Path = RECORDS) -> Path:
    """Write the record of a finished results folder; return its folder, of the same name.

    Raises:
        InfraMindError: The folder cannot be read, or is unfinished.
    """
    results = load_results(folder)
    if results.missing:
        raise ConfigError(f"{folder}: {results.notes()[0]}.")
    board, header, out = leaderboard(results), results.header, records / folder.resolve().name
    dropped = ("rows", "ranking", "folder", "timing", "notes", "intervals")
    content = {k: v for k, v in board.items() if k not in dropped and not k.startswith("by_")}
    place = ("policy", "track", "scenario", "load", "workload", "rate_per_min", "budget_s")
    columns = (*place, *SHOWN, "score_ci95", "goodput_ci95", "trainings")
    content["rows"] = [{k: row[k] for k in columns if k in row} for row in board["rows"]]
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    episodes: list[Board] = []
    for finished in read_cells(folder):
        if finished is not None and (cell := finished.cell) in results.episodes:
            metrics = finished.metrics(results.layout)
            scores = {name: f"{metrics[name]:.6g}" for name in SHOWN if name in metrics}
            episodes.append(cell.to_json() | {"training": cell.training} | scores)
    machine, revisions = header["machine"], []
    for git in (run["git"] or {} for run in header["runs"]):
        changed = " with uncommitted files" if git.get("dirty") else ""
        revisions.append(str(git.get("commit", "unknown"))[:12] + changed)
    origin = {
        "suite": header["suite"]["name"],
        "episodes": board["cells"],
        "queries": board["records"],
        "revision": ", ".join(dict.fromkeys(revisions)),
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
    replace_bytes(out / "episodes.csv.gz", gzip.compress(csv_text(episodes).encode(), mtime=0))
    replace_text(out / "run.yaml", yaml.safe_dump(origin, sort_keys=False))
    return out


def read_board(name: str, records: Path = RECORDS) -> dict[str, Any]:
    """Read a record: the board, with `origin` beside it.

    Raises:
        ConfigError: There is none, or it is damaged.
    """
    folder = records / name
    try:
        text = gzip.decompress((folder / "board.json.gz").read_bytes()).decode()
        origin = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        return {**parse_json(text, "the text"), "origin": origin}
    except (OSError, EOFError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{folder} is no record: {error}. Make it: python -m benchmarks results FOLDER"
        ) from None


def origin_text(origin: Mapping[str, Any]) -> str:
    """Return the origin of a record, and the last of its commands, which names all policies."""
    command = f"inframind {origin['commands'][-1]}"
    return (
        f"{origin['episodes']:,} episodes, {origin['queries']:,} scored queries; simulator version "
        f"{origin['simulator']}, revision {origin['revision']}, {origin['started'][:10]}; "
        f"{origin['machine']}:\n\n<!-- not run: plays whole boards -->\n```sh\n{command}\n```"
    )


# docs/results.md and docs/results/scenarios.md


def blocks_of(board: Board, route: Board, bursts: Board) -> dict[str, str]:
    """Return the tables of both pages by name, from the boards of both divisions and of bursts."""
    scores = scores_table(route)  # shown without the plan, which is the same for all
    at = scores.headings.index("plan")
    head, *rows = ([*row[:at], *row[at + 1 :]] for row in (scores.headings, *scores.rows))
    scores = replace(scores, headings=head, rows=rows, caption="")
    return {
        "route": loads_table(route),
        "tracks": to_markdown(scores_table(board), title=False),
        "route_tracks": to_markdown(scores, title=False),
        "margins": margins_table(board),
        "bursts": loads_table(bursts, "arrivals") + "\n\n" + origin_text(bursts["origin"]),
        "pairs": pairs_table(board),
        "scenarios": scenarios_table(board),
        "origin": "\n\n".join(origin_text(one["origin"]) for one in (route, board)),
    }


def margins_table(board: Board) -> str:
    """Tabulate our best and the best rival on every track, and the best of their worst cells."""
    body = []
    for track in dict.fromkeys(row["track"] for row in board["tracks"]):
        line, rows = [track], [row for row in board["tracks"] if row["track"] == track]
        for key in ("score", "worst"):
            scores = [(100 * row[key], row["policy"]) for row in rows]
            ours = max(s for s in scores if s[1] in AGENTS)
            rival = max(s for s in scores if s[1] not in AGENTS)
            line += [f"{score:.1f} (`{policy}`)" for score, policy in (ours, rival)]
            line.append(f"{ours[0] - rival[0]:.1f}")
        body.append(line)
    heads = ["ours", "best rival", "margin"]
    return table(["", *heads, *(f"{head}, worst cell" for head in heads)], body)


def pairs_table(board: Board) -> str:
    """Tabulate in how many tracks each agent is above and below every other policy."""
    texts = {}
    for pair in board["pairs"]:
        ahead, below = "**ahead**: " if pair["ahead"] else "", pair["below"]
        worse = f", below in {len(below)} ({', '.join(below)})" if below else ""
        texts[pair["policy"], pair["other"]] = f"{ahead}above in {len(pair['above'])}{worse}"
    rows: dict[tuple[str, ...], list[str]] = {}  # policies of the same row share it
    for other in ranked_policies(board):
        row = tuple(texts.get((agent, other), NONE) for agent in AGENTS)
        rows.setdefault(row, []).append(f"`{other}`")
    body = [[", ".join(others), *row] for row, others in rows.items()]
    return table(["", *(f"`{agent}`" for agent in AGENTS)], body)


def loads_table(board: Board, track: str = "steady") -> str:
    """Tabulate the policies' shares of a track's bound at each load: mean and worst scenario."""
    shares: dict[tuple[str, float], list[float]] = {}
    for row, share in over_bound(board):
        if row["track"] == track:
            shares.setdefault((row["policy"], row["load"]), []).append(100 * share)
    loads = sorted({load for _, load in shares})
    body = []
    for policy in ranked_policies(board):
        by_load = [shares[policy, load] for load in loads]
        lowest = [f" ({min(cells):.1f})" if len(cells) > 1 else "" for cells in by_load]
        texts = [f"{np.mean(cells):.1f}{low}" for cells, low in zip(by_load, lowest, strict=True)]
        every = np.concatenate(by_load)
        body.append([f"`{policy}`", *texts, f"{every.mean():.1f}", f"{every.min():.1f}"])
    heads = [*(f"ρ {load:g}" for load in loads), "mean", "worst"]
    return table([f"`{track}`, % of the bound", *heads], body)


def scenarios_table(board: Board) -> str:
    """Tabulate the best policies' shares of the bound by scenario, means over the loads."""
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


def _picture(board: Board, track: str = "steady") -> Figure:
    """Draw the policies' shares of a track's bound against load, with 95 % intervals."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator

    lines: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for row, share in over_bound(board):
        if row["track"] == track:
            low, high = row["score_ci95"]
            half = 50 * (high - low) * share / max(row["score"], 1e-9)
            of_load = lines.setdefault(row["policy"], {}).setdefault(row["load"], [])
            of_load.append((100 * share, half))
    figure = Figure(figsize=(9.0, 5.6), layout="constrained")
    panel = figure.subplots()
    ends, last = [], 0.0
    for i, (policy, by_load) in enumerate(lines.items()):
        loads = np.array(sorted(by_load))
        cells = [np.array(by_load[load]) for load in loads]
        means = np.array([cell[:, 0].mean() for cell in cells])
        halves = np.array([np.sqrt((cell[:, 1] ** 2).sum()) / len(cell) for cell in cells])
        shade = f"{0.25 + 0.04 * (i % 10):.2f}"
        colour, width = OURS.get(policy, shade), 2.0 if policy in OURS else 1.1
        panel.plot(loads, means, color=colour, lw=width, marker="os^vDP*X<>hd8p"[i % 14], ms=4.5)
        panel.fill_between(loads, means - halves, means + halves, color=colour, alpha=0.12, lw=0)
        ends.append((float(means[-1]), policy, colour))
        last = float(loads[-1])
    at = 200.0
    for end, policy, colour in sorted(ends, reverse=True):  # names that do not overlap
        at = min(end, at - 3.6)
        line = {"arrowstyle": "-", "color": colour, "lw": 0.6, "relpos": (0.0, 0.5)}
        name = panel.annotate(policy, (last, end), (last + 0.06, at), size=9, arrowprops=line)
        name.set(color=colour, va="center")
    panel.set_ylim(min(0.0, at - 2.0), 104.0)
    panel.set_xlim(0.27, 1.45)
    panel.xaxis.set_major_locator(FixedLocator([0.3, 0.6, 0.9, 1.1]))
    panel.grid(axis="y", color=RULE, lw=0.6)
    panel.axhline(100.0, color=QUIET, lw=0.8, ls=":")
    panel.set_xlabel("load ρ, share of capacity")
    panel.set_ylabel("% of the informed bound")
    return figure
