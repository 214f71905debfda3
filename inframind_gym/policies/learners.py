"""Routers that learn online, from nothing: LinUCB and tabular Q-learning.

Every row learns for itself and `reset` forgets, so that a run depends on its seed alone. Those of
assignment are in `assignment`.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    validate,
)
from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.policies.base import (
    BasePolicy,
    Completed,
    Contexts,
    draw_from,
    models_up,
    place_in,
)
from inframind_gym.policies.simple import DRAW_MODEL, DRAW_TIE
from inframind_gym.tasks import DOMAINS, EMBED_DIM, load_tasks
from inframind_gym.teams.assignment import rules

TIE: Final = 1e-9  # scores that are closer than this are equal
LATENCY_WEIGHT: Final = 0.05  # of latency ÷ budget in the reward of a routed query


class Ridge:
    """Ridge regressions of the reward on d features, one for each of A arms of every row.

    A row's regression of arm a is A_a = ridge·I + Σ x xᵀ, b_a = Σ reward·x, θ_a = A_a⁻¹ b_a. A⁻¹ is
    kept and updated by Sherman and Morrison's formula, d² operations a decision.
    """

    def __init__(self, rows: int, arms: int, size: int, ridge: float) -> None:
        self.inverse = np.tile(np.eye(size) / ridge, (rows, arms, 1, 1))  # (rows, A, d, d)
        self.target = np.zeros((rows, arms, size))  # (rows, A, d) b_a

    def bounds(self, rows: Ints, features: Floats, alpha: float) -> Floats:
        """Return θ_aᵀ x_a + alpha·sqrt(x_aᵀ A_a⁻¹ x_a), (n, A), for features (n, A, d)."""
        inverse = self.inverse[rows]
        theta = np.einsum("naij,naj->nai", inverse, self.target[rows])
        mean = np.einsum("nai,nai->na", theta, features)
        variance = np.einsum("nai,naij,naj->na", features, inverse, features)
        return np.asarray(mean + alpha * np.sqrt(np.maximum(variance, 0.0)))

    def update(self, rows: Any, arms: Any, x: Floats, reward: Any) -> None:
        """Learn that arms (n,) of different rows (n,) with features (n, d) gave rewards (n,)."""
        at = rows, arms
        along = np.einsum("...ij,...j->...i", self.inverse[at], x)
        scale = 1.0 + np.einsum("...i,...i->...", x, along)
        self.inverse[at] -= along[..., :, None] * along[..., None, :] / scale[..., None, None]
        self.target[at] += np.asarray(reward)[..., None] * x


class Learner(BasePolicy[Any, Any]):
    """A policy that learns online, with settings.

    Args:
        **settings: of the class's `schema`.

    Raises:
        ConfigError: there is no such setting, or a value is out of its range.
    """

    schema: ClassVar[type[BaseModel]]
    changed: ClassVar[dict[str, float]] = {}  # defaults that differ from the schema's

    def __init__(self, **settings: float) -> None:
        values, kind = {**self.changed, **settings}, type(self).__name__
        self.settings: Any = validate(values, self.schema, source=kind)
        self.fingerprint = self.settings.model_dump_json()


class RoutingLearner(Learner, ABC):
    """A router whose decisions wait for their query to finish."""

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Forget all decisions."""
        super().reset(spec, seeds)
        self.open: list[dict[int, list[Any]]] = [{} for _ in seeds]  # per row: query -> decisions
        self.time_s = np.full(len(seeds), -np.inf)

    def begin(self, row: int, time_s: float) -> bool:
        """Return whether a new episode has begun; open decisions of the old one are dropped."""
        is_new = bool(time_s < self.time_s[row])
        if is_new:
            self.open[row].clear()
        self.time_s[row] = time_s
        return is_new

    def observe(self, completed: Completed, row: int) -> None:
        """Learn from the queries of `row` that finished during the last step."""
        rewards = self.rewards(completed).tolist()
        for query, reward in zip(completed["query"].tolist(), rewards, strict=True):
            self.learn(row, query, reward)

    @abstractmethod
    def rewards(self, completed: Completed) -> Floats:
        """Return the reward of each finished query, (k,)."""

    @abstractmethod
    def learn(self, row: int, query: int, reward: float) -> None:
        """Give every open decision of a query its reward."""


class LinUcbSettings(StrictModel):
    """Settings of `LinUCBPolicy`."""

    alpha: NonNegative = 0.02  # weight of the uncertainty
    ridge: Positive = 1.0  # weight of the identity in A_a
    embedding_components: Annotated[int, Field(ge=0, le=EMBED_DIM)] = 4  # of the query's embedding
    cost_weight: NonNegative = 1.0  # what latency / budget of 1 takes from the reward


