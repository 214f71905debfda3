"""Metrics of a training: JSON Lines always, W&B and TensorBoard if asked.

Names are CleanRL's where it has one (`charts/episodic_return`, `losses/approx_kl`, `charts/SPS`).
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import ConfigError

METRICS_FILE: Final = "metrics.jsonl"
WANDB_RUN: Final = "wandb-run.txt"  # id of the run, which a training that is resumed goes on with
STEP: Final = "global_step"


class Tracker:
    """A writer of metrics, and a context manager.

    Args:
        out: folder of the training.
        config: of the training, noted by W&B.
        wandb: also to Weights & Biases; offline unless the environment variable WANDB_MODE says
            otherwise.
        tensorboard: also as TensorBoard's event files, in `out`.

    Raises:
        ConfigError: a package that is asked for is not installed.
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
            self._wandb = _needed("wandb", "track").init(
                project="inframind",
                name=out.name,
                id=_run_id(out / WANDB_RUN),
                resume="allow",
                dir=str(out),
                mode=os.environ.get("WANDB_MODE", "offline"),
                config=dict(config),
            )
        if tensorboard:
            self._tensorboard = _needed("torch.utils.tensorboard", "track").SummaryWriter(str(out))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note metrics at a step; `flush` writes them."""
        self._waiting.append({STEP: step, **metrics})

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
        if self._tensorboard is not None:  # readers drop what follows
            self._tensorboard.close()
            writer = type(self._tensorboard)
            self._tensorboard = writer(str(self.path.parent), purge_step=step + 1)
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


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed: pip install -c constraints.txt -e '.[{extra}]'"
        ) from None


def _run_id(path: Path) -> str:
    """Return the run's id, made up when it is first asked for."""
    if not path.is_file():
        path.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file, without one that was cut off while it was written."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(dict(json.loads(text)))
        except json.JSONDecodeError:
            continue
    return lines
