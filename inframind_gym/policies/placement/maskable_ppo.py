"""Plays what `training` has trained: NumPy alone, no torch, no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.placement.protocol import BasePlacementPolicy
from inframind_gym.policies.placement.scorer import logits, shapes
from inframind_gym.simulator.placement.context import PlacementContext, PlacementSpec

SHIPPED: Final = Path(__file__).parents[1] / "checkpoints/placement_maskable_ppo"
KIND: Final = "placement_scorer"


class ScorerCheckpoint(StrictModel):
    """`config.json` of a checkpoint.

    Attributes:
        kind: "placement_scorer".
        hidden: width of the hidden layers.
        training: how it was made.
    """

    kind: str
    hidden: PositiveInt
    training: dict[str, Any]


class MaskablePpoPlacement(BasePlacementPolicy):
    """Draws every GPU's choice from the network's scores of the choices that are open to it.

    It was trained to draw: GPUs that look alike have the same scores, and the best choice alone
    would send all of them after the same model. Groups that are not complete are left alone.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    name = "sb3_maskable_ppo"

    def __init__(self, folder: str | None = None) -> None:
        where = SHIPPED if folder is None else Path(folder)
        where = where / "checkpoint" if (where / "checkpoint").is_dir() else where
        self._tensors, content = checkpoint.load(where)
        source = where / checkpoint.CONFIG_FILE
        self.config = validate(content, ScorerCheckpoint, source=str(source))
        if self.config.kind != KIND:
            raise ConfigError(f"{source}: kind is {self.config.kind!r}, not {KIND!r}")
        checkpoint.check_shapes(where, self._tensors, shapes(self.config.hidden))
        self.fingerprint = checkpoint.fingerprint(where)

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """One generator a row."""
        super().reset(spec, seeds)
        self._rng = [np.random.default_rng(seed) for seed in seeds]

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: PlacementContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See the class; (n, G)."""
        spec = self.spec
        shape = (spec.num_gpus, spec.num_models)
        # Row by row: a row's bits do not depend on its company.
        scores = np.concatenate([logits(self._tensors, o[None], *shape) for o in observations])
        luck = np.stack([self._rng[row].gumbel(size=scores.shape[1:]) for row in rows.tolist()])
        actions = np.where(contexts.mask, scores + luck, -np.inf).argmax(axis=-1)
        for m in np.flatnonzero(spec.tp > 1).tolist():
            tp = int(spec.tp[m])
            for first in range(0, spec.num_gpus, tp):
                block = actions[:, first : first + tp]
                block[(block == m + 1) & ~(block == m + 1).all(axis=1, keepdims=True)] = 0
        return np.asarray(actions, dtype=np.int64)
