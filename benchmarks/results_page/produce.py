"""Trains and runs what is missing; stopped at any moment, the same call goes on from there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results_page.plan import EntryConfig, EntryRun, Protocol, resolved, runs_of
from benchmarks.results_page.records import find, path_of, record_of, save
from benchmarks.results_page.trainings import Training, train, trainings_of
from inframind_gym.benchmark.errors import BenchmarkError, StoppedError
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.routing.suite import RoutingSuite
from inframind_gym.benchmark.runner import ctrl_c, run
from inframind_gym.benchmark.store import OtherSettingsError, delete_results

ROOT = Path(__file__).resolve().parents[2]


def produce(
    entries: Sequence[EntryConfig],
    suites: Mapping[Protocol, RoutingSuite],
    results: Path,
    *,
    workers: int,
    trainings_at_once: int,
    ray_address: str | None = None,
    redo: bool = False,
    records: Path | None = None,
    afresh: bool = False,
) -> None:
    """Train and run the entries, as far as that has not been done.

    Args:
        entries: The entries.
        suites: The suite of each protocol.
        results: Folder of the results folders.
        workers: Processes, or actors on Ray, for the sweeps.
        trainings_at_once: Trainings that run side by side.
        ray_address: Address of a Ray cluster for the sweeps.
        redo: Whether results and trainings that other code or settings made are deleted and made
            anew.
        records: Folder of records: what has one that is still valid is not run, and what is run
            gets one.
        afresh: Whether what has a record is run all the same.

    Raises:
        BenchmarkError: A training or a policy fails, or a folder holds other results.
        StoppedError: Ctrl-C was pressed; what has finished is kept.
    """
    runs = [run for entry in entries for run in runs_of(entry, suites, results)]
    todo = runs if afresh else [run for run in runs if find(run, records) is None]
    say(f"{len(runs)} runs of {len(entries)} entries, {len(todo)} to go")
    workloads = next(iter(suites.values())).workloads
    trainings = trainings_of(entries, workloads)
    with ctrl_c() as stop:
        train(
            needed_by(todo, trainings),
            at_once=trainings_at_once,
            root=ROOT,
            redo=redo,
            stop=lambda: stop.asked,
        )
    for number, one in enumerate(todo, start=1):
        say(f"sweeps {number} of {len(todo)}: {one.title}")
        _run(one, workers, ray_address, redo)
        record = record_of(one)
        if records is not None and not isinstance(record, int):
            save(record, path_of(one, records))


def needed_by(runs: Sequence[EntryRun], trainings: Sequence[Training]) -> list[Training]:
    """Those of all trainings that runs play with, and those that these start from."""
    folders = {
        Path(run.entry.folder(seed, run.workload)) for run in runs for seed in run.seed_of.values()
    }
    needed = [one for one in trainings if one.folder in folders]
    while True:
        entries = {name for one in needed for name in one.after}
        more = [one for one in trainings if one in needed or one.entry in entries]
        if len(more) == len(needed):
            return needed
        needed = more


def _run(one: EntryRun, workers: int, ray_address: str | None, redo: bool) -> None:
    suite = resolved(one)
    command = sys.argv[1:]
    try:
        summary = run(suite, one.folder, workers=workers, ray_address=ray_address, command=command)
    except OtherSettingsError as error:
        if not redo:
            raise BenchmarkError(f"{error} Or let --redo do that.") from None
        say(f"{one.folder} was made by other code or settings: made anew")
        delete_results(one.folder)
        summary = run(suite, one.folder, workers=workers, ray_address=ray_address, command=command)
    if summary.stopped:
        raise StoppedError
