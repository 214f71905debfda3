"""Plays circumstances; stopped at any moment, the same call goes on from there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.robustness.circumstances import Circumstances, folder_of, suite_of
from inframind_gym.benchmark.errors import BenchmarkError, StoppedError
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.results import Results, load_results
from inframind_gym.benchmark.runner import outdated, run
from inframind_gym.benchmark.store import delete_results


def produce(
    played: Circumstances,
    names: Sequence[str],
    folder: Path,
    *,
    trace: Path | None,
    workers: int,
    ray_address: str | None = None,
    redo: bool = False,
) -> dict[str, Results]:
    """Play circumstances, as far as that has not been done.

    All folders are looked at before the first sweep.

    Args:
        played: The file of circumstances.
        names: Those that are wanted.
        folder: Of the results folders.
        trace: Recorded arrivals.
        workers: Processes, or actors on Ray.
        ray_address: Address of a Ray cluster.
        redo: Whether results that other code or settings made are deleted and made anew.

    Returns:
        The results by circumstance.

    Raises:
        BenchmarkError: A policy fails, another run uses a folder, or folders hold other results;
            names them all.
        StoppedError: Ctrl-C was pressed; what has finished is kept.
    """
    suites = {name: suite_of(played, name, folder, trace).resolve() for name in names}
    changed = {name: outdated(suite, _where(folder, name)) for name, suite in suites.items()}
    stale = [name for name in names if changed[name]]
    if stale and not redo:
        lines = "".join(f"\n  {_where(folder, name)}: {'; '.join(changed[name])}" for name in stale)
        raise BenchmarkError(
            f"{len(stale)} of {len(names)} results folders are of other code or settings. Let "
            f"--redo delete and make them anew, or choose another --folder.{lines}"
        )
    found = {}
    for name, suite in suites.items():
        say(f"{name}: {played.circumstances[name].what}")
        own = _where(folder, name)
        if name in stale:
            say(f"{own} was made by other code or settings: made anew")
            delete_results(own)
        command = sys.argv[1:]
        if run(suite, own, workers=workers, ray_address=ray_address, command=command).stopped:
            raise StoppedError
        found[name] = load_results(own)
    return found


def _where(folder: Path, name: str) -> Path:
    """The results folder of a circumstance."""
    return folder / folder_of(name)
