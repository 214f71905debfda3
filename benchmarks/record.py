"""Records of boards: what a page needs of a results folder, in a folder of `benchmarks/records`.

run.yaml          provenance: versions, revision, machine, commands, settings
board.json.gz     the leaderboard of `inframind_gym.benchmark`, less what is not shown
episodes.csv.gz   scores of every episode: place, policy, seed, training
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.leaderboard import leaderboard
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.store import read_cells
from inframind_gym.files import parse_json, replace_bytes, replace_text

RECORDS: Final = Path(__file__).with_name("records")
SHOWN: Final = ("score", "goodput", "accuracy", "slo_100s", "latency_mean_s", "work_s_per_query")
_LEFT: Final = ("rows", "ranking", "folder", "timing", "notes", "fluid", "intervals")
Board = Mapping[str, Any]


def record(folder: Path, records: Path = RECORDS) -> Path:
    """Write the record of a finished results folder; returns its folder, of the same name.

    Raises:
        InfraMindError: The folder cannot be read, or is unfinished.
    """
    results = load_results(folder)
    if results.missing:
        raise BenchmarkError(f"{folder}: {results.notes()[0]}.")
    board = leaderboard(results)
    kept = {k: v for k, v in board.items() if k not in _LEFT and not k.startswith("by_")}
    kept["rows"] = [_short_row(row) for row in board["rows"]]
    out = records / folder.resolve().name
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(kept, separators=(",", ":"), allow_nan=False)
    replace_bytes(out / "board.json.gz", gzip.compress(text.encode(), mtime=0))
    episodes = _episodes(folder, results.episodes)
    replace_bytes(out / "episodes.csv.gz", gzip.compress(episodes.encode(), mtime=0))
    replace_text(out / "run.yaml", yaml.safe_dump(_origin(board, results.header), sort_keys=False))
    return out


def _short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    intervals = [f"{name}_ci95" for name in SHOWN[:2]]
    place = ("track", "scenario", "load", "workload", "rate_per_min", "budget_s")
    return {k: row[k] for k in ("policy", *place, *SHOWN, *intervals, "trainings") if k in row}


def _episodes(folder: Path, episodes: Mapping[Any, Any]) -> str:
    """Return the scores of every episode as CSV, in the order of the results folder."""
    text = io.StringIO()
    for found in read_cells(folder):
        if found is not None and found.cell in episodes:
            scores = {name: f"{found.line[name]:.6g}" for name in SHOWN if name in found.line}
            row: dict[str, Any] = found.cell.to_json() | {"training": found.cell.training}
            writer = csv.DictWriter(text, [*row, *scores], lineterminator="\n")
            if not text.tell():
                writer.writeheader()
            writer.writerow(row | scores)
    return text.getvalue()


def _origin(board: Board, header: Mapping[str, Any]) -> dict[str, Any]:
    git, machine = header["git"] or {}, header["machine"]
    revision = str(git.get("commit", "unknown"))[:12]
    return {
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
