"""Table of records: the scores of every episode that the results pages rest on.

``benchmarks/records/<execution>/<entry>.csv.gz`` has a row for each workload, arrival rate, budget,
training seed and episode; numbers have six figures. ``index.yaml`` says how each of these files was
made, ``decisions.csv`` counts its decisions by the cost ratio of their queries. A record is valid
while the declared versions of simulator and policy and the settings of the plan are its own.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.plan import PlanConfig, Run, run_command
from inframind_gym.benchmark.cells import Cell, grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import ROUTING, family
from inframind_gym.benchmark.provenance import weights_hash
from inframind_gym.benchmark.store import read_blocks, read_episodes, read_header
from inframind_gym.errors import unknown
from inframind_gym.files import replace_bytes, replace_text
from inframind_gym.policies.loading import registered_policies
from inframind_gym.simulator import SIMULATOR_VERSION

RECORDS: Final = Path(__file__).with_name("records")
INDEX: Final = "index.yaml"
DECISIONS: Final = "decisions.csv"
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
    """Read a table, compressed or not; every value is text.

    Raises:
        BenchmarkError: It is missing or damaged.
    """
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
    """Scores of an entry by workload and arrival rate.

    Raises:
        BenchmarkError: The table is missing, damaged, or lacks episodes of a training seed.
    """
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


def policy_version(policy: str) -> int:
    """Declared version of a registered policy; 1 for others, which declare none."""
    paths = {entry.name: entry.path for entry in registered_policies()}
    module, _, name = paths.get(policy.partition(":")[0], "").partition(":")
    return int(getattr(getattr(import_module(module), name), "version", 1)) if module else 1


def declared(runs: Sequence[Run]) -> dict[str, Any]:
    """Versions and settings of an entry's runs; a record with others is not valid."""
    run, left_out = runs[0], {"name", "description", "policies", "protocol", "execution"}
    settings = run.suite.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
    settings["workloads"] = [name for one in runs for name in one.suite.names("workloads")]
    settings["execution"] = "sequential" if run.suite.protocol == "published" else "parallel"
    return {
        "simulator_version": SIMULATOR_VERSION,
        "policy": run.entry.policy,
        "policy_version": policy_version(run.entry.policy),
        "training_seeds": len(run.entry.seeds),
        "settings": settings,
    }


def missing(plan: PlanConfig, folder: Path = RECORDS) -> list[tuple[list[Run], str]]:
    """Runs of the entries without a valid record, each with the reason."""
    index, found = read_index(folder), []
    for runs in plan.all_runs():
        record = index.get(runs[0].execution, {}).get(runs[0].entry.name)
        differing = [k for k, v in declared(runs).items() if record and record[k] != v]
        if record is None or differing:
            reason = f"recorded with another {', '.join(differing)}" if record else "no record"
            found.append((runs, reason))
    return found


def missing_commands(plan: PlanConfig, folder: Path, records: Path = RECORDS) -> list[str]:
    """Command lines that train, run and record what has no valid record.

    The suite of every run is written to ``<folder>/suites``. A training that has finished ends at
    once when its command is given again.
    """
    lines: list[str] = []
    trained: set[str] = set()
    for runs, reason in missing(plan, records):
        lines.append(f"# {runs[0].entry.name}, {runs[0].execution}: {reason}")
        lines += [c for run in runs for c in run.training_commands if c not in trained]
        trained.update(lines)
        outs = [folder / run.suite.name for run in runs]
        for run, out in zip(runs, outs, strict=True):
            suite = folder / "suites" / f"{run.suite.name.replace('/', '-')}.yaml"
            content = run.suite.model_dump(mode="json", exclude_defaults=True)
            replace_text(suite, yaml.safe_dump(content, sort_keys=False))
            lines.append(run_command(suite, out))
        lines.append(f"python -m benchmarks record {' '.join(map(str, outs))}")
    return lines


