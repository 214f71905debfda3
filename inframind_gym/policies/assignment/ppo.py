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
from inframind_gym.policies.perceptron import check_layers, checkpoint_folder, forward
from inframind_gym.teams.assignment import rules

SHIPPED: Final = checkpoint.SHIPPED / "assignment_ppo"  # a folder for each form of load
KIND: Final = "assignment_ppo"


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
        self.fingerprint = " ".join(
            checkpoint.fingerprint(checkpoint_folder(form)) for form in forms
        )

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
        return np.asarray(forward(self._tensors, seen).argmax(axis=1))


def _network(folder: Path) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the form of load of a checkpoint, and its weights."""
    where = checkpoint_folder(folder)
    tensors, content = checkpoint.load(where)
    source = where / checkpoint.CONFIG_FILE
    config = validate(content, PpoCheckpoint, source=str(source))
    if config.kind != KIND:
        raise ConfigError(f"{source}: kind is {config.kind!r}, not {KIND!r}")
    size = flat_space(config.load == "queue")[0].shape[0]
    widths = (size, config.hidden, config.hidden, rules.NUM_ACTIONS)
    check_layers(where, tensors, widths)
    return config.load, tensors
