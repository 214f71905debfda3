"""InfraMind (arXiv 2606.11440): planner and executor of a checkpoint, played with NumPy alone.

Checkpoints come from `agents/inframind.py`, which plays them with the same class while it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from inframind_gym.configs import Number, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError
from inframind_gym.policies import Contexts, PolicySpec, models_up
from inframind_gym.policies.checkpoint import (
    CONFIG_FILE,
    SHIPPED,
    Tensors,
    check_shapes,
    fingerprint,
    load,
    part,
)
from inframind_gym.policies.draws import RowwiseDraws, named
from inframind_gym.policies.planner_network import PLAN_DRAWS, NumpyPlanner
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

DRAW_ROUTE: Final = 0  # uses of a row's draws; the parts of a plan follow
SAMPLE: Final = "sample"
LAYER_NORM_EPS: Final = 1e-5

Array = NDArray[Any]


def executor_shapes(models: int, strategies: int, features: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter that chooses routes, as in torch.

    Args:
        models: M.
        strategies: S.
        features: F, numbers of telemetry for each model: 2 (queue depth and latency).
    """
    layers: dict[str, tuple[int, ...]] = {
        "semantic": (128, 2 * EMBED_DIM),  # query and role
        "semantic_norm": (128,),
        "budget": (16, 1),
        "system": (16, models * features),
        "resource": (64, 32),  # budget and system
        "resource_norm": (64,),
        "merge": (128, 192),  # semantic and resource
        "policy": (models * strategies, 128),
    }
    weights = {f"{name}.weight": size for name, size in layers.items()}
    return weights | {f"{name}.bias": size[:1] for name, size in layers.items()}


