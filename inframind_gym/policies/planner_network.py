"""The planner that MasRouter and InfraMind share, in NumPy: topology, agent count and roles.

The trained network is `agents/planner_network.py` (PyTorch), which explains it. Here every latent
is its mean, so that a checkpoint is played without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.checkpoint import part
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import MAX_AGENTS
from inframind_gym.tasks import DOMAINS
from inframind_gym.tasks.taskset import EMBED_DIM

Weights = Mapping[str, NDArray[np.floating[Any]]]
Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

MODE_TEMPERATURE: Final = 0.8
ROLE_TEMPERATURE: Final = 0.5
COUNT_SPREAD: Final = 0.7  # agents: standard deviation of the count around 6 * sigmoid

DRAW_MODE: Final = 0  # columns of `uniforms`
DRAW_COUNT: Final = 1
DRAW_ROLE: Final = 2  # and the five that follow
PLAN_DRAWS: Final = DRAW_ROLE + MAX_AGENTS

ROLE_START: Final = np.array([roles_of(domain)[0] for domain in DOMAINS])
ROLE_DOMAIN: Final = np.array([DOMAINS.index(role.domain) for role in ROLES])


def subset(weights: Weights, prefix: str) -> dict[str, Floats]:
    """Return the weights whose names start with `prefix`, without it, as float64."""
    return {name: np.asarray(value, np.float64) for name, value in part(weights, prefix).items()}


class Candidates:
    """A selector: candidates given by texts, and the cosine of each with a fused context.

    Args:
        weights: of the torch module of the same name.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.latents: Floats = encode(weights, "vae.", weights["texts"])  # (n, 64)
        self._keys = linear(weights, "fusion.key", self.latents)
        self._values = linear(weights, "fusion.value", self.latents)
        self._units = unit(self.latents)

    def scores(self, context: Floats, mask: NDArray[np.bool_] | None = None) -> Floats:
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
        self.modes = Candidates(subset(weights, "collab_mode."))
        self.roles = Candidates(subset(weights, "role_selector."))
        latent = self.encode(np.zeros((1, EMBED_DIM)))
        self.plan(latent, np.zeros(1, np.int64))  # fails here, if it does

    def encode(self, query: NDArray[np.floating[Any]]) -> Floats:
        """Return latents (B, 64) of queries (B, 384)."""
        return encode(self._weights, "query_encoder.", np.asarray(query, np.float64))

    def count_logits(self, latent: Floats) -> Floats:
        """Return logits (B, 6) of 1..6 agents."""
        score = linear(self._weights, "num_agents.difficulty", latent)[:, 0]
        mean = MAX_AGENTS / (1.0 + np.exp(-score))
        counts = np.arange(1, MAX_AGENTS + 1, dtype=np.float64)
        logits: Floats = -0.5 * ((counts - mean[:, None]) / COUNT_SPREAD) ** 2
        return logits

    def plan(
        self,
        latent: Floats,
        domain: Indices,
        uniforms: Floats | None = None,
        *,
        draw_count: bool = True,
    ) -> tuple[Indices, Indices, Indices]:
        """Return plans of B queries.

        Args:
            latent: (B, 64) of `encode`.
            domain: (B,) whose roles are chosen from.
            uniforms: (B, 8) numbers in (0, 1) for topology, count and six roles; None: nothing is
                drawn.
            draw_count: False: the most likely agent count even where the rest is drawn.

        Returns:
            Topology (B,), agent count (B,) and roles (B, 6), counted within the domain's; 0 beyond
            the count.
        """
        u = None if uniforms is None else uniforms.T
        modes = self.modes.scores(latent) / MODE_TEMPERATURE
        topology = pick(modes, None if u is None else u[DRAW_MODE])
        counts = self.count_logits(latent)
        count = 1 + pick(counts, None if u is None or not draw_count else u[DRAW_COUNT])
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

    def mean_role(self, domain: Indices, count: Indices, roles: Indices) -> Floats:
        """Return the mean latent (B, 64) of the roles of plans."""
        chosen = self.roles.latents[roles + ROLE_START[domain][:, None]]
        present = np.arange(MAX_AGENTS) < count[:, None]
        mean: Floats = (chosen * present[..., None]).sum(axis=1) / count[:, None]
        return mean


def encode(weights: Weights, prefix: str, x: Floats) -> Floats:
    """Return the mean latents (n, 64) that the encoder `prefix` gives embeddings (n, 384)."""
    hidden = np.maximum(linear(weights, f"{prefix}encoder", x), 0.0)
    return linear(weights, f"{prefix}mu", hidden)


def linear(weights: Weights, name: str, x: Floats) -> Floats:
    """Apply the linear layer `name`."""
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


def pick(logits: Floats, uniforms: Floats | None) -> Indices:
    """Return one index a row of logits (B, n), drawn with `uniforms` (B,) or the likeliest."""
    if uniforms is None:
        return np.asarray(logits.argmax(axis=-1), np.int64)
    edges = softmax(logits).cumsum(axis=-1)
    last = np.isfinite(logits).cumsum(axis=-1).argmax(axis=-1)  # the sum may end just below 1
    drawn = np.minimum((edges <= uniforms[:, None]).sum(axis=-1), last)
    return np.asarray(drawn, np.int64)
