"""Trains and runs what is missing; stopped at any moment, the same call goes on from there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError, StoppedError
from benchmarks.progress import say
from benchmarks.results_page.plan import EntryConfig, EntryRun, Protocol, resolved, runs_of
from benchmarks.results_page.trainings import train, trainings_of
from benchmarks.runner import ctrl_c, run
from benchmarks.store import OtherSettingsError, delete_results
from benchmarks.suite import SuiteConfig

ROOT = Path(__file__).resolve().parents[2]


def produce(
    entries: Sequence[EntryConfig],
    suites: Mapping[Protocol, SuiteConfig],
    results: Path,
    *,
    workers: int,
    trainings_at_once: int,
    ray_address: str | None = None,
    redo: bool = False,
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

    Raises:
        BenchmarkError: A training or a policy fails, or a folder holds other results.
        StoppedError: Ctrl-C was pressed; what has finished is kept.
    """
    workloads = next(iter(suites.values())).workloads
    with ctrl_c() as stop:
        train(
            trainings_of(entries, workloads),
            at_once=trainings_at_once,
            root=ROOT,
            redo=redo,
            stop=lambda: stop.asked,
        )
    runs = [one for entry in entries for one in runs_of(entry, suites, results)]
    for number, one in enumerate(runs, start=1):
        say(f"sweeps {number} of {len(runs)}: {one.entry.name}, {one.protocol} protocol")
        _run(one, workers, ray_address, redo)


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
