"""`sb3_maskable_ppo`: a network that sb3-contrib has trained, played with NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import NonNegative, PositiveInt, StrictModel, validate
from inframind_gym.envs.token_budget.context import TokenBudgetContext
from inframind_gym.envs.token_budget.observation import OBSERVATION_SIZE
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.perceptron import check_layers, checkpoint_folder, forward
from inframind_gym.policies.token_budget.protocol import BaseTokenBudgetPolicy
from inframind_gym.teams.token_budget.rules import NUM_ACTIONS

SHIPPED: Final = checkpoint.SHIPPED / "token_budget_maskable_ppo"
KIND: Final = "token_budget_perceptron"


class PerceptronCheckpoint(StrictModel):
    """`config.json` of an exported policy."""

    kind: Literal["token_budget_perceptron"]
    activation: Literal["tanh", "relu"]  # between the layers
    layers: tuple[PositiveInt, ...]  # widths, the observation's first and the actions' last
    price: NonNegative  # points per token of the training
    training: dict[str, Any]  # how it was made


class MaskablePpoPolicy(BaseTokenBudgetPolicy):
    """The best open action of an exported network.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.name = "sb3_maskable_ppo" if folder is None else f"sb3_maskable_ppo:{folder}"
        self.folder = SHIPPED if folder is None else checkpoint_folder(Path(folder))
        self._tensors, content = checkpoint.load(self.folder)
        where = self.folder / checkpoint.CONFIG_FILE
        self.config = validate(content, PerceptronCheckpoint, source=str(where))
        layers = self.config.layers
        if len(layers) < 2 or (layers[0], layers[-1]) != (OBSERVATION_SIZE, NUM_ACTIONS):
            raise ConfigError(
                f"{where}: layers: {list(layers)} must start with {OBSERVATION_SIZE} (the "
                f"observation) and end with {NUM_ACTIONS} (the actions)"
            )
        check_layers(self.folder, self._tensors, layers)
        self.fingerprint = checkpoint.fingerprint(self.folder)

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: TokenBudgetContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the open action of the largest logit, (n,)."""
        found = forward(self._tensors, observations, self.config.activation)
        return np.asarray(np.where(contexts.mask, found, -np.inf).argmax(axis=1), np.int64)
