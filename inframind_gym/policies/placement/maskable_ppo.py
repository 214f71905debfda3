"""`sb3_maskable_ppo`: a trained network for every GPU and model, played with NumPy alone.

One small network scores every pair (GPU g, model m), another one leaving GPU g alone; the scores
are the logits of a MultiDiscrete action. All weights are shared, so one checkpoint fits every
cluster, whatever its order of GPUs and models. Of a pair it sees the four bits of m on g, the
numbers of g, those of m, those of the model that is awake on g (zeros if none is) and the mean over
all models (`inframind_gym.envs.placement.observation`).
`baselines.placement_network` is the same network in PyTorch; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.envs.placement.context import PlacementContext
from inframind_gym.envs.placement.observation import GPU_FEATURES, MODEL_FEATURES, STATES
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.placement.protocol import BasePlacementPolicy

SHIPPED: Final = Path(__file__).parents[1] / "checkpoints/placement_maskable_ppo"
KIND: Final = "placement_scorer"
PARTS: Final = ("pair", "keep")  # networks of three layers
AROUND: Final = GPU_FEATURES + 2 * MODEL_FEATURES  # of a GPU: its own, its model's, the mean's
INPUTS: Final = {"pair": STATES + MODEL_FEATURES + AROUND, "keep": AROUND}
LAYERS: Final = 3


class Parts(NamedTuple):
    """An observation taken apart; arrays or tensors with any leading axes."""

    bits: Any  # (..., G, M, STATES)
    gpu: Any  # (..., G, GPU_FEATURES)
    model: Any  # (..., M, MODEL_FEATURES)


def take_apart(observations: Any, gpus: int, models: int) -> Parts:
    """Split observations (n, d), NumPy's or PyTorch's."""
    width = STATES * models + GPU_FEATURES
    of_gpus = observations[:, : gpus * width].reshape(-1, gpus, width)
    bits = of_gpus[:, :, : STATES * models].reshape(-1, gpus, models, STATES)
    of_models = observations[:, gpus * width :].reshape(-1, models, MODEL_FEATURES)
    return Parts(bits, of_gpus[:, :, STATES * models :], of_models)


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of a checkpoint."""
    found: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        widths = (INPUTS[part], hidden, hidden, 1)
        for i in range(LAYERS):
            found[f"{part}{i}.weight"] = (widths[i + 1], widths[i])
            found[f"{part}{i}.bias"] = (widths[i + 1],)
    return found


def logits(
    tensors: Mapping[str, NDArray[Any]], observations: NDArray[np.float32], gpus: int, models: int
) -> NDArray[np.float64]:
    """Return the scores of every choice.

    Args:
        tensors: as in `shapes`.
        observations: (n, d).
        gpus: G.
        models: M.

    Returns:
        (n, G, M + 1): leaving the GPU alone first.
    """
    parts = take_apart(observations.astype(np.float64), gpus, models)
    host = parts.bits[..., 0] @ parts.model
    mean = np.broadcast_to(parts.model.mean(axis=1, keepdims=True), host.shape)
    around = np.concatenate([parts.gpu, host, mean], axis=-1)
    wide = np.broadcast_to(around[:, :, None, :], (*parts.bits.shape[:3], AROUND))
    each = np.broadcast_to(parts.model[:, None], (*parts.bits.shape[:3], MODEL_FEATURES))
    pair = _network(tensors, "pair", np.concatenate([parts.bits, each, wide], axis=-1))
    return np.concatenate([_network(tensors, "keep", around), pair[..., 0]], axis=-1)


def _network(
    tensors: Mapping[str, NDArray[Any]], part: str, x: NDArray[np.float64]
) -> NDArray[np.float64]:
    for i in range(LAYERS):
        x = x @ tensors[f"{part}{i}.weight"].T.astype(np.float64) + tensors[f"{part}{i}.bias"]
        x = np.tanh(x) if i < LAYERS - 1 else x
    return x


class ScorerCheckpoint(StrictModel):
    """`config.json` of a checkpoint.

    Attributes:
        kind: "placement_scorer".
        hidden: width of the hidden layers.
        training: settings and length of the training.
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

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: PlacementContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the drawn choices, (n, G)."""
        spec = self.spec
        shape = (spec.num_gpus, spec.num_models)
        # Row by row: a row's bits do not depend on its company.
        scores = np.concatenate([logits(self._tensors, o[None], *shape) for o in observations])
        luck = np.stack(
            [self.generators[row].gumbel(size=scores.shape[1:]) for row in rows.tolist()]
        )
        actions = np.where(contexts.mask, scores + luck, -np.inf).argmax(axis=-1)
        for m in np.flatnonzero(spec.tp > 1).tolist():
            tp = int(spec.tp[m])
            for first in range(0, spec.num_gpus, tp):
                block = actions[:, first : first + tp]
                block[(block == m + 1) & ~(block == m + 1).all(axis=1, keepdims=True)] = 0
        return np.asarray(actions, dtype=np.int64)
