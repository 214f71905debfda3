"""Forward passes in NumPy: what a trained policy needs to act, without torch.

The executor of `spec/inframind.md` §2.2. Its first layer sees two embeddings of 384 numbers; since
it is linear, query and role are projected apart, each once, and added. In float64 an action does
not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.layout import EMBED_DIM

Array = NDArray[Any]

SEMANTIC: Final = 128
BUDGET: Final = 16
SYSTEM: Final = 16
RESOURCE: Final = 64
HIDDEN: Final = 128
LAYER_NORM_EPS: Final = 1e-5


@dataclass(frozen=True)
class ExecutorShape:
    """Which executor: the spec's, or one of its ablations.

    Args:
        num_models: M.
        num_strategies: S.
        num_features: numbers of telemetry for each model: 2 (queue depth and latency).
        joint_head: one head of M·S logits; otherwise two independent heads of M and S logits,
            whose sums are the logits of the pairs.
        dual_pathway: semantics and resources are encoded apart; otherwise one layer takes all, as
            wide as gives the same number of parameters.
        cost_critic: a second value head, for the cost.
    """

    num_models: int = 5
    num_strategies: int = 3
    num_features: int = 2
    joint_head: bool = True
    dual_pathway: bool = True
    cost_critic: bool = False

    @property
    def resource_size(self) -> int:
        """Numbers beside the embeddings: remaining budget and telemetry, 11."""
        return 1 + self.num_models * self.num_features

    @property
    def num_logits(self) -> int:
        """Outputs of the policy head."""
        if self.joint_head:
            return self.num_models * self.num_strategies
        return self.num_models + self.num_strategies

    @property
    def first_size(self) -> int:
        """Outputs of the layer that takes the embeddings."""
        if self.dual_pathway:
            return SEMANTIC
        apart = _count(self._dual_trunk())
        each = 2 * EMBED_DIM + self.resource_size + 3 + HIDDEN  # with bias and LayerNorm
        return round((apart - HIDDEN) / each)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter, as in torch: a weight is (outputs, inputs)."""
        shapes = self._dual_trunk() if self.dual_pathway else self._single_trunk()
        shapes |= _linear("policy", HIDDEN, self.num_logits) | _linear("value", HIDDEN, 1)
        return shapes | (_linear("cost_value", HIDDEN, 1) if self.cost_critic else {})

    def _dual_trunk(self) -> dict[str, tuple[int, ...]]:
        system = self.num_models * self.num_features
        return (
            _linear("semantic", 2 * EMBED_DIM, SEMANTIC)
            | _norm("semantic_norm", SEMANTIC)
            | _linear("budget", 1, BUDGET)
            | _linear("system", system, SYSTEM)
            | _linear("resource", BUDGET + SYSTEM, RESOURCE)
            | _norm("resource_norm", RESOURCE)
            | _linear("merge", SEMANTIC + RESOURCE, HIDDEN)
        )

    def _single_trunk(self) -> dict[str, tuple[int, ...]]:
        wide = self.first_size
        inputs = 2 * EMBED_DIM + self.resource_size
        return (
            _linear("semantic", inputs, wide)
            | _norm("semantic_norm", wide)
            | _linear("merge", wide, HIDDEN)
        )


class Executor:
    """The executor's forward pass.

    Args:
        weights: name -> array, as `ExecutorShape.shapes` says.
        shape: which executor.
        roles: (R, 384) embeddings of the roles.
        dtype: of all arithmetic.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        shape: ExecutorShape,
        roles: Array,
        dtype: type[np.floating[Any]] = np.float64,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        # Transposed once: (inputs, outputs), contiguous.
        self._w = {
            name: np.ascontiguousarray(np.asarray(array, dtype).T)
            for name, array in weights.items()
        }
        first = self._w["semantic.weight"]
        self._of_query = np.ascontiguousarray(first[:EMBED_DIM])
        self._of_resource = np.ascontiguousarray(first[2 * EMBED_DIM :])
        self._roles = np.asarray(roles, dtype) @ first[EMBED_DIM : 2 * EMBED_DIM]
        self._roles += self._w["semantic.bias"]

    def project(self, queries: Array) -> Array:
        """The queries' part (n, first_size) of the first layer, from their embeddings (n, 384)."""
        out: Array = np.asarray(queries, self.dtype) @ self._of_query
        return out

    def __call__(self, projected: Array, roles: NDArray[np.int64], resource: Array) -> Array:
        """Logits of all pairs of model and strategy.

        Args:
            projected: (n, first_size) from `project`.
            roles: (n,) indices of the roles.
            resource: (n, 1 + M·F) remaining budget and telemetry as observed.

        Returns:
            (n, M·S).
        """
        w, shape = self._w, self.shape
        hidden = projected + self._roles[roles]
        resource = np.asarray(resource, self.dtype)
        if not shape.dual_pathway:
            hidden = hidden + resource @ self._of_resource
        hidden = self._norm("semantic_norm", np.maximum(hidden, 0.0))
        if shape.dual_pathway:
            budget = np.maximum(self._linear("budget", resource[:, :1]), 0.0)
            system = np.maximum(self._linear("system", resource[:, 1:]), 0.0)
            both = np.concatenate([budget, system], axis=1)
            encoded = np.maximum(self._linear("resource", both), 0.0)
            hidden = np.concatenate([hidden, self._norm("resource_norm", encoded)], axis=1)
        hidden = np.maximum(self._linear("merge", hidden), 0.0)
        logits: Array = hidden @ w["policy.weight"] + w["policy.bias"]
        if not shape.joint_head:
            models, strategies = logits[:, : shape.num_models], logits[:, shape.num_models :]
            pairs = models[:, :, None] + strategies[:, None, :]
            logits = pairs.reshape(len(pairs), shape.num_models * shape.num_strategies)
        return logits

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = x @ self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return out

    def _norm(self, name: str, x: Array) -> Array:
        share = self.dtype(1.0 / x.shape[1])
        centred = x - np.add.reduce(x, axis=1, keepdims=True) * share
        variance = np.add.reduce(np.square(centred), axis=1, keepdims=True) * share
        scaled = centred / np.sqrt(variance + self.dtype(LAYER_NORM_EPS))
        out: Array = scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return out


def log_softmax(logits: Array) -> Array:
    """Logarithms of the probabilities (n, A) that belong to logits (n, A)."""
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    out: Array = shifted - np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))
    return out


def draw(log_probs: Array, uniforms: Array) -> NDArray[np.int64]:
    """One column a row, drawn with the probabilities exp(log_probs) (n, A), from (n,) uniforms."""
    edges = np.cumsum(np.exp(log_probs), axis=1)
    below = edges <= (uniforms * edges[:, -1])[:, None]
    return np.asarray(np.minimum(below.sum(axis=1), log_probs.shape[1] - 1), np.int64)


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())
