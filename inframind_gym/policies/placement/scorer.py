"""What the trained placement network sees of one GPU and one model, and how it scores the pair.

One small network scores every pair (GPU g, model m), another one leaving GPU g alone; the scores
are the logits of a MultiDiscrete action. All weights are shared, so one checkpoint fits every
cluster, whatever its order of GPUs and models. `network.py` is the same in PyTorch; a test compares
them.

Of a pair it sees the four bits of m on g, the numbers of g, those of m, those of the model that is
awake on g (zeros if none is) and the mean over all models (`inframind_gym.envs.placement.observation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.observation import GPU_FEATURES, MODEL_FEATURES, STATES

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
    """Names and shapes of the tensors of a checkpoint."""
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
    """Scores of every choice.

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
