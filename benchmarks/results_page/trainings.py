"""Trains what has no checkpoint yet, several at a time; a killed one is continued."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from agents.sources import AGENTS, sources_digest
from benchmarks.results_page.plan import EntryConfig
from inframind_gym.benchmark.errors import BenchmarkError, StoppedError
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.suite import absolute, name_of
from inframind_gym.files import replace_text

FINISHED: Final = "trained.txt"  # in a checkpoint's folder: what has finished there, see `mark`
BEGUN: Final = "training.txt"  # until then: the command that has begun there
LOG: Final = "train.log"
SOURCES: Final = (*AGENTS, "baselines")  # folders on which a result rests
_STATES: Final = ("state", "state-*", "last")  # what agents.train goes on from, by algorithm
_POLL_S: Final = 0.2
_REPORT_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Training:
    """One training.

    Attributes:
        entry: Name of its entry.
        title: What it is called in messages.
        command: Its command line.
        folder: What it writes.
        after: Entries whose trainings must be finished before.
    """

    entry: str
    title: str
    command: str
    folder: Path
    after: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether this very command has run to its end, with the code and configurations of now."""
        with suppress(OSError):
            return (self.folder / FINISHED).read_text(encoding="utf-8") == self.mark
        return False

    @property
    def stale(self) -> str:
        """Why it can neither be taken as it is nor be continued; "" if it can."""
        if (self.folder / FINISHED).exists():
            return "" if self.finished else "was trained by another command or by other code"
        if self._of_another_command:
            return "holds a training of another command, which cannot be continued"
        for pattern in _STATES:
            for state in sorted(self.folder.glob(f"{pattern}/config.json"))[-1:]:
                if _code_of(state) != sources_digest():
                    return "holds a training of other code, which cannot be continued"
        return ""

    @property
    def _of_another_command(self) -> bool:
        """Whether another command has begun here, and left more than what it said."""
        try:
            begun = (self.folder / BEGUN).read_text(encoding="utf-8")
        except OSError:
            return False  # begun before there was such a note, or not at all
        left = {path.name for path in self.folder.iterdir()} - {BEGUN, LOG}
        return bool(left) and begun != f"{self.command}\n"

    @property
    def mark(self) -> str:
        """The command, and a digest of all that its result depends on."""
        return f"{self.command}\n{sources_digest(SOURCES)}\n"


def trainings_of(entries: Sequence[EntryConfig], workloads: Sequence[str]) -> list[Training]:
    """Every training of the entries, in their order; entries may share one.

    Args:
        entries: The entries.
        workloads: Names or paths of the suites' workloads. Folders have their names.

    Raises:
        BenchmarkError: Entries share a folder but not a command, or one names a workload that is
            not among `workloads`.
    """
    given = {name_of(workload): absolute(workload) for workload in workloads}
    result: dict[str, Training] = {}
    for entry in entries:
        if entry.training is None:
            continue
        own = entry.workloads_of(tuple(given))
        for workload in own if entry.by_workload else ("",):
            for seed in entry.training_seeds:
                folder = entry.folder(seed, workload)
                source = shlex.quote(given[workload]) if workload else ""
                names = {"seed": seed, "folder": folder, "workload": source}
                title = " ".join(filter(None, (entry.name, workload, f"seed {seed}")))
                command = entry.training.command.format(**names)
                after = entry.training.after
                result.setdefault(folder, Training(entry.name, title, command, Path(folder), after))
                if result[folder].command != command:
                    raise BenchmarkError(
                        f"{entry.name} and {result[folder].entry} train different policies into "
                        f"{folder}: give each a folder of its own."
                    )
    return list(result.values())


