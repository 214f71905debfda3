"""Players of planner networks, with NumPy alone: the planner, InfraMind, MasRouter.

The trained planner is `agents/planner_network.py` (PyTorch), which explains it. Here every latent
is its mean, so that a checkpoint is played without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from inframind_gym.configs import Number
from inframind_gym.envs.core import Bools, Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, shortened
from inframind_gym.policies.base import Contexts, JointPolicy, draw_from, models_up, with_room
from inframind_gym.policies.checkpoint import (
    SHIPPED,
    Tensors,
    check_shapes,
    fingerprint,
    load_as,
    part,
)
from inframind_gym.policies.simple import expected_answer_s
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import MAX_AGENTS
from inframind_gym.tasks import DOMAINS, EMBED_DIM

Weights = Mapping[str, NDArray[np.floating[Any]]]

MODE_TEMPERATURE: Final = 0.8
ROLE_TEMPERATURE: Final = 0.5
COUNT_SPREAD: Final = 0.7  # agents: standard deviation of the count around 6 * sigmoid

DEFAULT_CHECKPOINT: Final = SHIPPED / "masrouter"
SAMPLE, LIKELIEST = "sample", "likeliest"
PLAYED: Final = {"system_state", "predicted_latency", "draw_count"}  # arguments of `Player`
# Length of an answer over the mean: middle of the ranges measured on the published testbed.
STRATEGY_LENGTH: Final = {"Flash": 0.94, "Concise": 0.87, "DeepThink": 1.19}
TRAIN: Final = "Train one with `inframind train masrouter`"
LAYER_NORM_EPS: Final = 1e-5

DRAW_MODE, DRAW_COUNT, DRAW_ROLE = range(3)  # columns of a plan's draws; of six roles the last
PLAN_DRAWS: Final = DRAW_ROLE + MAX_AGENTS
DRAW_ROUTE: Final = 0  # InfraMind: use of a row's draws; the parts of a plan follow
DRAW_MODEL: Final = PLAN_DRAWS  # MasRouter: uses of a query's draws, 0..7 are the plan's
DRAW_STRATEGY: Final = PLAN_DRAWS + MAX_AGENTS  # and after the agents' models, one a node

ROLE_START: Final = np.array([roles_of(domain)[0] for domain in DOMAINS])
ROLE_DOMAIN: Final = np.array([DOMAINS.index(role.domain) for role in ROLES])


class Candidates:
    """A selector: candidates given by texts, and the cosine of each with a fused context.

    Args:
        weights: of the torch module of the same name, with `prefix`.
    """

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights = weights = subset(weights, prefix)
        self.latents = encode(weights, "vae.", weights["texts"])  # (n, 64)
        self._keys = linear(weights, "fusion.key", self.latents)
        self._values = linear(weights, "fusion.value", self.latents)
        self._units = unit(self.latents)

    def scores(self, context: Floats, mask: Bools | None = None) -> Floats:
        """Return cosines (B, n) of contexts (B, 64) and candidates, -inf where `mask` is false."""
        attention = linear(self._weights, "fusion.query", context) @ self._keys.T
        attention /= math.sqrt(context.shape[-1])
        if mask is not None:
            attention[~mask] = -np.inf
        fused = linear(self._weights, "fusion.output", softmax(attention) @ self._values)
        scores: Floats = unit(context + fused) @ self._units.T
        if mask is not None:
            scores[~mask] = -np.inf
        return scores

    def context(self, *parts: Floats) -> Floats:
        """Return the context (B, 64) made of latents (B, 64) of what is known."""
        return linear(self._weights, "context", np.concatenate(parts, axis=-1))


class NumpyPlanner:
    """The planner of a checkpoint.

    Args:
        weights: `PlannerNet`'s, without the prefix "planner."

    Raises:
        KeyError: a tensor is missing; ValueError, IndexError: one has another shape.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = subset(weights, "")
        self.modes = Candidates(weights, "collab_mode.")
        self.roles = Candidates(weights, "role_selector.")
        latent = self.encode(np.zeros((1, EMBED_DIM)))
        self.plan(latent, np.zeros(1, np.int64))  # a wrong tensor fails here, not in play

    def encode(self, query: NDArray[np.floating[Any]]) -> Floats:
        """Return latents (B, 64) of queries (B, 384)."""
        return encode(self._weights, "query_encoder.", np.asarray(query, np.float64))

    def plan(
        self,
        latent: Floats,  # (B, 64) of `encode`
        domain: Ints,  # (B,) whose roles are chosen from
        uniforms: Floats | None = None,  # (B, 8) of topology, count, six roles; None: the likeliest
        *,
        draw_count: bool = True,  # False: the likeliest agent count even where the rest is drawn
    ) -> tuple[Ints, Ints, Ints]:
        """Return plans of B queries.

        Returns:
            Topology (B,), agent count (B,) and roles (B, 6), counted within the domain's; 0 beyond
            the count.
        """
        u = None if uniforms is None else uniforms.T
        modes = self.modes.scores(latent) / MODE_TEMPERATURE
        topology = pick(modes, None if u is None else u[DRAW_MODE])
        score = linear(self._weights, "num_agents.difficulty", latent)
        counts = np.arange(1, MAX_AGENTS + 1, dtype=np.float64)
        near = -0.5 * ((counts - MAX_AGENTS / (1.0 + np.exp(-score))) / COUNT_SPREAD) ** 2
        count = 1 + pick(near, None if u is None or not draw_count else u[DRAW_COUNT])
        mode = self.modes.latents[topology]
        mask = domain[:, None] == ROLE_DOMAIN
        history = np.repeat(self._weights["role_selector.start"][None], len(mode), axis=0)
        total = np.zeros_like(mode)
        roles = np.zeros((len(latent), MAX_AGENTS), np.int64)
        for k in range(int(count.max(initial=0))):
            more = np.flatnonzero(k < count)  # queries that have a further agent
            context = self.roles.context(latent[more], mode[more], history[more])
            logits = self.roles.scores(context, mask[more]) / ROLE_TEMPERATURE
            role = pick(logits, None if u is None else u[DRAW_ROLE + k, more])
            roles[more, k] = role - ROLE_START[domain[more]]
            total[more] += self.roles.latents[role]
            history[more] = total[more] / (k + 1)
        return topology, count, roles