def add(results: Sequence[Path], plan: PlanConfig, folder: Path = RECORDS) -> list[str]:
    """Add finished results folders to the table, in place of older records.

    Args:
        results: Folders of runs of the plan, known by the names of their suites; of an entry with
            a run for each workload all of them.
        plan: The plan.
        folder: Folder of the records.

    Returns:
        Names of the runs.

    Raises:
        BenchmarkError: A folder is damaged, unfinished or not of the plan, or one is lacking.
    """
    headers = {path: read_header(path) for path in results}
    paths = {header["suite"]["name"]: path for path, header in headers.items()}
    known = {run.suite.name: runs for runs in plan.all_runs() for run in runs}
    for name, path in paths.items():
        if name not in known:
            raise BenchmarkError(f"{path}: {unknown('run of the plan', name, list(known))}")
        absent = [run.suite.name for run in known[name] if run.suite.name not in paths]
        if absent:
            raise BenchmarkError(f"{path}: give the folders of {', '.join(absent)} too.")
    for runs in plan.all_runs():
        if runs[0].suite.name in paths:
            own = [paths[run.suite.name] for run in runs]
            _add(runs, own, [headers[path] for path in own], folder)
    return list(paths)


def _add(
    runs: Sequence[Run], paths: Sequence[Path], headers: Sequence[Mapping[str, Any]], folder: Path
) -> None:
    """Add the runs of one entry from their folders with these headers."""
    entry, execution = runs[0].entry, runs[0].execution
    rows: Rows = []
    weights: dict[str, str] = {}
    queries: Counter[bool] = Counter()
    models: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for run, path in zip(runs, paths, strict=True):
        blocks = {block.cell: block for block in read_blocks(path)}
        cells: list[Cell] = grid(run.suite)
        lacking = sum(cell not in blocks for cell in cells)
        if lacking:
            raise BenchmarkError(
                f"{path}: {lacking} of {len(cells)} cells have not been run. "
                "Run the same command again; it continues."
            )
        for cell in cells:
            seed = run.seed_of[cell.policy]
            place = (cell.workload, cell.rate_per_min, cell.budget_s, seed, cell.seed)
            rows.append({**dict(zip(KEYS, place, strict=True)), **metrics_of(blocks[cell].line)})
        for _, episodes in read_episodes(path, [blocks[cell] for cell in cells]):
            for query in episodes:
                queries[query["cost"] > 1.0] += 1
                models[query["cost"] > 1.0].update(query["models"])
        for policy, seed in run.seed_of.items():
            made = family(ROUTING).resolve_policy(policy)
            weights[f"{run.workload}/{seed}".lstrip("/")] = weights_hash(made)
    counted = [decisions_row(execution, entry.name, late, queries[late], models[late])
               for late in (False, True)]  # fmt: skip
    path = folder / DECISIONS
    others = [r for r in (read_rows(path) if path.is_file() else [])
              if (r["execution"], r["entry"]) != (execution, entry.name)]  # fmt: skip
    index = read_index(folder)
    index.setdefault(execution, {})[entry.name] = {
        **declared(runs),
        "training": entry.training.folder if entry.training else None,
        "date": datetime.date.today().isoformat(),
        "revisions": sorted({revision_of(header["git"] or {}) for header in headers}),
        "machines": sorted({machine_of(header["machine"]) for header in headers}),
        "weights": weights if entry.training else None,
    }
    write_rows(table_path(execution, entry.name, folder), rows)
    write_rows(path, others + counted)
    write_index(index, folder)


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


def decisions_row(
    execution: str, entry: str, late: bool, queries: int, models: Mapping[str, int]
) -> dict[str, Any]:
    """Row of ``decisions.csv``: queries with latency over budget above 1, or others."""
    counts = " ".join(f"{model}={number}" for model, number in sorted(models.items()))
    keys = {"execution": execution, "entry": entry, "late": int(late)}
    return {**keys, "queries": queries, "decisions": counts}


def metrics_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a line of ``cells.jsonl``."""
    shares = {f"{kind}.{name}": value for kind in SHARES for name, value in line[kind].items()}
    return {name: line["episodes" if name == "queries" else name] for name in METRICS} | shares
