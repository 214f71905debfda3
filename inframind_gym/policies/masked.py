"""Players of networks that sb3-contrib's MaskablePPO has trained on a team, with NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import NonNegative, PositiveInt, StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.perceptron import ACTIVATIONS, check_layers, checkpoint_folder, forward


class PerceptronCheckpoint(StrictModel):
    """`config.json` of an exported policy."""

    kind: str
    activation: str  # between the layers
    layers: tuple[PositiveInt, ...]  # widths, the observation's first and the actions' last
    price: NonNegative | None = None  # of a token in the training, where there was one
    training: dict[str, Any]  # how it was made


class _Masked(Protocol):
    mask: NDArray[np.bool_]


class MaskedPerceptron:
    """The best open action of an exported network; a mixin before a family's base class.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    kind: ClassVar[str]
    shipped: ClassVar[Path]
    sizes: ClassVar[tuple[int, int]]  # of an observation, and number of actions

    def __init__(self, folder: str | None = None) -> None:
        self.name = "sb3_maskable_ppo" if folder is None else f"sb3_maskable_ppo:{folder}"
        self.folder = self.shipped if folder is None else checkpoint_folder(Path(folder))
        self._tensors, content = checkpoint.load(self.folder)
        where = self.folder / checkpoint.CONFIG_FILE
        self.config = validate(content, PerceptronCheckpoint, source=str(where))
        layers, (first, last) = self.config.layers, self.sizes
        if self.config.kind != self.kind or self.config.activation not in ACTIVATIONS:
            raise ConfigError(
                f"{where}: kind is {self.config.kind!r} with {self.config.activation!r}, not "
                f"{self.kind!r} with one of {', '.join(ACTIVATIONS)}"
            )
        if len(layers) < 2 or (layers[0], layers[-1]) != (first, last):
            raise ConfigError(
                f"{where}: layers: {list(layers)} must start with {first} (the observation) and "
                f"end with {last} (the actions)"
            )
        check_layers(self.folder, self._tensors, layers)
        self.fingerprint = checkpoint.fingerprint(self.folder)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: _Masked, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the open action of the largest logit, (n,)."""
        found = forward(self._tensors, observations, self.config.activation)
        return np.asarray(np.where(contexts.mask, found, -np.inf).argmax(axis=1), np.int64)