def subset(weights: Weights, prefix: str) -> dict[str, Floats]:
    """Return the weights whose names start with `prefix`, without it, as float64."""
    return {name: np.asarray(value, np.float64) for name, value in part(weights, prefix).items()}


def encode(weights: Weights, prefix: str, x: Floats) -> Floats:
    """Return the mean latents (n, 64) that the encoder `prefix` gives embeddings (n, 384)."""
    hidden = np.maximum(linear(weights, f"{prefix}encoder", x), 0.0)
    return linear(weights, f"{prefix}mu", hidden)


def linear(weights: Weights, name: str, x: Floats) -> Floats:
    """Apply the linear layer `name` to x (n, d)."""
    out: Floats = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return out


def unit(x: Floats) -> Floats:
    """Scale rows to length 1; rows shorter than 1e-12 stay short, as in torch."""
    squares = np.add.reduce(np.square(x), axis=-1, keepdims=True)
    out: Floats = x / np.maximum(np.sqrt(squares), 1e-12)
    return out


def softmax(logits: Floats) -> Floats:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
    powers /= np.add.reduce(powers, axis=-1, keepdims=True)
    return powers


def pick(logits: Floats, uniforms: Floats | None) -> Ints:
    """Return one index a row of logits (B, n), drawn with `uniforms` (B,) or the likeliest."""
    if uniforms is None:
        return np.asarray(logits.argmax(axis=-1), np.int64)
    return draw_from(softmax(logits), uniforms)


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities (n, A) of logits (n, A)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    out: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def draw(log_probs: Floats, uniforms: Floats | None, temperature: float = 1.0) -> Ints:
    """Return one column a row of log-probabilities (n, A), drawn with `uniforms` (n,).

    Without them it is the likeliest column; a temperature below 1 makes draws sharper.
    """
    if uniforms is None:
        return np.asarray(log_probs.argmax(axis=1), np.int64)
    if temperature != 1.0:
        log_probs = log_softmax(log_probs / temperature)
    return draw_from(np.exp(log_probs), uniforms)


