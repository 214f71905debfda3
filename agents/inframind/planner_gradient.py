"""The planner while InfraMind trains it: forward and backward pass in NumPy.

The network of `agents/planner/net.py`, which explains it, and its log-probability of plans that
were drawn from latents without noise: the heads see the means of all latents, and the noise is in
the encoders' loss alone. Tests hold its losses and gradients equal to that network's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from agents.inframind.layers import Array, Linear, Parameters, Pick, ReLU, Unit
from agents.planner.inference import (
    COUNT_SPREAD,
    MODE_TEMPERATURE,
    ROLE_DOMAIN,
    ROLE_START,
    ROLE_TEMPERATURE,
    TASK_TEMPERATURE,
    softmax,
)
from inframind_gym.simulator.workflow.topology import MAX_AGENTS

Indices = NDArray[np.int64]

HIDDEN: Final = 64
LATENT_NOISE: Final = 0.1  # z = mu + 0.1 * eps * sigma
PRIOR_STD: Final = 0.1
TEXTS: Final = ("task_classifier.texts", "collab_mode.texts", "role_selector.texts")
COUNTS: Final = np.arange(1, MAX_AGENTS + 1)


class Plans(NamedTuple):
    """Plans of B queries; as in `agents.planner.net.Plan`.

    Attributes:
        topology: (B,) index into TOPOLOGIES.
        num_agents: (B,) 1..6.
        roles: (B, 6) counted within the domain's roles; 0 beyond the count.
    """

    topology: Indices
    num_agents: Indices
    roles: Indices


class PlannerOutput(NamedTuple):
    """What the planner says of B queries and their plans.

    Attributes:
        log_prob: (B,) of the plans.
        task_log_prob: (B,) of the queries' true domains, by the task classifier.
        vae_loss: of the three encoders.
    """

    log_prob: Array
    task_log_prob: Array
    vae_loss: float


class PlannerGradient:
    """The planner and its gradient.

    Args:
        weights: `PlannerNet`'s, texts included.
        dtype: of all arithmetic.

    Attributes:
        parameters: the weights, and their gradient after `backward`.
    """

    def __init__(
        self, weights: Mapping[str, Array], dtype: type[np.floating[Any]] = np.float32
    ) -> None:
        self._texts = {name: np.array(weights[name], dtype) for name in TEXTS}
        parameters = Parameters({k: v for k, v in weights.items() if k not in TEXTS}, dtype)
        self.parameters = parameters
        self._encoder = Vae(parameters, "query_encoder")
        self._classifier = TaskClassifier(parameters, self._texts["task_classifier.texts"])
        self._modes = Candidates(parameters, "collab_mode", self._texts["collab_mode.texts"])
        self._roles = Candidates(parameters, "role_selector", self._texts["role_selector.texts"])
        self._context = Linear(parameters, "role_selector.context")
        self._start, self._d_start = parameters["role_selector.start"]
        self._difficulty = Linear(parameters, "num_agents.difficulty")
        self._pick_mode, self._pick_count, self._pick_role = Pick(), Pick(), Pick()
        self._first_row: Indices = np.zeros(0, np.int64)  # (B,) of each query's roles
        self._mode_rows = self._history = self._mean_count = cast(Array, np.zeros(0))

    def weights(self) -> dict[str, Array]:
        """Copies of all weights, texts included."""
        return self.parameters.copies() | {name: text.copy() for name, text in self._texts.items()}

    def noise(self, rng: np.random.Generator, queries: int) -> tuple[Array, Array, Array]:
        """Noise of the latents of B queries (B, 64), of the modes (6, 64) and roles (25, 64)."""
        counts = (queries, self._modes.count, self._roles.count)
        drawn = rng.standard_normal((sum(counts), HIDDEN), np.float32)
        query, mode, role = np.split(drawn, np.cumsum(counts)[:-1])
        return query, mode, role

    def forward(
        self, query: Array, domain: Indices, plans: Plans, noise: tuple[Array, Array, Array]
    ) -> PlannerOutput:
        """Judge the plans of B queries.

        Args:
            query: (B, 384) embeddings.
            domain: (B,) the known domains.
            plans: of the queries.
            noise: see `noise`.
        """
        dtype = self.parameters.vector.dtype
        topology, num_agents, roles = plans
        latent, query_loss = self._encoder(np.asarray(query, dtype), noise[0])
        modes, mode_loss = self._modes.encode(noise[1])
        latents, role_loss = self._roles.encode(noise[2])
        mode_logits = self._modes.scores(latent)
        mode_logits /= MODE_TEMPERATURE
        log_prob = self._pick_mode(mode_logits, topology)
        score = self._difficulty(latent)
        self._mean_count = MAX_AGENTS / (1.0 + np.exp(-score))  # (B, 1)
        deviation = (COUNTS.astype(dtype) - self._mean_count) / COUNT_SPREAD
        log_prob += self._pick_count(-0.5 * np.square(deviation), num_agents - 1)
        # Of the roles, one row for each of the n agents that there are, query after query.
        of, place = np.nonzero(num_agents[:, None] >= COUNTS)
        index = roles + ROLE_START[domain][:, None]  # (B, 6)
        self._first_row = np.concatenate([[0], np.cumsum(num_agents)[:-1]])
        self._mode_rows = np.equal.outer(np.arange(self._modes.count), topology).astype(dtype)
        self._history = _shares_before(index, self._roles.count, dtype)[of, place]
        history = self._history @ np.concatenate([latents, self._start[None]])
        context = np.concatenate([latent[of], modes[topology[of]], history], axis=1)
        mask = domain[of][:, None] == ROLE_DOMAIN
        role_logits = self._roles.scores(self._context(context), mask)
        role_logits /= ROLE_TEMPERATURE
        role_log_prob = self._pick_role(role_logits, index[of, place])
        log_prob += np.add.reduceat(role_log_prob, self._first_row)
        task_log_prob = self._classifier(np.asarray(query, dtype), domain)
        return PlannerOutput(log_prob, task_log_prob, query_loss + mode_loss + role_loss)

    def backward(self, d_log_prob: Array, d_task_log_prob: Array, vae_weight: float) -> None:
        """Write the gradient of a loss to `parameters.gradient`.

        Args:
            d_log_prob: (B,) of the loss with respect to `log_prob`.
            d_task_log_prob: (B,) with respect to `task_log_prob`.
            vae_weight: with respect to `vae_loss`.
        """
        self._classifier.backward(d_task_log_prob)
        num_agents = np.diff(self._first_row, append=len(self._history))
        d_roles = self._pick_role.backward(np.repeat(d_log_prob, num_agents))
        d_roles /= ROLE_TEMPERATURE
        d_context, d_latents = self._roles.backward(d_roles)
        d_context = self._context.backward(d_context)
        d_history = self._history.T @ d_context[:, 2 * HIDDEN :]
        d_latents += d_history[:-1]
        self._d_start[:] = d_history[-1]
        d_known = np.add.reduceat(d_context[:, : 2 * HIDDEN], self._first_row, axis=0)
        d_query = d_known[:, :HIDDEN]
        d_mean = self._pick_count.backward(d_log_prob)
        d_mean *= (COUNTS.astype(d_mean.dtype) - self._mean_count) / COUNT_SPREAD**2
        slope = self._mean_count * (1.0 - self._mean_count / MAX_AGENTS)
        d_score = np.add.reduce(d_mean, axis=1, keepdims=True) * slope
        d_query += self._difficulty.backward(d_score)
        d_mode_logits = self._pick_mode.backward(d_log_prob)
        d_mode_logits /= MODE_TEMPERATURE
        d_latent, d_modes = self._modes.backward(d_mode_logits)
        d_query += d_latent
        d_modes += self._mode_rows @ d_known[:, HIDDEN:]
        self._encoder.backward(d_query, vae_weight)
        self._modes.vae.backward(d_modes, vae_weight)
        self._roles.vae.backward(d_latents, vae_weight)


class Vae:
    """Variational encoder; see `agents.planner.blocks.Vae`."""

    def __init__(self, parameters: Parameters, name: str) -> None:
        names = ("encoder", "mu", "log_var", "decoder", "output")
        self._linear = {n: Linear(parameters, f"{name}.{n}") for n in names}
        self._encoded, self._decoded = ReLU(), ReLU()
        self._mu = self._variance = self._spread = self._error = np.zeros(0)

    def __call__(self, x: Array, noise: Array) -> tuple[Array, float]:
        """Means (n, 64) of the latents of embeddings (n, 384), and the loss with `noise`."""
        linear = self._linear
        hidden = self._encoded(linear["encoder"](x))
        self._mu, log_var = linear["mu"](hidden), linear["log_var"](hidden)
        sigma = np.exp(0.5 * log_var)
        self._spread = LATENT_NOISE * noise * sigma
        self._variance = np.square(sigma)
        decoded = self._decoded(linear["decoder"](self._mu + self._spread))
        self._error = linear["output"](decoded)
        self._error -= x
        relative = (np.square(self._mu) + self._variance) / PRIOR_STD**2
        divergence = 0.5 * ((relative - log_var).mean() - 1.0 + math.log(PRIOR_STD**2))
        return self._mu, float(np.square(self._error).mean() + divergence)

    def backward(self, d_mu: Array, weight: float) -> None:
        """From the gradient (n, 64) of the means and the weight of the loss."""
        linear = self._linear
        d_x = self._error * (2.0 * weight / self._error.size)
        d_z = linear["decoder"].backward(self._decoded.backward(linear["output"].backward(d_x)))
        share = weight / self._mu.size
        d_log_var = 0.5 * (d_z * self._spread + share * (self._variance / PRIOR_STD**2 - 1.0))
        d_z += d_mu
        d_z += (share / PRIOR_STD**2) * self._mu
        d_hidden = linear["mu"].backward(d_z)
        d_hidden += linear["log_var"].backward(d_log_var)
        linear["encoder"].stop(self._encoded.backward(d_hidden))


class Candidates:
    """Candidates given by texts (m, 384); see `agents.planner.blocks.Candidates`."""

    def __init__(self, parameters: Parameters, name: str, texts: Array) -> None:
        self.count = len(texts)
        self.vae = Vae(parameters, f"{name}.vae")
        names = ("query", "key", "value", "output")
        self._linear = {n: Linear(parameters, f"{name}.fusion.{n}") for n in names}
        self._texts = texts
        self._unit_context, self._unit_latents = Unit(), Unit()
        self._latents = self._queries = self._keys = self._values = np.zeros(0)
        self._attention: Array = np.zeros(0)
        self._fused_unit = self._latents_unit = np.zeros(0)

    def encode(self, noise: Array) -> tuple[Array, float]:
        """Means (m, 64) of the candidates' latents and the loss of their encoder."""
        self._latents, loss = self.vae(self._texts, noise)
        return self._latents, loss

    def scores(self, context: Array, mask: NDArray[np.bool_] | None = None) -> Array:
        """Cosines (n, m) of contexts (n, 64), fused with the candidates, and the candidates.

        Those where `mask` is false are -inf.
        """
        linear = self._linear
        self._queries, self._keys = linear["query"](context), linear["key"](self._latents)
        self._values = linear["value"](self._latents)
        scores = self._queries @ self._keys.T
        scores /= math.sqrt(HIDDEN)
        if mask is not None:
            scores[~mask] = -np.inf
        self._attention = softmax(scores)
        fused = linear["output"](self._attention @ self._values)
        fused += context
        self._fused_unit = self._unit_context(fused)
        self._latents_unit = self._unit_latents(self._latents)
        cosines: Array = self._fused_unit @ self._latents_unit.T
        if mask is not None:
            cosines[~mask] = -np.inf
        return cosines

    def backward(self, d_cosines: Array) -> tuple[Array, Array]:
        """From (n, m) to the gradients of the contexts (n, 64) and of the latents (m, 64)."""
        linear = self._linear
        d_latents = self._unit_latents.backward(d_cosines.T @ self._fused_unit)
        d_fused = self._unit_context.backward(d_cosines @ self._latents_unit)
        d_read = linear["output"].backward(d_fused)
        d_scores = d_read @ self._values.T
        d_scores -= np.add.reduce(d_scores * self._attention, axis=1, keepdims=True)
        d_scores *= self._attention
        d_scores /= math.sqrt(HIDDEN)
        d_fused += linear["query"].backward(d_scores @ self._keys)
        d_latents += linear["key"].backward(d_scores.T @ self._queries)
        d_latents += linear["value"].backward(self._attention.T @ d_read)
        return d_fused, d_latents


