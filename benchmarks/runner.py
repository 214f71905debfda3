"""Runs a suite into a results folder, from where an earlier run of the same command left off."""

from __future__ import annotations

import datetime
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import baselines
from benchmarks.cells import Cell, cell_id, content_hash, grid
from benchmarks.errors import BenchmarkError
from benchmarks.live import REQUESTS
from benchmarks.progress import ProgressReport, say
from benchmarks.provenance import policy_fingerprint, provenance, settings, workload_fingerprint
from benchmarks.rollout import StoppedError, env_spec
from benchmarks.store import ResultStore
from benchmarks.suite import SuiteConfig
from benchmarks.workers import MAX_ROWS, run_cells
from inframind_gym.configs import list_configs
from inframind_gym.errors import unknown
from inframind_gym.serving.pool import load_pool
from inframind_gym.tasks import load_tasks
from inframind_gym.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.topology.graphs import CUSTOM
from inframind_gym.workload.arrivals import make_arrivals
from inframind_gym.workload.config import load_workload

MIXED = "mixed"  # the workload that a folder of tasks replaces by its datasets


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did.

    Attributes:
        folder: Where the results are.
        cells: Cells of the suite.
        computed: Cells that this run has computed.
        kept: Cells that earlier runs had computed.
        wall_s: Seconds that this run took.
        stopped: Whether it was stopped before the end.
    """

    folder: Path
    cells: int
    computed: int
    kept: int
    wall_s: float
    stopped: bool


def resolve(suite: SuiteConfig) -> SuiteConfig:
    """Check all that a suite names, and put a folder's datasets in place of the mixed workload.

    Args:
        suite: As it was read.

    Returns:
        The suite with absolute paths and the workloads that will be run.

    Raises:
        InfraMindError: A pool, policy, workload, arrival process or folder of tasks cannot be used.
    """
    load_pool(suite.pool)
    arrivals = make_arrivals(suite.arrivals).to_json()
    if "path" in arrivals:
        arrivals["path"] = str(Path(arrivals["path"]).resolve())
        suite = suite.model_copy(update={"arrivals": arrivals})
    if suite.tasks != "builtin":
        folder = Path(suite.tasks)
        if not folder.is_dir():
            raise BenchmarkError(f"--tasks: there is no folder {folder}.")
        found = tuple(dict.fromkeys(load_tasks(str(folder), split=suite.split).datasets))
        workloads = [w for name in suite.workloads for w in (found if name == MIXED else (name,))]
        for name in workloads:
            if name in found and name not in list_configs("workloads"):
                message = unknown("workload", name, list_configs("workloads"))
                raise BenchmarkError(
                    f"{folder} holds questions of {name!r}: {message} Write a workload for them "
                    "and name its file with --workloads."
                )
        suite = suite.model_copy(
            update={"tasks": str(folder.resolve()), "workloads": tuple(dict.fromkeys(workloads))}
        )
    for name in suite.workloads:
        dataset = load_workload(name).dataset
        if suite.tasks != "builtin" and dataset is not None and dataset not in found:
            raise BenchmarkError(
                f"workload {name} asks questions of {dataset!r}; {suite.tasks} has those of "
                f"{', '.join(found) or 'nothing'}."
            )
    return suite


def run(
    suite: SuiteConfig,
    folder: Path,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    max_rows: int = MAX_ROWS,
    export_port: int | None = None,
    command: Sequence[str] = (),
) -> RunSummary:
    """Compute the cells of a suite that a folder does not hold yet.

    Ctrl-C ends the run after what is being written; a second one ends it at once. Neither loses a
    finished cell.

    Args:
        suite: A resolved suite.
        folder: Where results go.
        workers: Processes, or actors on Ray.
        ray_address: Address of a Ray cluster, see `agents.ray_hosts.connect`; None for processes.
        max_rows: Most cells in lock-step.
        export_port: Port at which metrics of live servers are shown while the run goes on.
        command: The command line, for the record.

    Raises:
        BenchmarkError: The folder cannot be used, a policy fails, the disk is full, or there are no
            live servers to show metrics of.
    """
    if export_port is not None and suite.backend != "vllm":
        raise BenchmarkError("--export-port shows metrics of live servers; add --backend vllm.")
    began = time.monotonic()
    header = _header(suite, command)
    ids = {cell: _id(cell, header) for cell in grid(suite)}
    queries = {
        name: suite.num_queries or load_workload(name).num_queries for name in suite.workloads
    }
    with ResultStore(folder, header) as store:
        todo = {cell: name for cell, name in ids.items() if name not in store.finished}
        kept = len(ids) - len(todo)
        total = sum(queries[cell.workload] for cell in ids)
        left = sum(queries[cell.workload] for cell in todo)
        if kept:
            say(f"{folder}: {kept} of {len(ids)} cells are there, {len(todo)} to go")
        stopped = False
        computed = 0
        with ctrl_c() as stop, ProgressReport(total, total - left, suite.name) as report:
            try:
                for results in run_cells(
                    suite,
                    todo,
                    workers=workers,
                    ray_address=ray_address,
                    max_rows=max_rows,
                    log=folder / REQUESTS,
                    export_port=export_port,
                    stop=lambda: stop.asked,
                    progress=report.advance,
                ):
                    store.commit(results)
                    computed += len(results)
            except StoppedError:
                stopped = True
        if not stopped:
            store.sort()
    return RunSummary(folder, len(ids), computed, kept, time.monotonic() - began, stopped)


def _header(suite: SuiteConfig, command: Sequence[str]) -> dict[str, Any]:
    """Content of ``run.json``."""
    shared = settings(suite)
    policies = {name: baselines.resolve_policy(name) for name in suite.policies}
    origin = provenance()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "settings": shared,
        "settings_hash": content_hash(shared),
        "policies": {name: policy_fingerprint(name) for name in suite.policies},
        "bounds": [name for name, made in policies.items() if getattr(made, "bound", False)],
        "workloads": {name: workload_fingerprint(name) for name in suite.workloads},
        "suite": suite.model_dump(mode="json"),
        "names": {
            "models": [model.alias for model in load_pool(suite.pool).models],
            "strategies": list(STRATEGIES),
            "topologies": [*TOPOLOGIES, CUSTOM],
        },
        **origin,
        "runs": [{"started": started, "command": list(command), "git": origin["git"]}],
        "env_specs": {
            f"{policy}/{workload}": env_spec(suite, workload, policies[policy])
            for policy in suite.policies
            for workload in suite.workloads
        },
    }


def _id(cell: Cell, header: dict[str, Any]) -> str:
    shared = content_hash([header["settings_hash"], header["workloads"][cell.workload]])
    return cell_id(cell, shared, header["policies"][cell.policy])


class _Stop:
    """Whether Ctrl-C was pressed."""

    asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Take note; the second time, interrupt whatever goes on."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("\nstopping (Ctrl-C again: at once)")


@contextmanager
def ctrl_c() -> Iterator[_Stop]:
    """Take note of Ctrl-C for the time of a block."""
    stop = _Stop()
    try:
        old = signal.signal(signal.SIGINT, stop)
    except ValueError:  # not in the main thread: nobody can press Ctrl-C here
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, old)


def continue_command(command: Sequence[str]) -> str:
    """The command line that continues a run, as it can be typed."""
    return shlex.join([Path(sys.executable).name, "-m", "benchmarks", *command])