def executor_shapes(
    models: int, strategies: int, system: int, *, dual_pathway: bool = True, joint_head: bool = True
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter that chooses routes, as in torch.

    Arguments are those of `agents.inframind.ExecutorNet`.
    """
    texts = 2 * EMBED_DIM  # query and role
    layers: dict[str, tuple[int, ...]] = {
        "semantic": (128, texts if dual_pathway else texts + 1 + system),
        "semantic_norm": (128,),
        "merge": (128, 192 if dual_pathway else 128),  # semantic and resource
        "policy": (models * strategies if joint_head else models + strategies, 128),
    }
    if dual_pathway:
        layers |= {
            "budget": (16, 1),
            "system": (16, system),
            "resource": (64, 32),  # budget and system
            "resource_norm": (64,),
        }
    weights = {f"{name}.weight": size for name, size in layers.items()}
    return weights | {f"{name}.bias": size[:1] for name, size in layers.items()}


class Player:
    """Planner and executor on one pool and its tasks, in float64.

    Args:
        tensors: of a checkpoint: `planner.*` and `executor.*`.
        spec: the pool, the tasks and the roles.
        system_state: False: the telemetry is not seen.
        predicted_latency: the predicted latency of every route replaces telemetry.
        draw_count: draw the agent count where the rest of a plan is drawn.
    """

    def __init__(
        self,
        tensors: Tensors,
        spec: PolicySpec,
        *,
        system_state: bool = True,
        predicted_latency: bool = False,
        draw_count: bool = True,
    ) -> None:
        self.spec, self.system_state, self.draw_count = spec, system_state, draw_count
        self.predicted_latency = predicted_latency
        self.planner = NumpyPlanner(part(tensors, "planner."))
        executor = part(tensors, "executor.")
        self._w = {name: np.asarray(array, np.float64).T for name, array in executor.items()}
        # The first layer is linear: the roles' part of it is computed once.
        cuts = [EMBED_DIM, 2 * EMBED_DIM]  # a single pathway has the resource there, too
        self._of_query, of_role, self._of_resource = np.split(self._w["semantic.weight"], cuts)
        self._of_role = spec.role_embeddings @ of_role + self._w["semantic.bias"]

    def plans(self, contexts: Contexts, uniforms: Floats | None = None) -> Ints:
        """Return plans (n, 8): topology, agents less one, roles; `uniforms` as in `plan`."""
        latent = self.planner.encode(self.spec.task_embeddings[contexts["task"]])
        domain = contexts["domain"].astype(np.int64)
        plan = self.planner.plan(latent, domain, uniforms, draw_count=self.draw_count)
        topology, count, roles = plan
        return np.column_stack([topology, count - 1, roles])

    def resource(self, observations: Float32s) -> Float32s:
        """Return remaining budget and telemetry (n, 1 + M·F) as the executor sees them.

        With `predicted_latency` (n, 1 + M·S): log(1 + L) / log 300 with L the seconds of
        `expected_answer_s` times the strategy's relative length.
        """
        layout, spec = self.spec.layout, self.spec
        resource = observations[:, layout.resource].copy()
        if self.predicted_latency:
            call_s = expected_answer_s(spec, layout.queue_depth_req(observations))
            route_s = call_s[:, :, None] * [STRATEGY_LENGTH[name] for name in spec.strategies]
            scaled = np.log1p(route_s.reshape(len(call_s), -1)) / math.log(300.0)
            return np.concatenate([resource[:, :1], scaled], axis=1).astype(np.float32)
        if not self.system_state:
            resource[:, 1:] = 0.0
        return resource

    def log_probs(self, resource: Float32s, contexts: Contexts) -> Floats:
        """Return log-probabilities (n, M·S) of routes; those to models that are down are -inf."""
        query = self.spec.task_embeddings[contexts["task"]].astype(np.float64)
        hidden, x = query @ self._of_query + self._of_role[contexts["role"]], resource.astype("f8")
        if len(self._of_resource):  # a single pathway
            merged = self._norm("semantic_norm", np.maximum(hidden + x @ self._of_resource, 0.0))
        else:
            semantic = self._norm("semantic_norm", np.maximum(hidden, 0.0))
            paths = [self._relu("budget", x[:, :1]), self._relu("system", x[:, 1:])]
            encoded = self._relu("resource", np.concatenate(paths, axis=1))
            merged = np.concatenate([semantic, self._norm("resource_norm", encoded)], axis=1)
        logits = self._relu("merge", merged) @ self._w["policy.weight"] + self._w["policy.bias"]
        models = self.spec.num_models
        if logits.shape[1] != self.spec.num_actions:  # a factored head
            logits = (logits[:, :models, None] + logits[:, None, models:]).reshape(len(logits), -1)
        up = models_up(contexts, models)
        return log_softmax(np.where(up.repeat(self.spec.num_strategies, axis=1), logits, -np.inf))

    def _relu(self, name: str, x: Floats) -> Floats:
        out: Floats = np.maximum(x @ self._w[f"{name}.weight"] + self._w[f"{name}.bias"], 0.0)
        return out

    def _norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + LAYER_NORM_EPS)
        out: Floats = scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return out


class InfraMindCheckpoint(BaseModel):
    """Keys of `config.json` that are read."""

    models: tuple[str, ...] = Field(min_length=1)  # aliases, in the order of the actions
    strategies: tuple[str, ...] = Field(min_length=1)  # names, in the order of the actions
    system_features: tuple[str, ...]  # telemetry that it observes
    system_state: bool  # False: it was trained without
    multiplier: Number | None = None  # λ; older checkpoints have none
    # Older checkpoints have none of these: their agent count was learned and drawn.
    predicted_latency: bool = False
    draw_count: bool = True
    dual_pathway: bool = True
    joint_head: bool = True
    temperature: Number = 0.0  # of routes when it plays; 0: the likeliest


class InfraMindPolicy(JointPolicy):
    """InfraMind (arXiv 2606.11440): the likeliest actions of its planner and executor, or drawn.

    The policy is trained with drawn actions. In mode "sample" it spreads the calls over the models
    as in training; the likeliest actions send all similar calls to one model until telemetry shows
    that it is full.

    Args:
        checkpoint: folder; without it the shipped checkpoint of this policy's name.
        mode: "sample" draws plans and routes as in training, "likeliest" draws nothing; without it
            plans are the likeliest, and routes are drawn at the checkpoint's temperature.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or of another network.
    """

    name = "inframind"
    version = 2

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        if mode not in (None, SAMPLE, LIKELIEST):
            raise ConfigError(f"mode is {mode!r}; it is {SAMPLE!r}, {LIKELIEST!r} or left out.")
        folder = Path(checkpoint) if checkpoint else SHIPPED / self.name
        arguments = [checkpoint or "", mode] if mode else [checkpoint] if checkpoint else []
        self.name = ":".join((type(self).name, *arguments))
        self.folder, self._tensors, c = load_as(InfraMindCheckpoint, folder)
        self.config = c
        self.sample, self.temperature = mode == SAMPLE, 1.0 if mode == SAMPLE else c.temperature
        if mode == LIKELIEST:
            self.temperature = 0.0
        self.multiplier = c.multiplier
        self.fingerprint = fingerprint(self.folder)  # results of other weights are not these
        self.requires = {"level": "joint", "system_features": list(c.system_features)}
        models, strategies = len(c.models), len(c.strategies)
        system = models * (strategies if c.predicted_latency else len(c.system_features))
        net = {"dual_pathway": c.dual_pathway, "joint_head": c.joint_head}
        shapes = executor_shapes(models, strategies, system, **net)
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
                f"this pool has {', '.join(spec.models)}. Train one: `inframind train inframind`."
            )
        if not len(spec.task_embeddings):
            raise ConfigError(
                f'policy {self.name!r}: make the environment with observation="index".'
            )
        changes = self.config.model_dump(include=PLAYED)
        self._player = Player(self._tensors, spec, **changes)

    def plans(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the likeliest plans (n, 8), or drawn ones."""
        uniforms = None
        if self.sample:
            uses = range(DRAW_ROUTE + 1, DRAW_ROUTE + 1 + PLAN_DRAWS)
            uniforms = np.stack([self.uniform(rows, use) for use in uses], axis=1)
        return self._player.plans(contexts, uniforms)

    def routes(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the likeliest routes (n,), or drawn ones."""
        log_probs = self._player.log_probs(self._player.resource(observations), contexts)
        drawn = self.uniform(rows, DRAW_ROUTE) if self.temperature else None
        return draw(log_probs, drawn, self.temperature)


class InfraMindV2Policy(InfraMindPolicy):
    """InfraMind with q in time, one agent, and epochs chosen by goodput within 100 s."""

    name = "inframind_v2"
    version = 4


class TextRouter(JointPolicy):
    """Draws a plan for every query from its text, and a model and a strategy for each of its calls.

    Collaboration mode, roles and the model of every agent are drawn. MasRouter has no prompt
    strategies: one is drawn for every call from the workload's measured mix.

    The draws of a query are a function of the row's seed and the query's place in the episode. A
    model that is down is never drawn.

    Args:
        tensors: weights of a MasRouter.
        models: aliases, in the order of its outputs.
        draw_count: draw the agent count too, as in training; otherwise it is the likeliest.
    """

    carries_out_any_plan = False
    version = 2

    def __init__(
        self, tensors: Tensors, models: Sequence[str], *, draw_count: bool = False
    ) -> None:
        self.planner = NumpyPlanner(part(tensors, "planner."))
        self.routers = Candidates(tensors, "llm_router.")
        self.models, self.draw_count = tuple(models), draw_count

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the pool has a model that the router was not trained for, or the
                environment does not leave plans to it.
        """
        super().reset(spec, seeds)
        untrained = [model for model in spec.models if model not in self.models]
        if untrained:
            raise ConfigError(
                f"{self.name}: was trained for {', '.join(self.models)}, the pool also has "
                f"{', '.join(untrained)}. {TRAIN}."
            )
        self._order = [self.models.index(model) for model in spec.models]
        self._probabilities = np.zeros((len(seeds), 0, spec.num_models))  # by row and query

    def plans(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return plans (n, 8) and keep the probabilities that the models are drawn with."""
        query = contexts["query"].astype(np.int64)
        latent = self.planner.encode(self.spec.task_embeddings[contexts["task"]])
        domain = contexts["domain"].astype(np.int64)
        uniforms = np.stack([self.draw(rows, query, use) for use in range(PLAN_DRAWS)], axis=-1)
        plan = self.planner.plan(latent, domain, uniforms, draw_count=self.draw_count)
        of_models = self.probabilities(latent, domain, *plan)
        self._probabilities = with_room(self._probabilities, query)
        self._probabilities[rows, query] = of_models[:, self._order]
        topology, count, roles = plan
        return np.column_stack([topology, count - 1, roles])

    def probabilities(
        self, latent: Floats, domain: Ints, topology: Ints, count: Ints, roles: Ints
    ) -> Floats:
        """Return probabilities (B, M) of the models, the same for every agent of a query."""
        mode = self.planner.modes.latents[topology]
        chosen = self.planner.roles.latents[roles + ROLE_START[domain][:, None]]
        present = np.arange(MAX_AGENTS) < count[:, None]
        mean_role = (chosen * present[..., None]).sum(axis=1) / count[:, None]
        return softmax(self.routers.scores(self.routers.context(latent, mode, mean_role)))

    def routes(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return routes (n,): an agent's model is the same in all of its turns."""
        query, node = contexts["query"].astype(np.int64), contexts["node"].astype(np.int64)
        # In a debate of K agents node K + k is the second turn of agent k.
        agent = np.minimum(node % np.maximum(contexts["num_agents"], 1), MAX_AGENTS - 1)
        up = models_up(contexts, self.spec.num_models)
        of_models = self._probabilities[rows, query] * up
        model = draw_from(of_models, self.draw(rows, query, DRAW_MODEL + agent))
        share = np.broadcast_to(self.spec.strategy_share, (len(rows), self.spec.num_strategies))
        strategy = draw_from(share, self.draw(rows, query, DRAW_STRATEGY + node))
        return np.asarray(self.spec.action(model, strategy), np.int64)


class MasRouterCheckpoint(BaseModel):
    """Keys of `config.json` that are read."""

    algorithm: str = ""
    models: tuple[str, ...] = ()


class MasRouterPolicy(TextRouter):
    """A trained MasRouter (ACL 2025), blind to load and budget; `agents/masrouter.py` trains it.

    Args:
        checkpoint_folder: of the router; the shipped one if None.

    Raises:
        ConfigError: the folder holds no checkpoint of a MasRouter.
    """

    def __init__(self, checkpoint_folder: str | None = None) -> None:
        folder = DEFAULT_CHECKPOINT if checkpoint_folder is None else Path(checkpoint_folder)
        folder, tensors, about = load_as(MasRouterCheckpoint, folder)
        if about.algorithm != "masrouter":
            algorithm = shortened(about.algorithm)
            raise ConfigError(
                f"{folder}: is a checkpoint of {algorithm!r}, not a MasRouter. {TRAIN}."
            )
        try:
            super().__init__(tensors, about.models)
            latent, domain = self.planner.encode(np.zeros((1, EMBED_DIM))), np.zeros(1, np.int64)
            shares = self.probabilities(latent, domain, *self.planner.plan(latent, domain))
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"{folder}: is no whole MasRouter: {error}. {TRAIN}.") from None
        if shares.shape[1] != len(about.models):
            raise ConfigError(
                f"{folder}: names {len(about.models)} models, its weights are of "
                f"{shares.shape[1]}. {TRAIN}."
            )
        self.name = "masrouter" if checkpoint_folder is None else f"masrouter:{checkpoint_folder}"
        self.fingerprint = fingerprint(folder)  # results of other weights are not these
