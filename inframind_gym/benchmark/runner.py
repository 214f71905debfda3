"""Run a suite into a results folder, from where an earlier run of the same command left off."""

from __future__ import annotations

import datetime
import math
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from inframind_gym.benchmark.cell_workers import MAX_ROWS, run_cells
from inframind_gym.benchmark.cells import BaseCell, cell_id, content_hash, grid
from inframind_gym.benchmark.errors import BenchmarkError, PolicyFailedError, StoppedError
from inframind_gym.benchmark.families import Family, family_of
from inframind_gym.benchmark.lines import CellResult
from inframind_gym.benchmark.provenance import policy_fingerprint, provenance, settings
from inframind_gym.benchmark.store import REQUESTS, ResultStore
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.progress import ProgressReport, say

_KEEP_EVERY_S = 0.5  # finished cells are synced to the disk together


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run.

    Attributes:
        cells: Cells of the suite.
        computed: Cells that this run has computed.
        kept: Cells that earlier runs had computed.
        wall_s: Seconds that this run took.
        stopped: Whether it was stopped before the end.
        results: What this run has computed, by the ids of cells; without the lines in the folder.
    """

    cells: int
    computed: int
    kept: int
    wall_s: float
    stopped: bool
    results: Mapping[str, CellResult]


def run(
    suite: BaseSuite,
    folder: Path,
    *,
    workers: int = 1,
    ray_address: str | None = None,
    max_rows: int = MAX_ROWS,
    export_port: int | None = None,
    strict: bool = False,
    command: Sequence[str] = (),
) -> RunSummary:
    """Compute the cells of a suite that a folder does not hold yet.

    Ctrl-C and SIGTERM end the run after what is being written, and an episode on live
    servers at once; a second one ends everything at once. Neither loses a finished cell.

    Every policy is reset in every environment before anything is run. One that cannot play, then or
    later, is left out: the run goes on, and ``run.json`` has the reason.

    Args:
        suite: A resolved suite.
        folder: Where results go.
        workers: Processes, or actors on Ray.
        ray_address: Of a Ray cluster (``ray://host:port``, "auto", ...); None for processes.
        max_rows: Most cells in lock-step.
        export_port: Port at which metrics of live servers are shown while the run goes on.
        strict: Whether a policy that cannot play ends the run.
        command: The command line, for the record.

    Raises:
        BenchmarkError: The folder cannot be used, no policy can play (with `strict`: one cannot),
            the disk is full, or there are no live servers to show metrics of.
    """
    if export_port is not None and getattr(suite, "backend", None) != "vllm":
        raise BenchmarkError("--export-port shows metrics of live servers; add --backend vllm.")
    began = time.monotonic()
    kind = family_of(suite.model_dump(mode="json"))
    header = header_of(kind, suite, command)
    ids = plan(suite, header)
    size = {cell: suite.length(cell) for cell in ids}
    with ResultStore(folder, header) as store:
        todo = {cell: name for cell, name in ids.items() if name not in store.finished}
        kept = len(ids) - len(todo)
        total = sum(size.values())
        left = sum(size[cell] for cell in todo)
        if kept:
            say(f"{folder}: {kept} of {len(ids)} cells are there, {len(todo)} to go")
        stopped = False
        computed: dict[str, CellResult] = {}
        kept_at = -math.inf
        waiting: list[CellResult] = []

        def keep() -> None:
            nonlocal kept_at
            store.commit(waiting)
            computed.update({one.cell_id: replace(one, line=b"") for one in waiting})
            waiting.clear()
            kept_at = time.monotonic()

        def keep_if_due() -> None:
            if waiting and time.monotonic() - kept_at > _KEEP_EVERY_S:
                keep()

        def advance(count: int) -> None:
            report.advance(count)
            keep_if_due()

        def leave_out(error: PolicyFailedError) -> None:
            if strict:
                raise error
            say(f"{error}\nThe run goes on without it; --strict ends it.")
            store.leave_out(error.policy, error.reason)

        with ctrl_c() as stop, ProgressReport(total, total - left, suite.name, kind.unit) as report:
            try:
                for results in run_cells(
                    kind,
                    suite,
                    todo,
                    workers=workers,
                    ray_address=ray_address,
                    max_rows=max_rows,
                    log=folder / REQUESTS,
                    export_port=export_port,
                    stop=lambda: stop.asked,
                    progress=advance,
                    failed=leave_out,
                ):
                    waiting += results
                    keep_if_due()
            except StoppedError:
                stopped = True
            finally:
                if waiting:
                    keep()
        if not stopped:
            store.sort()
        left_out = store.header["left_out"]
        if set(suite.policies) <= set(left_out):
            reasons = "; ".join(f"{name}: {left_out[name]}" for name in suite.policies)
            raise BenchmarkError(f"no policy can play: {reasons}")
    wall_s = time.monotonic() - began
    return RunSummary(len(ids), len(computed), kept, wall_s, stopped, computed)


def header_of(
    kind: Family,
    suite: BaseSuite,
    command: Sequence[str],
    policies: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the content of ``run.json``, whose cells `plan` enters.

    Args:
        kind: Family of the suite.
        suite: A resolved suite.
        command: The command line, for the record.
        policies: The suite's policies by their names; None: they are made.
    """
    shared = settings(suite)
    if policies is None:
        policies = {name: kind.resolve_policy(name) for name in suite.policies}
    origin = provenance()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    own = kind.header(suite, policies)
    specs = own.pop("env_specs")
    return {
        "settings": shared,
        "settings_hash": content_hash(shared),
        "policies": {
            name: policy_fingerprint(made) | suite.fitted_as(name)
            for name, made in policies.items()
        },
        "bounds": [name for name, made in policies.items() if getattr(made, "bound", False)],
        **{
            setting: {name: suite.fingerprint(setting, name) for name in suite.names(setting)}
            for setting in suite.files()
        },
        "suite": suite.model_dump(mode="json"),
        **own,
        **origin,
        "runs": [{"started": started, "command": list(command), "git": origin["git"]}],
        "left_out": {},
        "env_specs": specs,
        "planned": {},
    }


def plan(suite: BaseSuite, header: dict[str, Any]) -> dict[BaseCell, str]:
    """Return the cells of a suite with their ids, and enter them in its header."""
    ids = {cell: _id(suite, cell, header) for cell in grid(suite)}
    for cell, name in ids.items():
        header["planned"].setdefault(cell.policy, {})[name] = cell.where
    return ids


def _id(suite: BaseSuite, cell: BaseCell, header: dict[str, Any]) -> str:
    contents = [header[setting][getattr(cell, name)] for setting, name in suite.files().items()]
    shared = content_hash([header["settings_hash"], *contents])
    return cell_id(cell, shared, header["policies"][cell.policy])


class _Stop:
    """Handler of signals that remembers whether the run was asked to end."""

    asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Take note; the second time, interrupt at once."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("\nstopping (Ctrl-C again: at once)")


@contextmanager
def ctrl_c() -> Iterator[_Stop]:
    """Take note of Ctrl-C, and of SIGTERM, for the time of a block."""
    stop = _Stop()
    try:
        old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone receives signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def continue_command(command: Sequence[str]) -> str:
    """Return the command line that continues a run, as it can be typed.

    Args:
        command: The arguments of this process's program.
    """
    program = Path(sys.argv[0])
    as_module = [Path(sys.executable).name, "-m", program.parent.name]
    return shlex.join([*(as_module if program.name == "__main__.py" else [program.name]), *command])
