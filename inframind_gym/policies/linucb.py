"""LinUCB: a contextual bandit over the routes that learns while it serves.

Source: Li, Chu, Langford, Schapire, "A Contextual-Bandit Approach to Personalized News Article
Recommendation" (WWW 2010), algorithm 1, disjoint linear models. Every arm a, a route (model,
strategy), has its own ridge regression of the reward on features x_a of dimension d:

    A_a = ridge·I + Σ x xᵀ      b_a = Σ reward·x      θ_a = A_a⁻¹ b_a
    choose the arm of largest  θ_aᵀ x_a + alpha·sqrt(x_aᵀ A_a⁻¹ x_a)

A⁻¹ is kept and updated by Sherman and Morrison's formula, d² operations a decision.

- Features of an arm: 1, b_rem, queue depth and end-to-end latency of the arm's model (each as
  normalised in the observation), the share of the workflow's waves that is done, the domain as
  one-hot, and the first principal components of the query's embedding, whose axes are those of
  the built-in training tasks.
- Every decision of a query is one pull, and each gets the query's reward when the query is done:
  solved - cost_weight·cost within the budget, -cost_weight after it, solved or not.
- Under overload bad news comes as late as the queries do. There is no need to wait for it: a query
  whose deadline has passed is learned from before the next choice.
- Every row learns for itself and `reset` forgets, so that a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import NonNegative, Positive, StrictModel, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.policies import Completed, Contexts, PolicySpec, models_up
from inframind_gym.policies.draws import RowwiseDraws, draw_from
from inframind_gym.policies.heuristic import DRAW_TIE
from inframind_gym.tasks import load_tasks
from inframind_gym.tasks.taskset import DOMAINS

TIE: Final = 1e-9  # scores that are closer than this are equal


class DisjointModels:
    """The ridge regressions of all arms of one row.

    Args:
        num_arms: A.
        size: d, features.
        ridge: weight of the identity in A_a at the start.

    Attributes:
        inverse: (A, d, d) A_a⁻¹.
        target: (A, d) b_a.
        theta: (A, d) A_a⁻¹ b_a.
    """

    def __init__(self, num_arms: int, size: int, ridge: float) -> None:
        self.inverse = np.tile(np.eye(size) / ridge, (num_arms, 1, 1))
        self.target = np.zeros((num_arms, size))
        self.theta = np.zeros((num_arms, size))

    def scores(self, features: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """The upper confidence bound of every arm, (A,), from its features (A, d)."""
        mean = (self.theta * features).sum(axis=1)
        spread = ((self.inverse @ features[:, :, None])[:, :, 0] * features).sum(axis=1)
        bound: NDArray[np.float64] = mean + alpha * np.sqrt(np.maximum(spread, 0.0))
        return bound

    def update(self, arm: int, features: NDArray[np.float64], reward: float) -> None:
        """Learn that `arm` gave `reward` where its features were `features` (d,)."""
        inverse = self.inverse[arm]
        along = inverse @ features
        inverse -= np.outer(along, along) / (1.0 + features @ along)
        self.target[arm] += reward * features
        self.theta[arm] = inverse @ self.target[arm]


class LinUcbSettings(StrictModel):
    """The settings of `LinUCBPolicy`, checked."""

    alpha: NonNegative
    ridge: Positive
    embedding_components: Annotated[int, Field(ge=0, le=EMBED_DIM)]
    cost_weight: NonNegative


class LinUCBPolicy(RowwiseDraws):
    """Disjoint LinUCB over the routes, online, one learner a row.

    Args:
        alpha: weight of the uncertainty.
        ridge: weight of the identity in A_a.
        embedding_components: principal components of the query's embedding among the features.
        cost_weight: what latency / budget of 1 takes from the reward.

    Raises:
        ConfigError: a number is out of range.
    """

    name = "linucb"

    def __init__(
        self,
        alpha: float = 0.02,
        ridge: float = 1.0,
        embedding_components: int = 4,
        cost_weight: float = 1.0,
    ) -> None:
        super().__init__()
        given = {
            "alpha": alpha,
            "ridge": ridge,
            "embedding_components": embedding_components,
            "cost_weight": cost_weight,
        }
        of = validate(given, LinUcbSettings, source=self.name)
        self.alpha, self.ridge, self.cost_weight = of.alpha, of.ridge, of.cost_weight
        self.components = of.embedding_components
        self.fingerprint = f"{self.alpha} {self.ridge} {self.components} {self.cost_weight}"
        self.learners: list[DisjointModels] = []
        self._open: list[dict[int, list[tuple[int, NDArray[np.float64]]]]] = []  # by query
        self._deadlines: list[list[tuple[float, int]]] = []  # heaps of (deadline_s, query)
        self._time_s: NDArray[np.float64] = np.zeros(0)  # (rows,)
        self._axes: NDArray[np.float64] = np.zeros((0, EMBED_DIM))  # (components, 384)
        self._mean: NDArray[np.float64] = np.zeros(EMBED_DIM)
        self._scale: NDArray[np.float64] = np.zeros(0)  # (components,)
        self._of_task: NDArray[np.float64] = np.zeros((0, 0))  # (T, components)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        self._fit_axes(load_tasks("builtin", split="train").embeddings, spec.task_embeddings)
        size = 5 + len(DOMAINS) + self.components
        self.learners = [DisjointModels(spec.num_actions, size, self.ridge) for _ in seeds]
        self._open = [{} for _ in seeds]
        self._deadlines = [[] for _ in seeds]
        self._time_s = np.full(len(seeds), -np.inf)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`; see `Policy.act_batch`."""
        for row, time_s in zip(rows.tolist(), contexts["time_s"].tolist(), strict=True):
            self._advance(row, time_s)
        features = self.features(observations, contexts)
        allowed = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, 1)
        scores = np.array(
            [
                self.learners[row].scores(features[i], self.alpha)
                for i, row in enumerate(rows.tolist())
            ]
        )
        scores = np.where(allowed, scores, -np.inf)
        best = scores >= scores.max(axis=1, keepdims=True) - TIE
        actions = draw_from(best.astype(np.float64), self.uniform(rows, DRAW_TIE))
        self.decisions[rows] += 1
        deadlines_s = contexts["arrival_s"] + contexts["budget_s"]
        for i, (row, query, deadline_s, arm) in enumerate(
            zip(
                rows.tolist(),
                contexts["query"].tolist(),
                deadlines_s.tolist(),
                actions.tolist(),
                strict=True,
            )
        ):
            if query not in self._open[row]:
                heapq.heappush(self._deadlines[row], (deadline_s, query))
            self._open[row].setdefault(query, []).append((arm, features[i, arm]))
        return actions

    def observe(self, completed: Completed, row: int) -> None:
        """Learn from the queries of `row` that finished during the last step."""
        rewards = self.rewards(completed)
        for query, reward in zip(completed["query"].tolist(), rewards.tolist(), strict=True):
            self._learn(row, query, reward)

    def _advance(self, row: int, time_s: float) -> None:
        """Note the time of a row's decision: an episode may have begun, deadlines have passed."""
        deadlines = self._deadlines[row]
        if time_s < self._time_s[row]:  # a new episode: what is open never finishes
            self._open[row].clear()
            deadlines.clear()
        self._time_s[row] = time_s
        while deadlines and deadlines[0][0] < time_s:
            self._learn(row, heapq.heappop(deadlines)[1], -self.cost_weight)

    def _learn(self, row: int, query: int, reward: float) -> None:
        """Give every open decision of a query its reward."""
        for arm, features in self._open[row].pop(query, ()):
            self.learners[row].update(arm, features, reward)

    def rewards(self, completed: Completed) -> NDArray[np.float64]:
        """The reward of each finished query, (k,)."""
        cost = completed["cost"]
        in_time = completed["solved"] - self.cost_weight * cost
        return np.asarray(np.where(cost <= 1.0, in_time, -self.cost_weight))

    def features(
        self, observations: NDArray[np.float32], contexts: Contexts
    ) -> NDArray[np.float64]:
        """The features of every arm, (n, A, d)."""
        layout, spec = self.spec.layout, self.spec
        n = len(contexts)
        shared = np.zeros((n, 3 + len(DOMAINS) + self.components))
        shared[:, 0] = 1.0
        shared[:, 1] = observations[:, layout.budget]
        shared[:, 2] = contexts["wave"] / np.maximum(contexts["num_waves"], 1)
        shared[np.arange(n), 3 + contexts["domain"].astype(np.int64)] = 1.0
        shared[:, 3 + len(DOMAINS) :] = self._query_components(observations)
        own = np.zeros((n, spec.num_models, 2))
        for k, feature in enumerate(("queue", "e2e")):
            if layout.has(feature):
                own[:, :, k] = observations[:, layout.system(feature)]
        return np.concatenate(
            [
                np.broadcast_to(shared[:, None], (n, spec.num_actions, shared.shape[1])),
                np.repeat(own, spec.num_strategies, axis=1),
            ],
            axis=2,
        )

    def _fit_axes(self, known: NDArray[np.float32], asked: NDArray[np.float32]) -> None:
        """Principal axes of known tasks, each scaled to unit variance, and where the asked lie."""
        self._axes = np.zeros((self.components, EMBED_DIM))
        self._scale = np.zeros(self.components)
        self._mean = np.zeros(EMBED_DIM)
        if not len(asked) or not self.components:  # the spec tells of no tasks
            return
        tasks = known.astype(np.float64)
        self._mean = tasks.mean(axis=0)
        centred = tasks - self._mean
        variances, axes = np.linalg.eigh(centred.T @ centred / len(tasks))
        first = np.arange(EMBED_DIM - 1, EMBED_DIM - 1 - self.components, -1)
        self._axes = axes[:, first].T
        signs = np.sign(self._axes[np.arange(len(first)), np.abs(self._axes).argmax(axis=1)])
        self._axes *= signs[:, None]
        self._scale = 1.0 / np.sqrt(np.maximum(variances[first], 1e-12))
        self._of_task = self._project(asked.astype(np.float64))

    def _project(self, embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
        """Components (n, components) of embeddings (n, 384)."""
        products = (embeddings - self._mean)[:, None, :] * self._axes
        return np.asarray(products.sum(axis=2) * self._scale)

    def _query_components(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        layout = self.spec.layout
        if not self.components or not self._scale.any():
            return np.zeros((len(observations), self.components))
        if layout.embedding == "index":
            return self._of_task[layout.query_index(observations)]
        return self._project(observations[:, layout.query].astype(np.float64))