class TaskClassifier:
    """Which domain a query is of; see `agents.planner.blocks.TaskClassifier`."""

    def __init__(self, parameters: Parameters, texts: Array) -> None:
        self._query = Linear(parameters, "task_classifier.query")
        self._task = Linear(parameters, "task_classifier.task")
        self._texts = texts
        self._unit_query, self._unit_task, self._pick = Unit(), Unit(), Pick()
        self._queries = self._tasks = np.zeros(0)

    def __call__(self, query: Array, domain: Indices) -> Array:
        """Log-probabilities (B,) of the domains (B,) of queries (B, 384)."""
        self._queries = self._unit_query(self._query(query))
        self._tasks = self._unit_task(self._task(self._texts))
        logits = self._queries @ self._tasks.T
        logits /= TASK_TEMPERATURE
        return self._pick(logits, domain)

    def backward(self, d_log_prob: Array) -> None:
        """From (B,)."""
        d_logits = self._pick.backward(d_log_prob)
        d_logits /= TASK_TEMPERATURE
        self._query.stop(self._unit_query.backward(d_logits @ self._tasks))
        self._task.stop(self._unit_task.backward(d_logits.T @ self._queries))


def _shares_before(index: Indices, count: int, dtype: np.dtype[Any]) -> Array:
    """What precedes each role: the mean of the roles before it, or the start.

    Args:
        index: (B, 6) of the roles.
        count: R of all roles.
        dtype: of the result.

    Returns:
        (B, 6, R + 1) share of each role, and last of the start, in the mean.
    """
    shares = np.zeros((*index.shape, count + 1), dtype)
    shares[:, 0, count] = 1.0
    rows = np.arange(len(index))
    for k in range(1, MAX_AGENTS):
        shares[:, k] = shares[:, k - 1] if k > 1 else 0.0
        shares[rows, k, index[:, k - 1]] += 1.0
    shares[:, 1:] /= np.arange(1, MAX_AGENTS, dtype=dtype)[:, None]
    return shares