class Player:
    """Planner and executor on one pool and its tasks, in float64.

    Args:
        tensors: of a checkpoint: `planner.*` and `executor.*`.
        spec: the pool, the tasks and the roles.
        system_state: False: the telemetry is not seen.
    """

    def __init__(self, tensors: Tensors, spec: PolicySpec, *, system_state: bool = True) -> None:
        self.spec, self.system_state = spec, system_state
        self.planner = NumpyPlanner(part(tensors, "planner."))
        executor = part(tensors, "executor.")
        self._w = {name: np.asarray(array, np.float64).T for name, array in executor.items()}
        # The first layer is linear: the roles' part of it is computed once.
        self._of_query, of_role = np.split(self._w["semantic.weight"], 2)
        self._of_role = spec.role_embeddings @ of_role + self._w["semantic.bias"]

    def plans(self, contexts: Contexts, uniforms: Array | None = None) -> NDArray[np.int64]:
        """Return plans (n, 8): topology, agents less one, roles.

        Args:
            contexts: (n,) of queries that have arrived.
            uniforms: (n, 8) numbers in (0, 1) that draw them; None: the likeliest, part by part.
        """
        latent = self.planner.encode(self.spec.task_embeddings[contexts["task"]])
        domain = contexts["domain"].astype(np.int64)
        topology, count, roles = self.planner.plan(latent, domain, uniforms)
        return np.column_stack([topology, count - 1, roles])

    def resource(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return remaining budget and telemetry (n, 1 + M·F) as the executor sees them."""
        resource = observations[:, self.spec.layout.resource].copy()
        if not self.system_state:
            resource[:, 1:] = 0.0
        return resource

    def log_probs(self, resource: NDArray[np.float32], contexts: Contexts) -> Array:
        """Return log-probabilities (n, M·S) of routes; those to models that are down are -inf.

        Args:
            resource: (n, 1 + M·F) of `resource`.
            contexts: (n,) of calls that are ready.
        """
        query = self.spec.task_embeddings[contexts["task"]].astype(np.float64)
        hidden = np.maximum(query @ self._of_query + self._of_role[contexts["role"]], 0.0)
        semantic = self._norm("semantic_norm", hidden)
        x = resource.astype(np.float64)
        paths = [self._relu("budget", x[:, :1]), self._relu("system", x[:, 1:])]
        encoded = self._relu("resource", np.concatenate(paths, axis=1))
        merged = [semantic, self._norm("resource_norm", encoded)]
        hidden = self._relu("merge", np.concatenate(merged, axis=1))
        logits = hidden @ self._w["policy.weight"] + self._w["policy.bias"]
        up = models_up(contexts, self.spec.num_models)
        return log_softmax(np.where(up.repeat(self.spec.num_strategies, axis=1), logits, -np.inf))

    def _relu(self, name: str, x: Array) -> Array:
        out: Array = np.maximum(x @ self._w[f"{name}.weight"] + self._w[f"{name}.bias"], 0.0)
        return out

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + LAYER_NORM_EPS)
        out: Array = scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return out


class InfraMindCheckpoint(BaseModel):
    """Keys of `config.json` that are read.

    Attributes:
        models: aliases, in the order of the actions.
        strategies: names, in the order of the actions.
        system_features: telemetry that it observes.
        system_state: False: it was trained without.
        multiplier: λ; older checkpoints have none.
    """

    models: tuple[str, ...] = Field(min_length=1)
    strategies: tuple[str, ...] = Field(min_length=1)
    system_features: tuple[str, ...]
    system_state: bool
    multiplier: Number | None = None


class InfraMindPolicy(RowwiseDraws):
    """The actions of a checkpoint's planner and executor: the likeliest ones, or drawn.

    The policy is trained to draw. In mode "sample" it shares the calls among the models as in its
    training; the likeliest action sends all alike calls to one model until telemetry says that
    this one is full.

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
        self.folder = Path(checkpoint) if checkpoint else SHIPPED / self.name
        arguments = [checkpoint or "", mode] if mode else [checkpoint] if checkpoint else []
        self.name = named(type(self).name, *arguments)
        self.sample = mode == SAMPLE
        self._tensors, content = load(self.folder)
        source = str(self.folder / CONFIG_FILE)
        self.config = c = validate(content, InfraMindCheckpoint, source=source)
        self.multiplier = c.multiplier
        self.fingerprint = fingerprint(self.folder)  # results of other weights are not these
        self.requires = {"level": "joint", "system_features": list(c.system_features)}
        shapes = executor_shapes(len(c.models), len(c.strategies), len(c.system_features))
        check_shapes(self.folder, self._tensors, {f"executor.{k}": v for k, v in shapes.items()})
        try:
            NumpyPlanner(part(self._tensors, "planner."))
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
        self._player = Player(self._tensors, spec, system_state=self.config.system_state)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the actions (n, 9) of `rows`: a plan or a route, whichever is due."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        plan, route = (np.flatnonzero(due) for due in kinds(contexts))
        uniforms = None
        if len(plan):
            if self.sample:
                uses = range(DRAW_ROUTE + 1, DRAW_ROUTE + 1 + PLAN_DRAWS)
                uniforms = np.stack([self.uniform(rows[plan], use) for use in uses], axis=1)
            actions[plan, :PLAN_ACTIONS] = self._player.plans(contexts[plan], uniforms)
        if len(route):
            resource = self._player.resource(observations[route])
            log_probs = self._player.log_probs(resource, contexts[route])
            if self.sample:
                actions[route, -1] = draw(log_probs, self.uniform(rows[route], DRAW_ROUTE))
            else:
                actions[route, -1] = log_probs.argmax(axis=1)
        self.decisions[rows] += 1
        return actions


class InfraMindPIDPolicy(InfraMindPolicy):
    """The variant with a critic for the cost and a PID-controlled multiplier."""

    name = "inframind_pid"


def kinds(contexts: Contexts) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (n,) which decisions are plans, and which are routes."""
    is_plan = np.asarray(contexts["kind"] == PLAN)
    return is_plan, ~is_plan


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (n, A) of logits (n, A)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def draw(log_probs: Array, uniforms: Array) -> NDArray[np.int64]:
    """Draw one column a row with the probabilities exp(log_probs) (n, A), from (n,) uniforms."""
    edges = np.cumsum(np.exp(log_probs), axis=1)
    below = edges <= (uniforms * edges[:, -1])[:, None]
    return np.asarray(np.minimum(below.sum(axis=1), log_probs.shape[1] - 1), np.int64)
