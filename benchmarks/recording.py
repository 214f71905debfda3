"""Runs of the plan, the validity of their records, and the recording of finished ones.

A record is valid while the declared versions of simulator and policy and the settings of the plan
are its own.
"""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from benchmarks.plan import EntryConfig, Execution, PlanConfig
from benchmarks.record_table import (
    DECISIONS,
    KEYS,
    METRICS,
    RECORDS,
    SHARES,
    Rows,
    machine_of,
    read_index,
    read_rows,
    revision_of,
    table_path,
    write_index,
    write_rows,
)
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import weights_hash
from inframind_gym.benchmark.routing.family import RoutingFamily
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.benchmark.store import read_cells, read_header
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text
from inframind_gym.policies.loading import registered_policies
from inframind_gym.simulator import SIMULATOR_VERSION


@dataclass(frozen=True)
class Run:
    """One entry on one suite: the content of one results folder.

    Attributes:
        entry: The entry.
        execution: Key of the suite in the plan.
        workload: Workload that its policies were trained for; "" for all.
        suite: The suite with the entry's settings and policies; its name is the run's.
    """

    entry: EntryConfig
    execution: Execution
    workload: str
    suite: RoutingSuite

    @property
    def seed_of(self) -> dict[str, int]:
        """Training seed of each policy."""
        return dict(zip(self.suite.policies, self.entry.seeds, strict=True))


def runs_of(plan: PlanConfig, entry: EntryConfig, execution: Execution) -> list[Run]:
    """Runs of an entry: one, or one for each workload if its policies are trained for it."""
    suite = load_suite(plan.suites[execution])
    changes = entry.changes | entry.under.get(execution, {})
    split = entry.folder("a", 0) != entry.folder("b", 0)
    found = []
    for workload in suite.names("workloads") if split else ("",):
        folders = [entry.folder(workload, seed) for seed in entry.seeds]
        single = {name: own for name, own in suite.by_workload.items() if workload in ("", name)}
        content = {
            **suite.model_dump(),
            **changes,
            "name": "/".join(filter(None, (execution, entry.name, workload))),
            "policies": tuple(entry.policy.format(folder=folder) for folder in folders),
            "workloads": (workload,) if workload else suite.workloads,
            "by_workload": single,
        }
        found.append(Run(entry, execution, workload, RoutingSuite(**content)))
    return found


def all_runs(plan: PlanConfig) -> Iterator[list[Run]]:
    """Runs of every entry with each of its executions."""
    for execution in plan.suites:
        for entry in plan.entries:
            if execution in entry.executions:
                yield runs_of(plan, entry, execution)


def run_command(suite: Path, out: Path) -> str:
    """Command line that runs a suite's file into a folder."""
    command = ["python", "-m", "benchmarks", "run", "--suite", str(suite), "--out", str(out)]
    return shlex.join(command)


def policy_version(policy: str) -> int:
    """Declared version of a registered policy; 1 for others, which declare none."""
    paths = {entry.name: entry.path for entry in registered_policies()}
    module, _, name = paths.get(policy.partition(":")[0], "").partition(":")
    return int(getattr(getattr(import_module(module), name), "version", 1)) if module else 1


def declared(runs: Sequence[Run]) -> dict[str, Any]:
    """Versions and settings of an entry's runs; a record with others is not valid."""
    run, left_out = runs[0], {"name", "description", "policies", "execution"}
    parts = [
        one.suite.model_dump(mode="json", exclude_defaults=True, exclude=left_out) for one in runs
    ]
    settings = dict(parts[0])
    settings["workloads"] = [name for part in parts for name in part["workloads"]]
    if own := {name: v for part in parts for name, v in part.get("by_workload", {}).items()}:
        settings["by_workload"] = own
    settings["execution"] = run.suite.execution or "parallel"
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
    for runs in all_runs(plan):
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
        commands = [run.entry.command(run.workload, s) for run in runs for s in run.entry.seeds]
        lines += [command for command in commands if command and command not in trained]
        trained.update(commands)
        outs = [folder / run.suite.name for run in runs]
        for run, out in zip(runs, outs, strict=True):
            suite = folder / "suites" / f"{run.suite.name.replace('/', '-')}.yaml"
            content = run.suite.model_dump(mode="json", exclude_defaults=True)
            replace_text(suite, yaml.safe_dump(content, sort_keys=False))
            lines.append(run_command(suite, out))
        lines.append(f"python -m benchmarks record {' '.join(map(str, outs))}")
    return lines


def add(results: Sequence[Path], plan: PlanConfig, folder: Path = RECORDS) -> list[str]:
    """Add finished results folders to the table, in place of older records; return their names.

    They are known by the names of their suites; of an entry with a run for each workload all are
    needed.

    Raises:
        BenchmarkError: A folder is damaged, unfinished or not of the plan, or one is lacking.
    """
    headers = {path: read_header(path) for path in results}
    paths = {header["suite"]["name"]: path for path, header in headers.items()}
    known = {run.suite.name: runs for runs in all_runs(plan) for run in runs}
    for name, path in paths.items():
        if name not in known:
            raise BenchmarkError(f"{path}: {unknown('run of the plan', name, list(known))}")
        absent = [run.suite.name for run in known[name] if run.suite.name not in paths]
        if absent:
            raise BenchmarkError(f"{path}: give the folders of {', '.join(absent)} too.")
    for runs in all_runs(plan):
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
        found = {one.cell: one for one in read_cells(path) if one is not None}
        layout = RoutingFamily().layout(read_header(path))
        where, models_of = layout.share_slices()["model_share"]
        cells: list[RoutingCell] = grid(run.suite)
        lacking = sum(cell not in found for cell in cells)
        if lacking:
            raise BenchmarkError(
                f"{path}: {lacking} of {len(cells)} cells have not been run. "
                "Run the same command again; it continues."
            )
        for cell in cells:
            seed = run.seed_of[cell.policy]
            place = (cell.workload, cell.rate_per_min, cell.budget_s, seed, cell.seed)
            line, columns = found[cell].line, found[cell].columns()
            shares = {f"{kind}.{name}": v for kind in SHARES for name, v in line[kind].items()}
            scores = {name: line["records" if name == "queries" else name] for name in METRICS}
            rows.append(dict(zip(KEYS, place, strict=True)) | scores | shares)
            calls = layout.table(columns)[:, where]
            for late in (False, True):
                mine = (columns["cost"] > 1.0) == late
                queries[late] += int(mine.sum())
                used = calls[mine].sum(axis=0).astype(int).tolist()
                models[late].update({name: n for name, n in zip(models_of, used, strict=True) if n})
        for policy, seed in run.seed_of.items():
            made = RoutingFamily().resolve_policy(policy)
            weights[f"{run.workload}/{seed}".lstrip("/")] = weights_hash(made)
    counted = [
        {
            **{"execution": execution, "entry": entry.name, "late": int(late)},
            "queries": queries[late],
            "decisions": " ".join(f"{model}={n}" for model, n in sorted(models[late].items())),
        }
        for late in (False, True)
    ]
    path = folder / DECISIONS
    others = [
        row
        for row in (read_rows(path) if path.is_file() else [])
        if (row["execution"], row["entry"]) != (execution, entry.name)
    ]
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
