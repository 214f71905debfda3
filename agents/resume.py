"""Repeatable trainings: one thread, seeds by use, and the state that a training resumes from."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.simulator import SIMULATOR_VERSION

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

ADAM_STATE: Final = ("exp_avg", "exp_avg_sq", "step")


def use_one_thread() -> None:
    """Let torch and BLAS use one thread: the matrices are small."""
    import torch

    torch.set_num_threads(1)
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except ImportError:  # then the environment (OPENBLAS_NUM_THREADS) decides
        return
    threadpoolctl.threadpool_limits(1)


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


def adam_state(net: nn.Module, optimizer: Optimizer) -> dict[str, NDArray[Any]]:
    """Return copies of Adam's moments and step counts, by "<moment>.<parameter>"."""
    return {
        f"{moment}.{name}": np.atleast_1d(optimizer.state[parameter][moment].numpy().copy())
        for name, parameter in net.named_parameters()
        for moment in ADAM_STATE
        if parameter in optimizer.state
    }


def load_adam(net: nn.Module, optimizer: Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give an optimiser of `net` the state that `adam_state` returned."""
    import torch

    for name, parameter in net.named_parameters():
        if f"step.{name}" in arrays:
            moments = {moment: torch.tensor(arrays[f"{moment}.{name}"]) for moment in ADAM_STATE}
            optimizer.state[parameter] = moments | {"step": moments["step"].reshape(())}


def seed_of(*key: int) -> int:
    """Return a seed in [0, 2^63) for a key, such as (seed of the training, use, update)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
