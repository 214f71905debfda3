"""`sb3_ppo`: a trained network, played with NumPy alone.

Two hidden layers with tanh score the eight actions; the best one is taken. The observation is the
"flat" one. There is a checkpoint for each form of load, `python -m baselines.assignment_ppo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.envs.assignment.config import Load
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec
from inframind_gym.envs.assignment.observation import flat_space, write_flat
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.assignment.protocol import BaseAssignmentPolicy, Ints
from inframind_gym.teams.assignment import rules

SHIPPED: Final = checkpoint.SHIPPED / "assignment_ppo"  # a folder for each form of load
KIND: Final = "assignment_ppo"
LAYERS: Final = 3


class PpoCheckpoint(StrictModel):
    """`config.json` of a checkpoint.

    Attributes:
        kind: "assignment_ppo".
        hidden: width of the hidden layers.
        load: form of the environment.
        training: settings and length of the training.
    """

    kind: str
    hidden: PositiveInt
    load: Load
    training: dict[str, Any]


class PpoPolicy(BaseAssignmentPolicy):
    """The best action by the network of a training with Stable-Baselines3's PPO.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    name = "sb3_ppo"

    def __init__(self, folder: str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        forms = [SHIPPED / "window", SHIPPED / "queue"] if self._folder is None else [self._folder]
        self._networks = dict(map(_network, forms))
        self.fingerprint = " ".join(checkpoint.fingerprint(_checkpoint(form)) for form in forms)

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Take the network of the form of load.

        Raises:
            ConfigError: the checkpoint is of the other form.
        """
        super().reset(spec, seeds)
        if spec.config.load not in self._networks:
            raise ConfigError(
                f"{self._folder}: was trained for load {next(iter(self._networks))!r}, not "
                f"{spec.config.load!r}; train one with python -m baselines.assignment_ppo "
                f"--load {spec.config.load}"
            )
        self._tensors = self._networks[spec.config.load]

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the best actions, (n,)."""
        seen = write_flat(context, self.spec.config.queues)
        return np.concatenate([logits(self._tensors, one[None]).argmax(axis=1) for one in seen])


def logits(tensors: dict[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the scores of the actions, (n, 8), of observations (n, d)."""
    for i in range(LAYERS):
        x = x.astype(np.float64) @ tensors[f"layer{i}.weight"].T + tensors[f"layer{i}.bias"]
        x = np.tanh(x) if i < LAYERS - 1 else x
    return np.asarray(x)


def _checkpoint(folder: Path) -> Path:
    return folder / "checkpoint" if (folder / "checkpoint").is_dir() else folder


def _network(folder: Path) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the form of load of a checkpoint, and its weights."""
    where = _checkpoint(folder)
    tensors, content = checkpoint.load(where)
    source = where / checkpoint.CONFIG_FILE
    config = validate(content, PpoCheckpoint, source=str(source))
    if config.kind != KIND:
        raise ConfigError(f"{source}: kind is {config.kind!r}, not {KIND!r}")
    size = flat_space(config.load == "queue")[0].shape[0]
    widths = (size, config.hidden, config.hidden, rules.NUM_ACTIONS)
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(LAYERS):
        shapes[f"layer{i}.weight"] = (widths[i + 1], widths[i])
        shapes[f"layer{i}.bias"] = (widths[i + 1],)
    checkpoint.check_shapes(where, tensors, shapes)
    return config.load, tensors
