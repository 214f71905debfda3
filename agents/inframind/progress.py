"""How far a training has come, on disk: a folder `state-<round>` for the last finished round.

It holds weights, optimisers, the best weights so far and all numbers. A new one is written whole
before the old one goes, so a training can be killed at any moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from agents.inframind.config import ValidationConfig
from agents.resume import check_resume
from inframind_gym.policies.checkpoint import CONFIG_FILE, MODEL_FILE, load, save

Arrays = Mapping[str, NDArray[Any]]

_STATE: Final = "state-"
_OWN: Final = "progress"  # keys of the state's configuration
_RUN: Final = "run"
_LEARNER: Final = "learner"


@dataclass
class Progress:
    """Counters of a training and the verdicts of its validations.

    Attributes:
        out: folder of the training.
        round: rounds that are finished.
        decisions: made so far.
        episodes: queries finished so far.
        seconds: spent in rounds.
        best: best value of the validation; None before the first.
        best_round: finished rounds when it was reached.
        bad_epochs: validations since then.
        lr_bad_epochs: validations since then or since the learning rates fell.
        lr_scale: of the learning rates.
        stopped: whether early stopping has ended the training.
    """

    out: Path
    round: int = 0
    decisions: int = 0
    episodes: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_round: int = 0
    bad_epochs: int = 0
    lr_bad_epochs: int = 0
    lr_scale: float = 1.0
    stopped: bool = False

    @classmethod
    def open(cls, out: Path, run: Mapping[str, Any], *, resume: bool) -> Progress:
        """Begin a training in a folder, or go on with the one that it holds.

        Args:
            out: the folder.
            run: what a training must share with the one it resumes: configuration and seed.
            resume: whether there may be one; where there is none, it begins.

        Raises:
            ConfigError: there is one and `resume` is false, or it is another one.
        """
        progress = cls(out)
        state = progress._last()
        if state is None:
            return progress
        _, numbers = load(state)
        check_resume(out, numbers[_RUN], run, resume=resume)
        for key, value in numbers[_OWN].items():
            setattr(progress, key, value)
        return progress

    def load(self, restore: Callable[[Arrays, Mapping[str, Any]], None]) -> Arrays | None:
        """Hand the saved arrays and numbers to a learner; returns the arrays, None at the start."""
        state = self._last()
        if state is None:
            return None
        arrays, numbers = load(state)
        restore(arrays, numbers[_LEARNER])
        return arrays

    def save(
        self, arrays: Arrays, numbers: Mapping[str, Any], extra: Arrays, run: Mapping[str, Any]
    ) -> None:
        """Write the state of the learner and these counters."""
        content = {_OWN: self.as_dict(), _LEARNER: dict(numbers), _RUN: dict(run)}
        save(self.out / f"{_STATE}{self.round:06d}", {**arrays, **extra}, content)
        for folder in self._states()[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def judge(self, value: float, config: ValidationConfig) -> bool:
        """Take note of a validation: early stopping, and the learning rates on a plateau.

        Returns:
            Whether it is the best so far.
        """
        if self.best is None or value > self.best:
            self.best, self.best_round = value, self.round
            self.bad_epochs = self.lr_bad_epochs = 0
            return True
        self.bad_epochs += 1
        self.lr_bad_epochs += 1
        if self.lr_bad_epochs > config.lr_patience:
            self.lr_scale *= config.lr_factor
            self.lr_bad_epochs = 0
        self.stopped = self.bad_epochs >= config.early_stopping
        return False

    def as_dict(self) -> dict[str, Any]:
        """The counters as JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "out"}

    def _last(self) -> Path | None:
        states = self._states()
        return states[-1] if states else None

    def _states(self) -> list[Path]:
        return sorted(
            folder
            for folder in self.out.glob(f"{_STATE}*")
            if (folder / MODEL_FILE).is_file() and (folder / CONFIG_FILE).is_file()
        )
