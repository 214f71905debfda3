"""InfraMind (arXiv 2606.11440): planner and executor of a checkpoint, played with NumPy alone.

The executor's first layer sees two embeddings of 384 numbers. It is linear, so query and role are
projected apart, each once, and added. In float64 an action does not depend on the rows beside it.
Checkpoints come from `agents/inframind.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from inframind_gym.configs import Number, PositiveInt, StrictModel, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError
from inframind_gym.policies import Contexts, PolicySpec, models_up
from inframind_gym.policies.checkpoint import (
    CONFIG_FILE,
    SHIPPED,
    check_shapes,
    fingerprint,
    load,
    part,
)
from inframind_gym.policies.draws import RowwiseDraws, named
from inframind_gym.policies.planner_network import NumpyPlanner
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

DRAW_ROUTE: Final = 0  # uses of a row's draws; the parts of a plan follow
SAMPLE: Final = "sample"

SEMANTIC: Final = 128
BUDGET: Final = 16
SYSTEM: Final = 16
RESOURCE: Final = 64
HIDDEN: Final = 128
LAYER_NORM_EPS: Final = 1e-5

Array = NDArray[Any]
Size = tuple[int, ...]


@dataclass(frozen=True)
class ExecutorShape:
    """Sizes of the executor's network: the published one, or one of its ablations.

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
        dual = _parameters(replace(self, dual_pathway=True)._trunk())
        each = 2 * EMBED_DIM + self.resource_size + 3 + HIDDEN  # with bias and LayerNorm
        return round((sum(map(math.prod, dual.values())) - HIDDEN) / each)

    def layers(self) -> dict[str, Size]:
        """Return name -> (outputs, inputs) of every linear layer, (n,) of a LayerNorm."""
        heads = {"policy": (self.num_logits, HIDDEN), "value": (1, HIDDEN)}
        if self.cost_critic:
            heads["cost_value"] = (1, HIDDEN)
        return self._trunk() | heads

    def shapes(self) -> dict[str, Size]:
        """Return name -> shape of every parameter, as in torch."""
        return _parameters(self.layers())

    def _trunk(self) -> dict[str, Size]:
        wide = self.first_size
        if not self.dual_pathway:
            return {
                "semantic": (wide, 2 * EMBED_DIM + self.resource_size),
                "semantic_norm": (wide,),
                "merge": (HIDDEN, wide),
            }
        return {
            "semantic": (wide, 2 * EMBED_DIM),
            "semantic_norm": (wide,),
            "budget": (BUDGET, 1),
            "system": (SYSTEM, self.resource_size - 1),
            "resource": (RESOURCE, BUDGET + SYSTEM),
            "resource_norm": (RESOURCE,),
            "merge": (HIDDEN, wide + RESOURCE),
        }


class Executor:
    """The executor's forward pass.

    Args:
        weights: name -> array, as `ExecutorShape.shapes` says.
        shape: which executor.
        roles: (R, 384) embeddings of the roles.
    """

    def __init__(self, weights: Mapping[str, Array], shape: ExecutorShape, roles: Array) -> None:
        self.shape = shape
        # Transposed once: (inputs, outputs), contiguous.
        self._w = {
            name: np.ascontiguousarray(np.asarray(array, np.float64).T)
            for name, array in weights.items()
        }
        first = self._w["semantic.weight"]
        self._of_query = np.ascontiguousarray(first[:EMBED_DIM])
        self._of_resource = np.ascontiguousarray(first[2 * EMBED_DIM :])
        self._roles = np.asarray(roles, np.float64) @ first[EMBED_DIM : 2 * EMBED_DIM]
        self._roles += self._w["semantic.bias"]

    def project(self, queries: Array) -> Array:
        """Return the part (n, first_size) of the first layer for embeddings (n, 384) of queries."""
        out: Array = np.asarray(queries, np.float64) @ self._of_query
        return out

    def __call__(self, projected: Array, roles: NDArray[np.int64], resource: Array) -> Array:
        """Return the logits of all pairs of model and strategy.

        Args:
            projected: (n, first_size) from `project`.
            roles: (n,) indices of the roles.
            resource: (n, 1 + M·F) remaining budget and telemetry as observed.

        Returns:
            (n, M·S).
        """
        w, shape = self._w, self.shape
        hidden = projected + self._roles[roles]
        resource = np.asarray(resource, np.float64)
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
        share = 1.0 / x.shape[1]
        centred = x - np.add.reduce(x, axis=1, keepdims=True) * share
        variance = np.add.reduce(np.square(centred), axis=1, keepdims=True) * share
        scaled = centred / np.sqrt(variance + LAYER_NORM_EPS)
        out: Array = scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return out


class _Network(StrictModel):
    num_features: PositiveInt = 2
    joint_head: bool = True
    dual_pathway: bool = True
    cost_critic: bool = False


class InfraMindCheckpoint(BaseModel):
    """Keys of `config.json` that are read.

    Attributes:
        models: aliases, in the order of the actions.
        strategies: names, in the order of the actions.
        network: of `ExecutorShape`.
        system_features: telemetry that it observes.
        system_state: False: it was trained without.
        multiplier: λ; older checkpoints have none.
    """

    models: tuple[str, ...] = Field(min_length=1)
    strategies: tuple[str, ...] = Field(min_length=1)
    network: _Network
    system_features: tuple[str, ...]
    system_state: bool
    multiplier: Number | None = None


