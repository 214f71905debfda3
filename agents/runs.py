"""Repeatable trainings: seeds by use, the state that a training resumes from, and its metrics.

Metrics are JSON Lines always, W&B and TensorBoard if asked. Names are CleanRL's where it has one
(`charts/episodic_return`, `losses/approx_kl`, `charts/SPS`).
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError, require
from inframind_gym.files import replace_text
from inframind_gym.simulator import SIMULATOR_VERSION

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

METRICS_FILE: Final = "metrics.jsonl"
WANDB_RUN: Final = "wandb-run.txt"  # id of the run, which a training that is resumed goes on with
STEP: Final = "global_step"
ADAM_STATE: Final = ("exp_avg", "exp_avg_sq", "step")


def use_one_thread() -> None:
    """Let torch and BLAS use one thread: the matrices are small."""
    import torch

    torch.set_num_threads(1)
    importlib.import_module("threadpoolctl").threadpool_limits(1)


def run_of(config: StrictModel, seed: int) -> dict[str, Any]:
    """Return what decides a training's result: configuration, seed and simulator version."""
    return {
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "simulator_version": SIMULATOR_VERSION,
    }


def check_resume(
    out: Path, saved: Mapping[str, Any], run: Mapping[str, Any], *, resume: bool
) -> None:
    """Check that a training may go on with what its folder holds.

    Args:
        out: the folder, named in the errors.
        saved: what the training there was made from.
        run: what this one is made from; see `run_of`.
        resume: whether it is to go on.

    Raises:
        ConfigError: it is not to go on, or the two are not the same training; names the first key
            in which they differ.
    """
    if not resume:
        raise ConfigError(
            f"{out}: holds a training; add --resume to go on with it, or choose another --out."
        )
    wanted = json.loads(json.dumps(run))
    difference = _difference({key: saved.get(key) for key in wanted}, wanted)
    if difference:
        raise ConfigError(
            f"{out}: the training there has another {difference}; resume it with its own "
            "configuration and seed, or choose another --out."
        )


def _difference(saved: Any, wanted: Any, path: str = "") -> str | None:
    """Return the first key in which two configurations differ, with both values."""
    if saved == wanted:
        return None
    if isinstance(saved, dict) and isinstance(wanted, dict):
        for key in {**saved, **wanted}:
            found = _difference(saved.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
    return f"{path} ({saved!r}, not {wanted!r})"


def weights_of(net: nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of a network's weights, by their names."""
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}


def load_weights(net: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give a network the weights that `weights_of` returned."""
    import torch

    net.load_state_dict({name: torch.tensor(arrays[name]) for name in net.state_dict()})


def state_of(net: nn.Module, optimizer: Optimizer) -> dict[str, NDArray[Any]]:
    """Return copies of the weights, and of Adam's moments by "adam.<moment>.<parameter>"."""
    return weights_of(net) | {
        f"adam.{moment}.{name}": np.atleast_1d(optimizer.state[parameter][moment].numpy().copy())
        for name, parameter in net.named_parameters()
        for moment in ADAM_STATE
        if parameter in optimizer.state
    }


def load_state(net: nn.Module, optimizer: Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give a network and its optimiser what `state_of` returned."""
    import torch

    load_weights(net, arrays)
    for name, parameter in net.named_parameters():
        if f"adam.step.{name}" in arrays:
            state = {of: torch.tensor(arrays[f"adam.{of}.{name}"]) for of in ADAM_STATE}
            optimizer.state[parameter] = state | {"step": state["step"].reshape(())}


def seed_of(*key: int) -> int:
    """Return a seed in [0, 2^63) for a key, such as (seed of the training, use, update)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


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
            run_id = out / WANDB_RUN
            if not run_id.is_file():
                run_id.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
            self._wandb = require("wandb", "--wandb", "track").init(
                project="inframind",
                name=out.name,
                id=run_id.read_text(encoding="utf-8"),
                resume="allow",
                dir=str(out),
                mode=os.environ.get("WANDB_MODE", "offline"),
                config=dict(config),
            )
        if tensorboard:
            writer = require("torch.utils.tensorboard", "--tensorboard", "track").SummaryWriter
            self._tensorboard = writer(str(out))

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
        replace_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

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
    """Return the lines of a metrics file, without one that was cut off while it was written."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(dict(json.loads(text)))
        except json.JSONDecodeError:
            continue
    return lines
