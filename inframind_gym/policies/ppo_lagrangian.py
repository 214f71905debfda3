"""PPO-Lagrangian: a network scores recipes; two kinds of multipliers are controlled while it plays.

The constrained problem: as many right answers in time as possible, while (i) at most `1 - promise`
of the queries are late, and (ii) no GPU is asked for more seconds of its slots than it has, which
its queue shows: calls in flight stay at `adaptive.TARGET` a slot. Its Lagrangian pays a query

    1[solved in time] - λ · 1[late] - Σ_g μ_g · seconds of slots on GPU g

μ_g follows the load by dual ascent, λ the share of late queries by proportional-integral control,
in training and in play alike, and the network observes both. Such a policy meets its
constraints in states and pools where fixed multipliers would not: Calvo-Fullana, Paternain, Chamon
and Ribeiro (2024), "State Augmented Constrained Reinforcement Learning". μ_g are the prices of
`adaptive`; what a recipe takes and how long it lasts is learned as there. The network corrects its
scores:

    score_r = P_r · T_r - λ · (1 - T_r) - cost_r + network(recipe r, query, pool)

with P_r the chance of a right answer and T_r of one in time; the unit is the right answer. Every
recipe is scored by the same weights, so that one network plays any number of models and GPUs. In
training, recipes are drawn by the softmax of their scores (`agents/ppo_lagrangian.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import BaseModel

from inframind_gym.configs import Fraction, PositiveInt
from inframind_gym.envs.core import Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies.adaptive import AdaptivePolicy, Outlook
from inframind_gym.policies.base import Completed, Contexts
from inframind_gym.policies.checkpoint import SHIPPED, check_shapes, fingerprint, load_as
from inframind_gym.policies.networks import draw, log_softmax
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS, EMBED_DIM

NAME: Final = "ppo_lagrangian"
SAMPLE: Final = "sample"
SHARPNESS: Final = 100.0  # logits of a right answer, where recipes are drawn
KINDS: Final = ("IO", "Reflection", "Debate")  # topologies of recipes
RECIPE: Final = 7  # features of a recipe that depend on query and load
FIXED: Final = len(KINDS) + len(STRATEGIES) + 3  # features of a recipe that never change
SHUT: Final = -1e6  # score of a recipe that cannot be chosen
TEXT: Final = 8  # features that a question's embedding is mapped to
QUERY: Final = len(DOMAINS) + 9 + TEXT  # features of a query and the pool

# λ, by control of the share of late queries.
LATE_QUERIES: Final = 200.0  # over which the share is averaged
LATE_P, LATE_I = 2.0, 0.02  # gains: λ per excess, and its rise per excess and query
MOST_LAMBDA: Final = 1.0
RATE_S: Final = (60.0, 600.0)  # windows of arrival rates, short and long
RATE_PRIOR: Final = 1.0  # arrivals

Array = Any  # of NumPy, or a tensor of torch


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter; matrices are (inputs, outputs)."""
    return {
        "text": (EMBED_DIM, TEXT),
        "query": (QUERY, hidden),
        "recipe": (RECIPE, hidden),
        "fixed": (FIXED, hidden),
        "first_bias": (hidden,),
        "second": (hidden, hidden),
        "second_bias": (hidden,),
        "out": (hidden,),
    }


class Seen(NamedTuple):
    """Inputs of the network for n queries and R recipes."""

    task: Array  # (n,) index of the question
    query: Array  # (n, QUERY - TEXT)
    recipe: Array  # (n, R, RECIPE)
    score: Array  # (n, R) of the Lagrangian as believed, in right answers
    is_open: Array  # (n, R) recipes that may be chosen


class Library(NamedTuple):
    """Array functions of the network, of NumPy or of torch."""

    relu: Callable[[Array], Array]
    cat: Callable[[Sequence[Array]], Array]  # along the last axis
    where: Callable[..., Array]


NUMPY: Final = Library(
    lambda array: np.maximum(array, 0.0, out=array),
    lambda arrays: np.concatenate(arrays, axis=-1),
    np.where,
)


def embed(w: Mapping[str, Array], embeddings: Array, lib: Library) -> Array:
    """Return the network's features (T, TEXT) of embeddings (T, 384) of questions."""
    return lib.relu(embeddings @ w["text"])


