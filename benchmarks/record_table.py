"""Table of records: the scores of every episode that the results pages rest on.

``benchmarks/records/<execution>/<entry>.csv.gz`` has a row for each workload, arrival rate, budget,
training seed and episode; numbers have six figures. Beside these, in the same folder:

    index.yaml      origin of each of these files: declared versions, settings, machine, weights
    decisions.csv   queries and decisions of each entry, by latency over budget up to 1 or above
    bounds.csv      fluid bounds on the goodput of each cell
    trainings.csv   queries, loads and last multipliers of the trainings, kept by hand
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.files import replace_bytes, replace_text

RECORDS: Final = Path(__file__).with_name("records")
INDEX: Final = "index.yaml"
DECISIONS: Final = "decisions.csv"
BOUNDS: Final = "bounds.csv"
FLUID: Final = ("informed", "clairvoyant")  # columns of bounds.csv
KEYS: Final = ("workload", "rate_per_min", "budget_s", "training_seed", "episode")
METRICS: Final = (
    *("queries", "accuracy", "goodput", "slo_own", "slo_100s", "latency_mean_s"),
    *("latency_p95_s", "cost_ratio", "calls_per_query"),
)
SHARES: Final = ("model_share", "strategy_share")  # columns "model_share.qwen-14b" and the like
Place = tuple[str, float]  # workload and arrival rate
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scores:
    """Scores of one entry at one workload and arrival rate.

    Attributes:
        budgets_s: Budget of each episode, ``(num_episodes,)``.
        columns: For each metric ``(num_training_seeds, num_episodes)``.
    """

    budgets_s: tuple[float | str, ...]
    columns: dict[str, NDArray[np.float64]]


def read_rows(path: Path) -> Rows:
    """Rows of a table, compressed or not, of texts; a BenchmarkError if it is damaged."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        return list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise BenchmarkError(f"{path} is no table of records: {error}") from None


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table; the same rows give the same bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        short = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
        writer.writerow(short)
    content = text.getvalue().encode()
    replace_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_index(folder: Path = RECORDS) -> dict[str, dict[str, dict[str, Any]]]:
    """Origin of every record by execution and entry; empty where there are none."""
    path = folder / INDEX
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def table_path(execution: str, entry: str, folder: Path = RECORDS) -> Path:
    """Path of the table of an entry's scores."""
    return folder / execution / f"{entry}.csv.gz"


def read_scores(path: Path) -> dict[Place, Scores]:
    """Scores of an entry; a BenchmarkError if the table lacks episodes of a training seed."""
    groups: dict[Place, dict[str, Rows]] = {}
    for row in read_rows(path):
        seeds = groups.setdefault((row["workload"], float(row["rate_per_min"])), {})
        seeds.setdefault(row["training_seed"], []).append(row)
    found = {}
    for place, seeds in groups.items():
        first = next(iter(seeds.values()))
        episodes = [(row["budget_s"], row["episode"]) for row in first]
        if any([(r["budget_s"], r["episode"]) for r in s] != episodes for s in seeds.values()):
            raise BenchmarkError(f"{path}: training seeds differ in their episodes at {place}")
        budgets = tuple(b if b == "tiers" else float(b) for b, _ in episodes)
        columns = {
            name: np.array([[float(row[name]) for row in rows] for rows in seeds.values()])
            for name in first[0]
            if name not in KEYS
        }
        found[place] = Scores(budgets, columns)
    return found


def write_index(index: Mapping[str, Any], folder: Path = RECORDS) -> None:
    """Write the origin of every record."""
    text = yaml.safe_dump(dict(index), sort_keys=False, default_flow_style=None, width=120)
    replace_text(folder / INDEX, text)


def revision_of(git: Mapping[str, Any]) -> str:
    """Revision of a checkout, with a note of uncommitted files."""
    commit = str(git.get("commit", "unknown"))[:12]
    return f"{commit} (with uncommitted files)" if git.get("dirty") else commit


def machine_of(machine: Mapping[str, Any]) -> str:
    """Processor and number of cores."""
    return f"{machine['processor']}, {machine['cores']} cores"
