"""Metrics of a training: JSON Lines always, W&B and TensorBoard if asked.

Names are CleanRL's where it has one (`charts/episodic_return`, `losses/approx_kl`, `charts/SPS`).
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

METRICS_FILE: Final = "metrics.jsonl"
STEP: Final = "global_step"


class Tracker:
    """Writes metrics; a context manager.

    Args:
        out: folder of the training.
        config: of the training, noted by W&B.
        wandb: also to Weights & Biases; offline unless the environment variable WANDB_MODE says
            otherwise.
        tensorboard: also as TensorBoard's event files, in `out`.
    """

    def __init__(
        self,
        out: Path,
        config: Mapping[str, Any],
        *,
        wandb: bool = False,
        tensorboard: bool = False,
    ) -> None:
        self.path = out / METRICS_FILE
        out.mkdir(parents=True, exist_ok=True)
        self._waiting: list[dict[str, float]] = []
        self._wandb: Any = None
        self._tensorboard: Any = None
        if wandb:
            module: Any = importlib.import_module("wandb")
            mode = os.environ.get("WANDB_MODE", "offline")
            self._wandb = module.init(
                project="inframind", name=out.name, dir=str(out), mode=mode, config=dict(config)
            )
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._tensorboard = SummaryWriter(str(out))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note metrics at a step; `flush` writes them."""
        self._waiting.append({STEP: step, **metrics})

    def drop(self) -> None:
        """Forget what has not been written."""
        self._waiting.clear()

    def flush(self) -> None:
        """Write what was noted."""
        with self.path.open("a", encoding="utf-8") as file:
            for line in self._waiting:
                file.write(json.dumps(line) + "\n")
        for line in self._waiting:
            step = int(line[STEP])
            if self._wandb is not None:
                self._wandb.log({k: v for k, v in line.items() if k != STEP}, step=step)
            if self._tensorboard is not None:
                for name, value in line.items():
                    if name != STEP:
                        self._tensorboard.add_scalar(name, value, step)
        self._waiting.clear()

    def rewind(self, step: int) -> None:
        """Drop the lines after a step, which a training that is resumed writes again."""
        if not self.path.is_file():
            return
        kept = [line for line in read_metrics(self.path) if line[STEP] <= step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def close(self) -> None:
        """Write what is left and end."""
        self.flush()
        if self._wandb is not None:
            self._wandb.finish()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of a metrics file; one that was cut off while it was written is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(dict(json.loads(text)))
        except json.JSONDecodeError:
            continue
    return lines