class LinUCBPolicy(RoutingLearner):
    """Disjoint LinUCB over the routes.

    Source: Li, Chu, Langford, Schapire, "A Contextual-Bandit Approach to Personalized News Article
    Recommendation" (WWW 2010), algorithm 1. Every arm, a route (model, strategy), has its own
    `Ridge` regression; the arm of the highest upper bound is chosen.

    - Features of an arm: 1, the remaining budget, the share of the workflow's waves that is done,
      the domain (one-hot), the first components of the query's embedding on the principal axes of
      the built-in training tasks; queue depth and end-to-end latency of the arm's model.
    - Every decision of a query is one pull, and each gets the query's reward when the query is
      done: solved - cost_weight·cost within the budget, -cost_weight after it, solved or not.
    - Under overload queries end late. A query whose deadline has passed has a known reward, and is
      learned from before the next choice.

    Args:
        **settings: see `LinUcbSettings`.
    """

    schema = LinUcbSettings

    def __init__(self, **settings: float) -> None:
        super().__init__(**settings)
        s = self.settings
        self.components = s.embedding_components
        self.fingerprint = f"{s.alpha} {s.ridge} {self.components} {s.cost_weight}"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start an untrained learner in every row."""
        super().reset(spec, seeds)
        self._knows_tasks = self.components > 0 and len(spec.task_embeddings) > 0
        if self._knows_tasks:
            self._fit_axes(load_tasks("builtin", split="train").embeddings.astype(np.float64))
        size = 5 + len(DOMAINS) + self.components
        self.ridge = Ridge(len(seeds), spec.num_actions, size, self.settings.ridge)
        self._deadlines: list[list[tuple[float, int]]] = [[] for _ in seeds]  # heaps, with queries

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        for row, time_s in zip(rows.tolist(), contexts["time_s"].tolist(), strict=True):
            if self.begin(row, time_s):
                self._deadlines[row].clear()
            while self._deadlines[row] and self._deadlines[row][0][0] < time_s:
                _, query = heapq.heappop(self._deadlines[row])
                self.learn(row, query, -self.settings.cost_weight)
        features = self.features(observations, contexts)
        allowed = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, 1)
        bounds = self.ridge.bounds(rows, features, self.settings.alpha)
        bounds = np.where(allowed, bounds, -np.inf)
        best = bounds >= bounds.max(axis=1, keepdims=True) - TIE
        actions = draw_from(best.astype(np.float64), self.uniform(rows, DRAW_TIE))
        self.decisions[rows] += 1
        for i, (row, arm) in enumerate(zip(rows.tolist(), actions.tolist(), strict=True)):
            query = int(contexts["query"][i])
            if query not in self.open[row]:
                deadline_s = float(contexts["arrival_s"][i] + contexts["budget_s"][i])
                heapq.heappush(self._deadlines[row], (deadline_s, query))
            self.open[row].setdefault(query, []).append((arm, features[i, arm]))
        return actions

    def rewards(self, completed: Completed) -> Floats:
        """Return solved - cost_weight·cost in time, -cost_weight when late, (k,)."""
        cost, weight = completed["cost"], self.settings.cost_weight
        return np.asarray(np.where(cost <= 1.0, completed["solved"] - weight * cost, -weight))

    def learn(self, row: int, query: int, reward: float) -> None:
        """Give every open decision of a query its reward."""
        for arm, x in self.open[row].pop(query, ()):
            self.ridge.update(row, arm, x, reward)

    def features(self, observations: Float32s, contexts: Contexts) -> Floats:
        """Return the features of every arm, (n, A, d)."""
        layout, spec, n = self.spec.layout, self.spec, len(contexts)
        shared = np.zeros((n, 3 + len(DOMAINS) + self.components))
        shared[:, 0] = 1.0
        shared[:, 1] = observations[:, layout.budget]
        shared[:, 2] = contexts["wave"] / np.maximum(contexts["num_waves"], 1)
        shared[np.arange(n), 3 + contexts["domain"].astype(np.int64)] = 1.0
        if self._knows_tasks:
            if layout.embedding == "index":
                components = self._task_components[layout.query_index(observations)]
            else:
                components = self._project(observations[:, layout.query])
            shared[:, 3 + len(DOMAINS) :] = components
        of_model = np.zeros((n, spec.num_models, 2))
        for k, feature in enumerate(("queue", "e2e")):
            if layout.has(feature):
                of_model[:, :, k] = observations[:, layout.system(feature)]
        shared = np.broadcast_to(shared[:, None], (n, spec.num_actions, shared.shape[1]))
        return np.concatenate([shared, np.repeat(of_model, spec.num_strategies, axis=1)], axis=2)

    def _fit_axes(self, tasks: Floats) -> None:
        """Find the principal axes of known tasks, each scaled to unit variance."""
        self._mean = tasks.mean(axis=0)
        centred = tasks - self._mean
        variances, axes = np.linalg.eigh(centred.T @ centred / len(tasks))
        first = np.arange(EMBED_DIM - 1, EMBED_DIM - 1 - self.components, -1)
        self._axes = axes[:, first].T
        signs = np.sign(self._axes[np.arange(len(first)), np.abs(self._axes).argmax(axis=1)])
        self._axes *= signs[:, None]
        self._scale = 1.0 / np.sqrt(np.maximum(variances[first], 1e-12))
        self._task_components = self._project(self.spec.task_embeddings)

    def _project(self, embeddings: NDArray[np.floating[Any]]) -> Floats:
        """Return the components (n, components) of embeddings (n, 384)."""
        products = (embeddings.astype(np.float64) - self._mean)[:, None, :] * self._axes
        return np.asarray(products.sum(axis=2) * self._scale)


@dataclass
class Pull:
    """A decision of Q-learning that waits for its query to finish."""

    state: int  # row of the table
    action: int
    load_penalty: float
    next_load_state: int
    next_domain: int | None = None  # of the row's next decision; None: none has followed


class QLearningSettings(StrictModel):
    """Settings of load-aware Q-learning."""

    window_size: PositiveInt = 8  # assignments that the window remembers
    hot_threshold: Positive = 1.5  # multiple of the fair share above which a model is hot
    penalty_weight: NonNegative = 0.15  # penalty for each fair share in excess
    max_penalty: NonNegative = 0.2  # cap of the penalty
    lr: Fraction = 0.15  # learning rate
    gamma: Fraction = 0.95  # discount
    epsilon: Fraction = 1.0  # probability of exploring at the start
    epsilon_min: Fraction = 0.05  # its least value
    epsilon_decay: Fraction = 0.98  # its factor at every finished query


class QLearningLoadTrackerPolicy(RoutingLearner):
    """The assignment team's load-aware Q-learning as a router.

    - Task types are the three domains of tasks, load states balanced and a hot model, actions every
      (model, strategy).
    - One routed call is one assignment: its penalty is read from the window of assignments *before*
      it is recorded, the next load state after.
    - When a query finishes, the reward of each of its assignments is the query's raw reward less
      the assignment's penalty, at least 0; epsilon decays once. The next state is that of the row's
      next decision; there is none where no decision has followed yet.

    Args:
        **settings: see `QLearningSettings`.
    """

    schema = QLearningSettings

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start an untrained learner in every row."""
        super().reset(spec, seeds)
        rows, states = len(seeds), len(DOMAINS) * (spec.num_models + 1)
        self.table = np.zeros((rows, states, spec.num_actions))
        self.epsilon = np.full(rows, self.settings.epsilon)
        self.window = np.full((rows, self.settings.window_size), -1)  # models, oldest first
        self._last: list[Pull | None] = [None] * rows

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        s, models = self.settings, self.spec.num_models
        up = models_up(contexts, models).repeat(self.spec.num_strategies, axis=1)
        explores = self.uniform(rows, DRAW_TIE) < self.epsilon[rows]
        drawn = place_in(up, self.uniform(rows, DRAW_MODEL))
        self.decisions[rows] += 1
        counts = rules.window_counts(self.window[rows], models)
        domain = contexts["domain"].astype(np.int64)
        state = domain * (models + 1) + rules.load_state(counts, s.hot_threshold)
        greedy = np.where(up, self.table[rows, state], -np.inf).argmax(axis=1)
        actions = np.where(explores, drawn, greedy)
        chosen = self.spec.model_of(actions)
        penalty = rules.load_penalty(counts, chosen, s.penalty_weight, s.max_penalty)
        self.window[rows] = np.column_stack([self.window[rows, 1:], chosen])
        after = rules.load_state(rules.window_counts(self.window[rows], models), s.hot_threshold)
        columns = [column.tolist() for column in (state, actions, penalty, after)]
        for i, values in enumerate(zip(*columns, strict=True)):
            row, last = int(rows[i]), self._last[rows[i]]
            if not self.begin(row, float(contexts["time_s"][i])) and last is not None:
                last.next_domain = int(domain[i])
            self._last[row] = pull = Pull(*values)
            self.open[row].setdefault(int(contexts["query"][i]), []).append(pull)
        return actions

    def rewards(self, completed: Completed) -> Floats:
        """Return clip(solved - 0.05 * min(latency / budget, 1), 0, 1) of finished queries, (k,)."""
        norm_latency = np.minimum(completed["latency_s"] / completed["budget_s"], 1.0)
        raw = completed["solved"] - LATENCY_WEIGHT * norm_latency
        return np.asarray(np.clip(raw, 0.0, 1.0), np.float64)

    def learn(self, row: int, query: int, reward: float) -> None:
        """Learn from every decision of a finished query, if this router made them."""
        s, table = self.settings, self.table[row]
        if query not in self.open[row]:
            return
        for pull in self.open[row].pop(query):
            ahead, cell = 0.0, (pull.state, pull.action)
            if pull.next_domain is not None:
                following = pull.next_domain * (self.spec.num_models + 1) + pull.next_load_state
                ahead = table[following].max()
            target = rules.td_target(max(0.0, reward - pull.load_penalty), ahead, s.gamma)
            table[cell] = rules.q_update(table[cell], target, s.lr)
        self.epsilon[row] = rules.decayed(self.epsilon[row], s.epsilon_min, s.epsilon_decay)
