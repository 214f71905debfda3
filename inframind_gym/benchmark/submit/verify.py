"""Cells of a submission, played again: they must be met bit for bit."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inframind_gym.benchmark.cell_workers import run_cells
from inframind_gym.benchmark.errors import BenchmarkError, PolicyFailedError
from inframind_gym.benchmark.lines import unseal
from inframind_gym.benchmark.submit.apart import inside, playing
from inframind_gym.benchmark.submit.check import Checked, check
from inframind_gym.progress import ProgressReport

SHARE = 3  # one cell of so many is played again


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was played again.

    Attributes:
        checked: The submission.
        played: Cells that were played again, and were met.
        seed: Of their choice.
    """

    checked: Checked
    played: int
    seed: int

    def __str__(self) -> str:
        one = self.checked.submission
        what = f"{one.suite}/{one.name}: {len(self.checked.cells)} cells, complete; "
        if one.live:
            return what + "live, not replayable; the log of its calls is there"
        return what + f"{self.played} played again, all equal (choice {self.seed})"


def verify(
    folder: Path,
    *,
    full: bool = False,
    trust: bool = False,
    seed: int | None = None,
    workers: int = 1,
) -> Verdict:
    """Check a submission, and play a random third of its cells again.

    Args:
        folder: Of the submission.
        full: Whether all cells are played.
        trust: Whether code of the submission's own is run.
        seed: Of the choice; None: nobody can know it beforehand.
        workers: Processes.

    Raises:
        InfraMindError: It cannot be accepted; says why.
    """
    checked = check(folder, "run" if trust else "refuse")
    seed = secrets.randbits(32) if seed is None else seed
    cells = list(checked.cells)
    count = len(cells) if full else math.ceil(len(cells) / SHARE)
    chosen = random.Random(seed).sample(cells, count)
    if checked.submission.live:
        chosen = []
    wrong = _differing(checked, chosen, workers)
    if wrong:
        stated, package = checked.expected.header, ("numpy", "numba")
        versions = ", ".join(f"{name} {stated['settings'][name]}" for name in package)
        raise BenchmarkError(
            f"{len(wrong)} of {count} cells have other records when they are played again: "
            f"{'; '.join(sorted(wrong)[:3])}. Made with {versions}; choice {seed}."
        )
    return Verdict(checked, len(chosen), seed)


def _differing(checked: Checked, chosen: Sequence[Any], workers: int) -> list[str]:
    """Play cells again; returns those that differ, in words."""
    expected, policy = checked.expected, checked.submission.policy
    kind, suite, layout = expected.kind, expected.suite, expected.kind.layout(expected.header)
    if expected.plays != policy:
        suite = suite.model_copy(update={"policies": (expected.plays,)})
    ids = {replace(cell, policy=expected.plays): expected.ids[cell] for cell in chosen}
    of = {expected.ids[cell]: cell for cell in chosen}

    def fail(error: PolicyFailedError) -> None:
        raise BenchmarkError(f"{policy} cannot play: {error.reason}")

    wrong = []
    total = sum(suite.length(cell) for cell in ids)
    with (
        inside(checked.folder),
        playing(kind.kind, policy),
        ProgressReport(total, 0, "replay", kind.unit) as report,
    ):
        for results in run_cells(
            kind, suite, ids, workers=workers, progress=report.advance, failed=fail
        ):
            for one in results:
                cell = of.pop(one.cell_id)
                again = {**unseal(one.line), "policy": policy}
                if not checked.cells[cell].is_met_by(again, layout):
                    score = kind.score
                    was, now = checked.cells[cell].line[score], again[score]
                    wrong.append(f"{cell.where} ({score} {was:.4g}, played again {now:.4g})")
    return wrong + [f"{cell.where} (does not end)" for cell in of.values()]