def train(
    trainings: Sequence[Training],
    *,
    at_once: int,
    root: Path,
    redo: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Run the trainings that have not finished.

    Args:
        trainings: What is to be trained, in this order as far as `after` allows.
        at_once: Most that run side by side; each is kept to one thread.
        root: Folder in which the commands run.
        redo: Whether trainings of another command or other code, finished or not, are deleted and
            made anew.
        stop: Asked several times a second; "yes" ends all of them (they are continued by the next
            call).

    Returns:
        How many have been run.

    Raises:
        BenchmarkError: A training has failed, with the end of its log; or, before anything begins,
            some are of another command or other code and `redo` is false; names them all.
        StoppedError: `stop` said so.
    """
    waiting = [training for training in trainings if not training.finished]
    stale = [(training.folder, why) for training in waiting if (why := training.stale)]
    if stale and not redo:
        those = ",\n".join(f"{folder} {why}" for folder, why in stale)
        them = "it" if len(stale) == 1 else "them"
        raise BenchmarkError(f"{those}: let --redo train {them} anew, or delete {them}.")
    for folder, why in stale:
        say(f"{folder} {why}: trained anew")
        shutil.rmtree(folder)
    total, done = len(waiting), 0
    if total:
        kept = len(trainings) - total
        say(f"training: {total} to go, {kept} finished before, {at_once} at a time")
    running: list[_Running] = []
    reported = time.monotonic()
    try:
        while waiting or running:
            owed = {training.entry for training in (*waiting, *(r.training for r in running))}
            for training in list(waiting):
                if len(running) < at_once and not owed & set(training.after):
                    waiting.remove(training)
                    running.append(_Running(training, root))
            if not running:
                stuck = ", ".join(training.title for training in waiting)
                raise BenchmarkError(f"these trainings wait for each other: {stuck}.")
            if stop():
                raise StoppedError
            time.sleep(_POLL_S)
            for one in [one for one in running if one.ended]:
                running.remove(one)
                one.conclude()
                done += 1
                say(f"training: {one.training.title} took {one.spent_s:.0f} s ({done} of {total})")
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                for one in running:
                    say(f"training: {one.training.title}, {one.spent_s:.0f} s: {one.last_line}")
    finally:
        for one in running:
            one.kill()
    return done


def _code_of(state: Path) -> str:
    """Digest of the code that a training last ran on, from its state's configuration, or ""."""
    with suppress(OSError, ValueError):
        content = json.loads(state.read_text(encoding="utf-8"))
        codes = content.get("code") or content.get("progress", {}).get("code") or [""]
        return str(codes[-1])
    return ""


class _Running:
    """A training's process, with its output in the log of its folder."""

    def __init__(self, training: Training, root: Path) -> None:
        self.training = training
        self._began = time.monotonic()
        training.folder.mkdir(parents=True, exist_ok=True)
        replace_text(training.folder / BEGUN, f"{training.command}\n")
        self._log: TextIO = (training.folder / LOG).open("a", encoding="utf-8")
        words = shlex.split(training.command)
        if words and words[0] == "python":
            words[0] = sys.executable
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        say(f"training: {training.title} begins, log: {training.folder / LOG}")
        try:
            self._process = subprocess.Popen(
                words,
                cwd=root,
                env={**os.environ, **threads},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone: we decide
            )
        except OSError as error:
            self._log.close()
            raise BenchmarkError(
                f"{training.title}: {words[:1]} cannot be started: {error.strerror}."
            ) from None

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def last_line(self) -> str:
        return (self._tail(1) or ["nothing yet"])[-1]

    def _tail(self, lines: int) -> list[str]:
        with suppress(OSError):
            text = (self.training.folder / LOG).read_text(encoding="utf-8", errors="replace")
            return [line for line in text.splitlines() if line.strip()][-lines:]
        return []

    def conclude(self) -> None:
        """Note that it has finished.

        Raises:
            BenchmarkError: It has failed.
        """
        self._log.close()
        if self._process.returncode:
            end = "\n".join(self._tail(12))
            raise BenchmarkError(
                f"the training of {self.training.title} ended with status "
                f"{self._process.returncode} ({self.training.command}). The end of "
                f"{self.training.folder / LOG}:\n{end}"
            )
        replace_text(self.training.folder / FINISHED, self.training.mark)
        (self.training.folder / BEGUN).unlink(missing_ok=True)

    def kill(self) -> None:
        """End it with all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._log.close()
