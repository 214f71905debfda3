"""The executor while it learns: forward and backward pass in NumPy.

What it acts with is `executor_inference.py`; the same network written plainly in torch, which tests
hold both to, is `tests/agents/torch_executor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.inframind.executor_inference import ExecutorShape, log_softmax
from agents.inframind.layers import LayerNorm, Linear, Parameters, ReLU
from inframind_gym.envs.routing.layout import EMBED_DIM

Array = NDArray[Any]
Indices = NDArray[np.int64]


class Decisions(NamedTuple):
    """What n decisions about Q queries are made from.

    Attributes:
        queries: (Q, 384) embeddings, each once.
        selection: (n, Q + R) two ones a row: whose query, and whose role.
        resource: (n, 1 + M·F) remaining budget and telemetry.
    """

    queries: Array
    selection: Array
    resource: Array


class ExecutorOutput(NamedTuple):
    """What the executor says of n decisions.

    Attributes:
        log_probs: (n, M·S) of all pairs of model and strategy.
        value: (n,) what it expects of the reward.
        cost_value: (n,) what it expects of the cost; None without a cost critic.
    """

    log_probs: Array
    value: Array
    cost_value: Array | None


class ExecutorGradient:
    """The executor and its gradient.

    Args:
        shape: which executor.
        weights: name -> array, as `ExecutorShape.shapes` says.
        roles: (R, 384) embeddings of the roles.
        dtype: of all arithmetic.

    Attributes:
        parameters: the weights, and their gradient after `backward`.
    """

    def __init__(
        self,
        shape: ExecutorShape,
        weights: Mapping[str, Array],
        roles: Array,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self.shape = shape
        self.parameters = Parameters({name: weights[name] for name in shape.shapes()}, dtype)
        self._roles = np.asarray(roles, dtype)
        weight, d_weight = self.parameters["semantic.weight"]
        # [e_q | e_r] W = e_q W_q + e_r W_r: embeddings that decisions share are multiplied once.
        parts = (slice(EMBED_DIM), slice(EMBED_DIM, 2 * EMBED_DIM), slice(2 * EMBED_DIM, None))
        self._of_query, self._of_role, self._of_resource = (weight[:, part] for part in parts)
        self._d_query, self._d_role, self._d_resource = (d_weight[:, part] for part in parts)
        self._bias, self._d_bias = self.parameters["semantic.bias"]
        layers = {name.split(".")[0] for name in shape.shapes()} - {"semantic"}
        norms = {name for name in layers if name.endswith("_norm")}
        self._linear = {name: Linear(self.parameters, name) for name in layers - norms}
        self._norm = {name: LayerNorm(self.parameters, name) for name in norms}
        self._relu = {name: ReLU() for name in ("semantic", "merge", "both", "resource")}
        self._decisions = Decisions(np.zeros(0), np.zeros(0), np.zeros(0))

    def decisions(
        self, queries: Array, query_index: Indices, role_index: Indices, resource: Array
    ) -> Decisions:
        """Prepare n decisions.

        Args:
            queries: (Q, 384) embeddings, each once.
            query_index: (n,) which of them a decision is about.
            role_index: (n,) whose role decides.
            resource: (n, 1 + M·F) remaining budget and telemetry.
        """
        dtype = self.parameters.vector.dtype
        rows = np.arange(len(query_index))
        selection = np.zeros((len(rows), len(queries) + len(self._roles)), dtype)
        selection[rows, query_index] = 1.0
        selection[rows, len(queries) + role_index] = 1.0
        return Decisions(np.asarray(queries, dtype), selection, np.asarray(resource, dtype))

    def forward(self, decisions: Decisions) -> ExecutorOutput:
        """Judge n decisions."""
        self._decisions = decisions
        queries, selection, resource = decisions
        linear, shape = self._linear, self.shape
        projected = np.empty((selection.shape[1], len(self._bias)), queries.dtype)
        np.matmul(queries, self._of_query.T, out=projected[: len(queries)])
        np.matmul(self._roles, self._of_role.T, out=projected[len(queries) :])
        hidden = selection @ projected
        hidden += self._bias
        if not shape.dual_pathway:
            hidden += resource @ self._of_resource.T
        hidden = self._norm["semantic_norm"](self._relu["semantic"](hidden))
        if shape.dual_pathway:
            budget, system = linear["budget"](resource[:, :1]), linear["system"](resource[:, 1:])
            both = self._relu["both"](np.concatenate([budget, system], axis=1))
            encoded = self._relu["resource"](linear["resource"](both))
            hidden = np.concatenate([hidden, self._norm["resource_norm"](encoded)], axis=1)
        hidden = self._relu["merge"](linear["merge"](hidden))
        logits = linear["policy"](hidden)
        if not shape.joint_head:
            models, strategies = logits[:, : shape.num_models], logits[:, shape.num_models :]
            logits = (models[:, :, None] + strategies[:, None, :]).reshape(len(logits), -1)
        cost_value = linear["cost_value"](hidden)[:, 0] if shape.cost_critic else None
        return ExecutorOutput(log_softmax(logits), linear["value"](hidden)[:, 0], cost_value)

    def backward(self, d_logits: Array, d_value: Array, d_cost_value: Array | None = None) -> None:
        """Write the gradient of a loss to `parameters.gradient`.

        Args:
            d_logits: (n, M·S) of the loss with respect to the logits of the pairs.
            d_value: (n,) with respect to `value`.
            d_cost_value: (n,) with respect to `cost_value`, where there is one.
        """
        queries, selection, resource = self._decisions
        linear, shape = self._linear, self.shape
        if not shape.joint_head:
            pairs = d_logits.reshape(-1, shape.num_models, shape.num_strategies)
            d_logits = np.concatenate([pairs.sum(axis=2), pairs.sum(axis=1)], axis=1)
        d_hidden = linear["policy"].backward(d_logits)
        d_hidden += linear["value"].backward(d_value[:, None])
        if d_cost_value is not None:
            d_hidden += linear["cost_value"].backward(d_cost_value[:, None])
        d_hidden = linear["merge"].backward(self._relu["merge"].backward(d_hidden))
        if shape.dual_pathway:
            d_encoded = self._norm["resource_norm"].backward(d_hidden[:, shape.first_size :])
            d_both = linear["resource"].backward(self._relu["resource"].backward(d_encoded))
            d_both = self._relu["both"].backward(d_both)
            split = linear["budget"].outputs
            linear["budget"].stop(d_both[:, :split])
            linear["system"].stop(d_both[:, split:])
            d_hidden = d_hidden[:, : shape.first_size]
        d_hidden = self._relu["semantic"].backward(self._norm["semantic_norm"].backward(d_hidden))
        d_projected = selection.T @ d_hidden
        np.matmul(d_projected[: len(queries)].T, queries, out=self._d_query)
        np.matmul(d_projected[len(queries) :].T, self._roles, out=self._d_role)
        np.add.reduce(d_hidden, axis=0, out=self._d_bias)
        if not shape.dual_pathway:
            np.matmul(d_hidden.T, resource, out=self._d_resource)


def initial_weights(shape: ExecutorShape, seed: int) -> dict[str, NDArray[np.float32]]:
    """First weights: orthogonal, √2 in the trunk, 0.01 in the policy head, 1 in the value heads.

    Biases are 0; layer norms do not stretch.
    """
    rng = np.random.default_rng(seed)
    gains = {"policy": 0.01, "value": 1.0, "cost_value": 1.0}
    weights = {}
    for name, size in shape.shapes().items():
        layer, kind = name.split(".")
        if len(size) == 2:
            weights[name] = orthogonal(rng, *size) * gains.get(layer, 2.0**0.5)
        else:
            weights[name] = np.full(size, float(layer.endswith("_norm") and kind == "weight"))
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """A random matrix whose rows, or columns if there are fewer, are orthonormal (Saxe 2014)."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return np.asarray(q if rows >= columns else q.T)
