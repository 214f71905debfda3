"""Sides of a comparison: one measuring process for each revision, asked in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import PACKAGE, git
from inframind_gym.progress import say

_WORKS: Final = Path(__file__).with_name("works.py")
_ONE_THREAD: Final = {f"{of}_NUM_THREADS": "1" for of in ("OMP", "OPENBLAS", "MKL")}


@dataclass(frozen=True, slots=True)
class Job:
    """Work to be timed.

    Attributes:
        work: Name of one of `works.WORKS`.
        arguments: Its arguments, JSON types.
        most: Chunks that are measured at most, without a warm-up if that is one.
    """

    work: str
    arguments: Mapping[str, Any]
    most: int = 1_000


class SideError(BenchmarkError):
    """A side cannot do a piece of work: its revision has no such thing, or the work failed."""


class Side:
    """A process that times work in one revision of the package; a context manager.

    Args:
        root: Folder that has the package.
        kernels: Folder of its compiled code; None: where the package puts it.
    """

    def __init__(self, root: Path, kernels: Path | None = None) -> None:
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": str(root)}
        if kernels is not None:
            environment["NUMBA_CACHE_DIR"] = str(kernels)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            package = Path(self._answer()["package"])
            if not package.is_relative_to(root):
                raise SideError(
                    f"the revision in {root} cannot be measured: {package} is imported."
                )
        except BaseException:
            self.close()
            raise

    def prepare(self, job: Job) -> None:
        """Make what a job works on, and warm it up.

        Raises:
            SideError: That is not possible.
        """
        request = {"prepare": job.work, "arguments": job.arguments, "warm": job.most > 1}
        self._ask(request)

    def cost_s(self) -> float:
        """Do a chunk of the prepared work; return the CPU seconds that one unit of it costs.

        Raises:
            SideError: It failed.
        """
        answer = self._ask({})
        return float(answer["cpu_s"] / answer["count"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: there is no answer either
            print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise SideError(answer["error"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(
                f"the measuring process ended with status {self._process.wait()}; its own words, "
                "if any, are above. A revision may need other packages than are installed here."
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process; the second time does nothing."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def costs_s(sides: Sequence[Side], job: Job, repeats: int) -> list[list[float]]:
    """Time a job on all sides in turn: A B A B, so that all meet the same states of the machine.

    Returns:
        CPU seconds that one unit of the work costs, a list a side, in the order of time.

    Raises:
        SideError: A side cannot do it.
    """
    for side in sides:
        side.prepare(job)
    rounds = [[side.cost_s() for side in sides] for _ in range(min(repeats, job.most))]
    return [list(costs) for costs in zip(*rounds, strict=True)]


def checkout(ref: str) -> tuple[str, Path]:
    """Return the commit of a git revision, and a folder with its files.

    The folder is in the user's cache and stays, with the revision's compiled code: files keep their
    path and the commit's time, by which compiled code is found again.

    Raises:
        BenchmarkError: This is no checkout, or git has no such revision.
    """
    root = PACKAGE.parent
    if not (root / ".git").exists():
        raise BenchmarkError(
            f"--against compares two revisions of a git checkout, and {PACKAGE} is an installed "
            "copy. Clone the repository and run the command in it."
        )
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if not commit:
        raise BenchmarkError(f"git in {root} has no revision {ref!r}; `git log` and `git tag` do.")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inframind_gym/speed"
    folder = base / commit
    if not folder.is_dir():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as new:
            packed, files = Path(new, "files.tar"), Path(new, "files")
            if git(root, "archive", f"--output={packed}", commit) is None:
                raise BenchmarkError(f"`git archive {commit}` failed in {root}.")
            with tarfile.open(packed) as archive:
                archive.extractall(files, filter="data")
            files.rename(folder)
        say(f"{ref} is in {folder}, where its compiled code will be found again")
    return commit, folder