class InfraMindPolicy(RowwiseDraws):
    """The likeliest actions of a checkpoint's planner and executor.

    Args:
        checkpoint: folder; without it the shipped checkpoint of this policy's name.
        mode: "sample" draws actions, as in training; without it nothing is drawn.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or of another network.
    """

    name = "inframind"

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        super().__init__()
        if mode not in (None, SAMPLE):
            raise ConfigError(f"mode is {mode!r}; it is {SAMPLE!r} or left out.")
        self.folder = SHIPPED / self.name if checkpoint is None else Path(checkpoint)
        arguments = [a for a in (checkpoint, mode) if a is not None]
        self.name = named(type(self).name, *arguments)
        self.sample = mode == SAMPLE
        if checkpoint is None and not self.folder.is_dir():
            raise ConfigError(
                f"no checkpoint of {self.name} is shipped. Train one: python -m agents.train "
                f"--config {self.name} --out FOLDER, and play {self.name}:FOLDER/best"
            )
        tensors, content = load(self.folder)
        source = str(self.folder / CONFIG_FILE)
        self.config = validate(content, InfraMindCheckpoint, source=source)
        self.multiplier = self.config.multiplier
        self.fingerprint = fingerprint(self.folder)  # results of other weights are not these
        self.shape = ExecutorShape(
            len(self.config.models),
            len(self.config.strategies),
            **self.config.network.model_dump(exclude_unset=True),
        )
        self.requires = {
            "level": "joint",
            "system_features": list(self.config.system_features),
        }
        self._executor_weights = part(tensors, "executor.")
        check_shapes(self.folder, self._executor_weights, self.shape.shapes())
        try:
            self._planner = NumpyPlanner(part(tensors, "planner."))
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"{self.folder}: its planner is not whole: {error}.") from None

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the pool or the level is not the one that the policy was trained for.
        """
        super().reset(spec, seeds)
        if tuple(spec.models) != self.config.models:
            raise ConfigError(
                f"{self.folder}: was trained for the models {', '.join(self.config.models)}; "
                f"this pool has {', '.join(spec.models)}. Train a policy for it: agents/train.py."
            )
        if spec.level != "joint" or not len(spec.task_embeddings):
            raise ConfigError(
                f"policy {self.name!r} plans and routes: make the environment with "
                'level="joint", observation="index" and what else `requires` says.'
            )
        self._executor = Executor(self._executor_weights, self.shape, spec.role_embeddings)
        self._projected = self._executor.project(spec.task_embeddings)
        self._latents = self._planner.encode(spec.task_embeddings)
        self._plans = np.zeros((len(self._latents), PLAN_ACTIONS), np.int64)  # likeliest, once made
        self._is_planned = np.zeros(len(self._latents), np.bool_)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the actions (n, 9) of `rows`: a plan or a route, whichever is due."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        is_plan = contexts["kind"] == PLAN
        if is_plan.any():
            actions[is_plan, :PLAN_ACTIONS] = self._plan(contexts[is_plan], rows[is_plan])
        if not is_plan.all():
            due = ~is_plan
            actions[due, PLAN_ACTIONS] = self._route(observations[due], contexts[due], rows[due])
        self.decisions[rows] += 1
        return actions

    def _plan(self, contexts: Contexts, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        task = contexts["task"].astype(np.int64)
        domain = contexts["domain"].astype(np.int64)
        if self.sample:
            uses = range(DRAW_ROUTE + 1, DRAW_ROUTE + 1 + PLAN_ACTIONS)
            uniforms = np.stack([self.uniform(rows, use) for use in uses], axis=1)
            return _as_action(self._planner.plan(self._latents[task], domain, uniforms))
        new = ~self._is_planned[task]
        if new.any():
            plans = self._planner.plan(self._latents[task[new]], domain[new])
            self._plans[task[new]] = _as_action(plans)
            self._is_planned[task[new]] = True
        return self._plans[task]

    def _route(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        resource = observations[:, self.spec.layout.resource].copy()
        if not self.config.system_state:
            resource[:, 1:] = 0.0
        logits = self._executor(self._projected[contexts["task"]], contexts["role"], resource)
        up = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, axis=1)
        logits[~up] = -np.inf
        if self.sample:
            return draw(log_softmax(logits), self.uniform(rows, DRAW_ROUTE))
        return np.asarray(logits.argmax(axis=1), np.int64)


class InfraMindDualCriticPolicy(InfraMindPolicy):
    """The variant with a critic for the cost."""

    name = "inframind_dual_critic"


class InfraMindPIDPolicy(InfraMindPolicy):
    """The variant with a PID-controlled multiplier."""

    name = "inframind_pid"


def _as_action(
    plan: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    topology, count, roles = plan
    return np.column_stack([topology, count - 1, roles])


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (n, A) of logits (n, A)."""
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    out: Array = shifted - np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))
    return out


def draw(log_probs: Array, uniforms: Array) -> NDArray[np.int64]:
    """Draw one column a row with the probabilities exp(log_probs) (n, A), from (n,) uniforms."""
    edges = np.cumsum(np.exp(log_probs), axis=1)
    below = edges <= (uniforms * edges[:, -1])[:, None]
    return np.asarray(np.minimum(below.sum(axis=1), log_probs.shape[1] - 1), np.int64)


def _parameters(layers: Mapping[str, Size]) -> dict[str, Size]:
    """Return the shapes of the weight and the bias of every layer, a norm's weight being (n,)."""
    shapes: dict[str, Size] = {}
    for name, size in layers.items():
        shapes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return shapes