def scores_of(w: Mapping[str, Array], seen: Seen, text: Array, fixed: Array, lib: Library) -> Array:
    """Return scores of recipes (n, R), in right answers; written once for NumPy and torch.

    Args:
        w: the weights, as in `shapes`.
        seen: of n queries.
        text: (n, TEXT), of `embed`.
        fixed: (R, FIXED), `PpoLagrangianPolicy.fixed`.
        lib: of the arrays.
    """
    query = lib.cat((seen.query, text)) @ w["query"] + w["first_bias"]
    hidden = seen.recipe @ w["recipe"] + (fixed @ w["fixed"] + query[:, None])
    hidden = lib.relu(lib.relu(hidden) @ w["second"] + w["second_bias"])
    return lib.where(seen.is_open, seen.score + hidden @ w["out"], SHUT)


class PpoLagrangianCheckpoint(BaseModel):
    """Keys of `config.json` that are read."""

    hidden: PositiveInt  # width of the layers
    promise: Fraction  # share of queries that are to be in time
    prices: bool = True  # whether work costs μ
    lateness: bool = True  # whether late answers cost λ


class PpoLagrangianPolicy(AdaptivePolicy):
    """The likeliest recipes of a checkpoint's network, on any pool and workload.

    Args:
        checkpoint: folder of a checkpoint; without it the shipped one.
        mode: "sample" draws recipes, as in training.

    Attributes:
        lagrange, late: (rows,) λ, and the moving average of the share of late queries.
        fixed: (R, FIXED) features of the recipes that never change.
        has_lateness: whether λ is controlled; else it is 0.

    Raises:
        ConfigError: there is no such checkpoint or mode, it is damaged, or of another network.
    """

    name = NAME
    version = 4
    toll = 0.0  # it was trained without
    has_lateness = True

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        if checkpoint == SAMPLE and mode is None:  # "ppo_lagrangian:sample"
            checkpoint, mode = None, SAMPLE
        if mode not in (None, SAMPLE):
            raise ConfigError(f"policy {NAME!r}: {unknown('mode', str(mode), [SAMPLE])}")
        folder = Path(checkpoint) if checkpoint else SHIPPED / NAME
        self.name = ":".join((NAME, *(a for a in (checkpoint, mode) if a is not None)))
        self.sample = mode == SAMPLE
        folder, weights, config = load_as(PpoLagrangianCheckpoint, folder)
        check_shapes(folder, weights, shapes(config.hidden))
        super().__init__(prices=config.prices)
        self.has_lateness = config.lateness
        self.fingerprint = fingerprint(folder)  # results of others are not these
        self.use(weights, config.promise)

    def use(self, weights: Mapping[str, Array], promise: float, dtype: Any = np.float64) -> None:
        """Play with other weights; in float64, actions do not depend on the rows of a batch."""
        self.weights = {name: np.asarray(array, dtype) for name, array in weights.items()}
        self.promise = promise

    @property
    def multiplier(self) -> float:
        """λ, the mean of all rows."""
        return float(self.lagrange.mean())

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows; errors as of `adaptive`."""
        super().reset(spec, seeds)
        rows = len(seeds)
        self.lagrange, self.late = np.zeros(rows), np.full(rows, 1.0 - self.promise)
        self._late_sum = np.zeros(rows)  # integral of the excess
        self._arrivals = np.full((rows, 2), RATE_PRIOR)  # in the windows, weights falling
        self._last_s = np.zeros(rows)
        for name in ("lagrange", "late", "_late_sum", "_arrivals", "_last_s"):
            self._initial[name] = getattr(self, name)[0].copy()
        embeddings = spec.task_embeddings.astype(self.weights["text"].dtype)
        self._texts = embed(self.weights, embeddings, NUMPY)
        recipes = self.recipes
        last = recipes.models.clip(0)[np.arange(len(recipes)), (recipes.models >= 0).sum(1) - 1]
        parts = [recipes.topology == TOPOLOGIES.index(kind) for kind in KINDS]
        parts += [
            recipes.strategy == (spec.strategies.index(name) if name in spec.strategies else -1)
            for name in STRATEGIES
        ]
        parts += [
            (recipes.num_agents - 1) / 2.0,
            spec.ability[last] / 2.0,
            (np.log(spec.expected_call_s[last]) - 2.0) / 2.0,
        ]
        self.fixed = np.column_stack(parts).astype(np.float32)
        calls = self._work.reshape(spec.num_models, -1, len(recipes)).sum(axis=1)
        self._share = calls / calls.sum(axis=0)  # (M, R) of a recipe's calls, by model

    def choose(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Ints:
        """Return recipes (n,) for queries that have just arrived, with calls in flight (n, M)."""
        outlook = self.outlook(in_flight, contexts, rows)
        seen = self.see(outlook, in_flight, contexts, rows)
        scores = scores_of(self.weights, seen, self._texts[seen.task], self.fixed, NUMPY)
        chosen = self.pick(seen, scores, contexts, rows)
        return self.note(outlook, chosen, contexts["query"], rows)

    def pick(self, seen: Seen, scores: Floats, contexts: Contexts, rows: Ints) -> Ints:
        """Return recipes (n,) by their scores (n, R)."""
        if self.sample:
            return draw(log_softmax(SHARPNESS * scores), self.draw(rows, contexts["query"]))
        return np.asarray(scores.argmax(axis=1), np.int64)

    def see(self, outlook: Outlook, in_flight: Floats, contexts: Contexts, rows: Ints) -> Seen:
        """Return the network's inputs for queries that have just arrived, as float32."""
        now_s = contexts["time_s"]
        passed_s = np.maximum(now_s - self._last_s[rows], 0.0)[:, None]
        self._last_s[rows] = now_s
        self._arrivals[rows] = self._arrivals[rows] * np.exp(-passed_s / RATE_S) + 1.0
        age_s = now_s[:, None] + 1.0
        window_s = np.array(RATE_S) * -np.expm1(-age_s / RATE_S)
        calls_per_s = (self._slots / self.spec.expected_call_s).sum()
        log_rates = np.log(self._arrivals[rows] / window_s / calls_per_s)  # over the capacity

        load = in_flight / self._slots  # (n, M)
        on_gpu = load @ self._on_gpu  # (n, G)
        log_left = np.log(np.maximum(contexts["budget_s"], 1.0))
        lagrange = self.lagrange[rows]
        query = np.column_stack(
            [
                contexts["domain"][:, None] == np.arange(len(DOMAINS)),
                log_left / 3.0 - 1.0,
                log_rates / 2.0 + 1.0,
                np.minimum(load.mean(axis=1), 3.0),
                np.minimum(on_gpu.max(axis=1), 6.0) / 2.0,
                np.minimum(on_gpu.min(axis=1), 6.0) / 2.0,
                (self.log_price[rows].mean(axis=1) + 6.0) / 2.0,
                (self.log_price[rows].max(axis=1) + 6.0) / 2.0,
                lagrange,
            ]
        )
        value = outlook.chance * outlook.in_time
        recipe = np.stack(
            [
                outlook.chance,
                outlook.in_time,
                outlook.slack.clip(-4.0, 4.0) / 2.0,
                (outlook.log_s - 2.0) / 2.0,
                np.minimum(outlook.cost, 2.0),
                np.minimum(load, 3.0) @ self._share,
                np.minimum(on_gpu, 6.0) @ self._on_gpu.T @ self._share / 2.0,
            ],
            axis=2,
        )
        score = value - lagrange[:, None] * (1.0 - outlook.in_time) - outlook.cost
        return Seen(
            contexts["task"].astype(np.int64),
            query.astype(np.float32),
            recipe.astype(np.float32),
            score.astype(np.float32),
            outlook.is_open & (outlook.chance > 0.0),
        )

    def learn(self, completed: Completed, rows: Ints) -> None:
        """Learn seconds of calls, and control λ, from queries (k,) that have ended."""
        super().learn(completed, rows)
        late = completed["latency_s"] > completed["budget_s"]
        for row, is_late in zip(rows, late, strict=True):
            self.late[row] += (is_late - self.late[row]) / LATE_QUERIES
        if not self.has_lateness:
            return
        rows, queries = np.unique(rows, return_counts=True)
        excess = self.late[rows] - (1.0 - self.promise)
        integral = self._late_sum[rows] + LATE_I * excess * queries
        self._late_sum[rows] = np.clip(integral, 0.0, MOST_LAMBDA)
        self.lagrange[rows] = np.clip(LATE_P * excess + self._late_sum[rows], 0.0, MOST_LAMBDA)
