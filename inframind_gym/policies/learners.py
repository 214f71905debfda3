"""Learners that play online, from nothing: tabular Q-learning, LinUCB, Thompson sampling.

Routers first, then those of assignment. Every row learns for itself and `reset` forgets, so that a
run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    validate,
)
from inframind_gym.envs.assignment import AssignmentContext, AssignmentSpec
from inframind_gym.envs.assignment import Completed as CompletedTasks
from inframind_gym.envs.layout import EMBED_DIM, PolicySpec
from inframind_gym.policies.base import (
    BasePolicy,
    Bools,
    Completed,
    Contexts,
    Ints,
    draw_from,
    models_up,
)
from inframind_gym.policies.simple import DRAW_MODEL, DRAW_TIE
from inframind_gym.policies.teams import BaseAssignmentPolicy, one_a_row, penalties
from inframind_gym.simulator.rng import STREAM_POLICY
from inframind_gym.tasks import load_tasks
from inframind_gym.tasks.taskset import DOMAINS
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.coordinator import LoadTracker, QLearningCoordinator
from inframind_gym.teams.assignment.simulate import normals

TIE: Final = 1e-9  # scores that are closer than this are equal
LATENCY_WEIGHT: Final = 0.05  # of latency ÷ budget in the reward of a routed query
TRAINING_TASKS: Final = 50  # of the production variants of Q-learning
_EXPLORE, _ACTION, _NEXT_TYPE = range(3)  # uses of draws


class DisjointModels:
    """The ridge regressions of all arms of one row.

    Args:
        num_arms: A.
        size: d, features.
        ridge: weight of the identity in A_a at the start.
    """

    def __init__(self, num_arms: int, size: int, ridge: float) -> None:
        self.inverse = np.tile(np.eye(size) / ridge, (num_arms, 1, 1))  # (A, d, d) A_a⁻¹
        self.target = np.zeros((num_arms, size))  # (A, d) b_a
        self.theta = np.zeros((num_arms, size))  # (A, d) A_a⁻¹ b_a

    def scores(self, features: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """Return the upper confidence bound of every arm, (A,), from its features (A, d)."""
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
    """Settings of `LinUCBPolicy`."""

    alpha: NonNegative = 0.02  # weight of the uncertainty
    ridge: Positive = 1.0  # weight of the identity in A_a
    embedding_components: Annotated[int, Field(ge=0, le=EMBED_DIM)] = 4  # of the query's embedding
    cost_weight: NonNegative = 1.0  # what latency / budget of 1 takes from the reward


class LinUCBPolicy(BasePolicy):
    """Disjoint LinUCB over the routes.

    Source: Li, Chu, Langford, Schapire, "A Contextual-Bandit Approach to Personalized News Article
    Recommendation" (WWW 2010), algorithm 1. Every arm a, a route (model, strategy), has its own
    ridge regression of the reward on features x_a of dimension d:

        A_a = ridge·I + Σ x xᵀ      b_a = Σ reward·x      θ_a = A_a⁻¹ b_a
        choose the arm of largest  θ_aᵀ x_a + alpha·sqrt(x_aᵀ A_a⁻¹ x_a)

    A⁻¹ is kept and updated by Sherman and Morrison's formula, d² operations a decision.

    - Features of an arm: 1, b_rem, the share of the workflow's waves that is done, the domain as
      one-hot, the first principal components of the query's embedding, whose axes are those of the
      built-in training tasks; queue depth and end-to-end latency of the arm's model.
    - Every decision of a query is one pull, and each gets the query's reward when the query is
      done: solved - cost_weight·cost within the budget, -cost_weight after it, solved or not.
    - Under overload bad news comes as late as the queries do. There is no need to wait for it: a
      query whose deadline has passed is learned from before the next choice.

    Args:
        **settings: see `LinUcbSettings`.

    Raises:
        ConfigError: there is no such setting, or a number is out of range.
    """

    name = "linucb"

    def __init__(self, **settings: float) -> None:
        self.settings = of = validate(settings, LinUcbSettings, source=self.name)
        self.components = of.embedding_components
        self.fingerprint = f"{of.alpha} {of.ridge} {self.components} {of.cost_weight}"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        self._fit_axes(load_tasks("builtin", split="train").embeddings, spec.task_embeddings)
        size, ridge = 5 + len(DOMAINS) + self.components, self.settings.ridge
        self.learners = [DisjointModels(spec.num_actions, size, ridge) for _ in seeds]
        # Per row: query -> its pulls, (arm, features); a heap of (deadline_s, query).
        self._open: list[dict[int, list[tuple[int, NDArray[np.float64]]]]] = [{} for _ in seeds]
        self._deadlines: list[list[tuple[float, int]]] = [[] for _ in seeds]
        self._time_s = np.full(len(seeds), -np.inf)

    def act_batch(self, observations: NDArray[np.float32], contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        for row, time_s in zip(rows.tolist(), contexts["time_s"].tolist(), strict=True):
            if time_s < self._time_s[row]:  # a new episode: what is open never finishes
                self._open[row].clear()
                self._deadlines[row].clear()
            self._time_s[row] = time_s
            while self._deadlines[row] and self._deadlines[row][0][0] < time_s:
                query = heapq.heappop(self._deadlines[row])[1]
                self._learn(row, query, -self.settings.cost_weight)
        features = self.features(observations, contexts)
        allowed = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, 1)
        pairs, alpha = zip(rows.tolist(), features, strict=True), self.settings.alpha
        scores = np.array([self.learners[row].scores(x, alpha) for row, x in pairs])
        scores = np.where(allowed, scores, -np.inf)
        best = scores >= scores.max(axis=1, keepdims=True) - TIE
        actions = draw_from(best.astype(np.float64), self.uniform(rows, DRAW_TIE))
        self.decisions[rows] += 1
        for i, (row, arm) in enumerate(zip(rows.tolist(), actions.tolist(), strict=True)):
            query = int(contexts["query"][i])
            if query not in self._open[row]:
                deadline_s = float(contexts["arrival_s"][i] + contexts["budget_s"][i])
                heapq.heappush(self._deadlines[row], (deadline_s, query))
            self._open[row].setdefault(query, []).append((arm, features[i, arm]))
        return actions

    def observe(self, completed: Completed, row: int) -> None:
        """Learn from the queries of `row` that finished during the last step."""
        rewards = self.rewards(completed)
        for query, reward in zip(completed["query"].tolist(), rewards.tolist(), strict=True):
            self._learn(row, query, reward)

    def _learn(self, row: int, query: int, reward: float) -> None:
        """Give every open decision of a query its reward."""
        for arm, features in self._open[row].pop(query, ()):
            self.learners[row].update(arm, features, reward)

    def rewards(self, completed: Completed) -> NDArray[np.float64]:
        """The reward of each finished query, (k,)."""
        cost, weight = completed["cost"], self.settings.cost_weight
        return np.asarray(np.where(cost <= 1.0, completed["solved"] - weight * cost, -weight))

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
        if self.components and self._scale.any():
            if layout.embedding == "index":
                components = self._of_task[layout.query_index(observations)]
            else:
                components = self._project(observations[:, layout.query].astype(np.float64))
            shared[:, 3 + len(DOMAINS) :] = components
        of_model = np.zeros((n, spec.num_models, 2))
        for k, feature in enumerate(("queue", "e2e")):
            if layout.has(feature):
                of_model[:, :, k] = observations[:, layout.system(feature)]
        every = np.broadcast_to(shared[:, None], (n, spec.num_actions, shared.shape[1]))
        return np.concatenate([every, np.repeat(of_model, spec.num_strategies, axis=1)], axis=2)

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


@dataclass(frozen=True)
class ModelStrategy:
    """One action: the assignment team's (agent, provider) is here (model, strategy)."""

    model: str
    strategy: str

    def key(self) -> str:
        """Return the action as one string."""
        return f"{self.model}:{self.strategy}"


@dataclass
class Pull:
    """A decision that waits for its query to finish."""

    task_type: str
    load_state: str
    action: int
    load_penalty: float
    next_load_state: str
    next_task_type: str | None = None  # of the row's next decision; None: none has followed


class Learner:
    """Tracker, table and open decisions of one row."""

    def __init__(
        self, tracker: LoadTracker, coordinator: QLearningCoordinator[ModelStrategy]
    ) -> None:
        self.tracker, self.coordinator = tracker, coordinator
        self.open: dict[int, list[Pull]] = {}  # by the query's ordinal
        self.last: Pull | None = None
        self.time_s = -np.inf

    def decide(
        self, query: int, task_type: str, time_s: float, up: Bools, draws: tuple[float, float]
    ) -> int:
        """Choose, read the penalty, record, and remember the decision under its query."""
        if time_s < self.time_s:  # a new episode: its predecessor's open queries never finish
            self.open.clear()
            self.last = None
        self.time_s = time_s
        if self.last is not None:
            self.last.next_task_type = task_type
        state = self.tracker.get_load_state()
        action, chosen = self.coordinator.select_action(task_type, state, allowed=up, draws=draws)
        penalty = self.tracker.get_load_penalty(chosen.model)
        self.tracker.record(chosen.model)
        self.last = Pull(task_type, state, action, penalty, self.tracker.get_load_state())
        self.open.setdefault(query, []).append(self.last)
        return action

    def finish(self, query: int, raw_reward: float) -> None:
        """Learn from every decision of a finished query; one of another router is left out."""
        if query not in self.open:
            return
        for pull in self.open.pop(query):
            self.coordinator.update(
                pull.task_type,
                pull.load_state,
                pull.action,
                max(0.0, raw_reward - pull.load_penalty),
                pull.next_task_type,
                pull.next_load_state,
            )
        self.coordinator.decay_epsilon()


class QLearningSettings(StrictModel):
    """Settings of load-aware Q-learning."""

    window_size: PositiveInt = 8  # assignments that the tracker remembers
    hot_threshold: Positive = 1.5  # multiple of the fair share above which a model is hot
    penalty_weight: NonNegative = 0.15  # penalty for each fair share in excess
    max_penalty: NonNegative = 0.2  # cap of the penalty
    lr: Fraction = 0.15  # learning rate
    gamma: Fraction = 0.95  # discount
    epsilon: Fraction = 1.0  # probability of exploring at the start
    epsilon_min: Fraction = 0.05  # its least value
    epsilon_decay: Fraction = 0.98  # its factor at every finished query


class QLearningLoadTrackerPolicy(BasePolicy):
    """The assignment team's load-aware Q-learning as a router.

    - Task types are the three domains of tasks, load states balanced and `<model>_hot`, actions
      every (model, strategy).
    - One routed call is one assignment: its penalty is read from the tracker *before* it is
      recorded, the next load state after.
    - A query that finishes gives every one of its assignments its raw reward, each less its own
      penalty and not below 0; epsilon decays once. The next state is that of the row's next
      decision; an assignment that no decision has followed yet is final.

    Args:
        **settings: see `QLearningSettings`.

    Raises:
        ConfigError: there is no such setting, or a value is out of its range.
    """

    name = "q_learning_load_tracker"

    def __init__(self, **settings: float) -> None:
        self._settings = validate(settings, QLearningSettings, source=self.name)
        self.fingerprint = self._settings.model_dump_json()

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        actions = [ModelStrategy(m, s) for m in spec.models for s in spec.strategies]
        settings = self._settings.model_dump()
        of_tracker = ("window_size", "hot_threshold", "penalty_weight", "max_penalty")
        tracking = {key: settings.pop(key) for key in of_tracker}
        self.learners = []
        for _ in seeds:
            tracker = LoadTracker(spec.models, **tracking)
            coordinator = QLearningCoordinator(
                DOMAINS, tracker.load_states, actions, **settings, keep_history=False
            )
            self.learners.append(Learner(tracker, coordinator))

    def act_batch(self, observations: NDArray[np.float32], contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        up = models_up(contexts, self.spec.num_models).repeat(self.spec.num_strategies, axis=1)
        explore, which = self.uniform(rows, DRAW_TIE), self.uniform(rows, DRAW_MODEL)
        actions = []
        for i, row in enumerate(rows.tolist()):
            query, time_s = int(contexts["query"][i]), float(contexts["time_s"][i])
            domain, draws = DOMAINS[contexts["domain"][i]], (float(explore[i]), float(which[i]))
            actions.append(self.learners[row].decide(query, domain, time_s, up[i], draws))
        self.decisions[rows] += 1
        return np.array(actions, np.int64)

    def observe(self, completed: Completed, row: int) -> None:
        """Learn from the queries of `row` that finished during the last step."""
        rewards = raw_reward(completed).tolist()
        for query, reward in zip(completed["query"].tolist(), rewards, strict=True):
            self.learners[row].finish(query, reward)


def raw_reward(completed: Completed) -> NDArray[np.float64]:
    """clip(solved - 0.05 * min(latency / budget, 1), 0, 1) of each finished query, (k,)."""
    norm_latency = np.minimum(completed["latency_s"] / completed["budget_s"], 1.0)
    raw = completed["solved"] - LATENCY_WEIGHT * norm_latency
    return np.asarray(np.clip(raw, 0.0, 1.0), np.float64)


class QSettings(StrictModel):
    """Settings of assignment's Q-learning."""

    learning_rate: Fraction = rules.LEARNING_RATE
    discount: Fraction = rules.DISCOUNT
    epsilon: Fraction = rules.EPSILON
    epsilon_min: Fraction = rules.EPSILON_MIN
    epsilon_decay: Fraction = rules.EPSILON_DECAY
    training_tasks: NonNegativeInt = TRAINING_TASKS


class QSeedAssignment(BaseAssignmentPolicy):
    """Load-aware Q-learning to the letter of its source.

    The table has a row for each task type and load state and a column for each action, 0 at the
    start. Each task that ended is one update, then epsilon decays. Greedy actions are the first of
    the best (on a row of zeros the analyst on openai), and the next state has a task type drawn
    from the four, not the one that comes. Not in the source: epsilon begins at 1.0 and does not
    fall below 0.05.

    Args:
        **settings: see `QSettings`.

    Raises:
        ConfigError: there is no such setting, or a value is out of its range.
    """

    name = "q_seed"
    random_tie: ClassVar[bool] = False
    production: ClassVar[bool] = False  # greedy after `training_tasks`
    terminal: ClassVar[bool] = False  # and without a next state
    changed: ClassVar[dict[str, float]] = {}

    def __init__(self, **settings: float) -> None:
        self.settings = validate({**self.changed, **settings}, QSettings, source=self.name)
        self.fingerprint = self.settings.model_dump_json()

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        self.table = np.zeros((len(seeds), rules.NUM_STATES, rules.NUM_ACTIONS))
        self.epsilon = np.full(len(seeds), self.settings.epsilon)  # (rows,) exploration rates

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return a random action with probability epsilon, else a best one, (n,)."""
        values = self.table[rows, rules.state_index(context.task_type, context.load_state)]
        greedy = values.argmax(axis=1)
        if self.random_tie:
            greedy = self.best(values, rows, context.ordinal)
        epsilon = np.where(self._in_production(context.ordinal), 0.0, self.epsilon[rows])
        random = np.floor(self.draw(rows, context.ordinal, _ACTION) * rules.NUM_ACTIONS)
        explores = self.draw(rows, context.ordinal, _EXPLORE) < epsilon
        return np.where(explores, random.astype(np.int64), greedy)

    def observe(self, completed: CompletedTasks, rows: Ints) -> None:
        """Update the cell of every task that ended, and let epsilon decay."""
        for part in one_a_row(completed):
            u = self.draw(part.row, part.ordinal, _NEXT_TYPE)
            next_type = np.floor(u * len(rules.TASK_TYPES)).astype(np.int64)
            next_state = rules.state_index(next_type, part.next_load_state)
            ahead = self.table[part.row, next_state].max(axis=1)
            if self.terminal:
                ahead = np.where(self._in_production(part.ordinal), 0.0, ahead)
            target = rules.td_target(part.reward, ahead, self.settings.discount)
            cell = part.row, rules.state_index(part.task_type, part.load_state), part.action
            self.table[cell] = rules.q_update(self.table[cell], target, self.settings.learning_rate)
            self.epsilon[part.row] = rules.decayed(
                self.epsilon[part.row], self.settings.epsilon_min, self.settings.epsilon_decay
            )

    def _in_production(self, ordinals: Ints) -> Bools:
        return np.asarray(self.production & (ordinals >= self.settings.training_tasks))


class QRandomTieAssignment(QSeedAssignment):
    """`q_seed` that draws one of the best actions."""

    name = "q_random_tie"
    random_tie = True


class QBanditAssignment(QRandomTieAssignment):
    """`q_random_tie` with a discount of 0.

    Load penalties depend on earlier actions, but not much; the smaller target is learned from fewer
    tasks.
    """

    name = "q_bandit"
    changed: ClassVar[dict[str, float]] = {"discount": 0.0}


class QProductionAssignment(QSeedAssignment):
    """`q_seed` for 50 tasks, then greedy, with updates that have no next state.

    As in the source's production system. Values that were trained towards r / (1 - discount) are
    then pulled down to r, cell by cell: it unlearns.
    """

    name = "q_production"
    production = True
    terminal = True


class QProductionBootstrapAssignment(QProductionAssignment):
    """`q_seed` for 50 tasks, then greedy with the same updates as before."""

    name = "q_production_bootstrap"
    terminal = False


class BanditAssignment(BaseAssignmentPolicy):
    """Base of the bandits, which know the rule of the load penalty.

    The application computes the penalty itself: they learn the reward of an answer and subtract the
    penalty of the moment. With queues the penalty is what a call has waited, which nobody knows
    beforehand: it is part of what they learn.
    """

    def learned(self, completed: CompletedTasks) -> NDArray[np.float64]:
        """Return the rewards to learn from, (k,)."""
        return completed.reward if self.spec.config.queues else completed.raw_reward


class LinUcbAssignmentSettings(StrictModel):
    """Settings of `LinUcbAssignment`."""

    alpha: NonNegative = 0.02  # weight of the uncertainty
    ridge: Positive = 1.0  # weight of the identity
    prior_mean: NonNegative = 0.7  # of a reward; the regressions are of the difference to it


class LinUcbAssignment(BanditAssignment):
    """Disjoint LinUCB (Li et al. 2010): a ridge regression for each action.

    The features are the task's type (one-hot), its complexity and, with queues, the tasks in the
    action's server over 8.

    Args:
        **settings: see `LinUcbAssignmentSettings`.

    Raises:
        ConfigError: there is no such setting, or a number is out of range.
    """

    name = "linucb"

    def __init__(self, **settings: float) -> None:
        self.settings = validate(settings, LinUcbAssignmentSettings, source=self.name)
        self.fingerprint = self.settings.model_dump_json()

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        size = len(rules.TASK_TYPES) + 1 + spec.config.queues
        shape = (len(seeds), rules.NUM_ACTIONS, size)
        start = np.eye(size) / self.settings.ridge
        self.inverse = np.broadcast_to(start, (*shape, size)).copy()
        self.target = np.zeros(shape)
        self._seen = np.zeros((len(seeds), spec.config.num_tasks, *shape[1:]))

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions of the highest upper bound, (n,)."""
        of_type = np.eye(len(rules.TASK_TYPES))[context.task_type]
        shared = np.column_stack([of_type, context.complexity])
        features = np.repeat(shared[:, None], rules.NUM_ACTIONS, axis=1)  # (n, 8, d)
        if self.spec.config.queues:
            load = context.in_flight[:, :, None] / 8.0
            features = np.concatenate([features, load], axis=2)
        self._seen[rows, context.ordinal] = features
        inverse = self.inverse[rows]
        theta = np.einsum("naij,naj->nai", inverse, self.target[rows])
        mean = np.einsum("nai,nai->na", theta, features)
        variance = np.einsum("nai,naij,naj->na", features, inverse, features)
        bound = mean + self.settings.alpha * np.sqrt(variance) - penalties(self.spec, context)
        return self.best(bound, rows, context.ordinal)

    def observe(self, completed: CompletedTasks, rows: Ints) -> None:
        """Update the regressions of the actions that were taken."""
        for part in one_a_row(completed._replace(reward=self.learned(completed))):
            at = part.row, part.action
            x = self._seen[part.row, part.ordinal, part.action]
            along = np.einsum("nij,nj->ni", self.inverse[at], x)
            scale = 1.0 + np.einsum("ni,ni->n", x, along)
            self.inverse[at] -= along[:, :, None] * along[:, None, :] / scale[:, None, None]
            self.target[at] += (part.reward - self.settings.prior_mean)[:, None] * x


class ThompsonSettings(StrictModel):
    """Settings of `ThompsonAssignment`."""

    prior_mean: NonNegative = 0.7  # of a reward
    prior_sd: Positive = 0.05  # of a mean reward
    noise_sd: Positive = 0.04  # of one reward around its mean


class ThompsonAssignment(BanditAssignment):
    """Thompson sampling with a normal posterior for each task type and action.

    Args:
        **settings: see `ThompsonSettings`.

    Raises:
        ConfigError: there is no such setting, or a number is out of range.
    """

    name = "thompson"

    def __init__(self, **settings: float) -> None:
        self.settings = validate(settings, ThompsonSettings, source=self.name)
        self.fingerprint = self.settings.model_dump_json()

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        shape = (len(seeds), len(rules.TASK_TYPES), rules.NUM_ACTIONS)
        self.count, self.total = np.zeros(shape), np.zeros(shape)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the best actions of a draw from the posterior, (n,)."""
        of, at = self.settings, (rows, context.task_type)
        prior, precision = of.prior_sd**-2, of.prior_sd**-2 + self.count[at] / of.noise_sd**2
        mean = (prior * of.prior_mean + self.total[at] / of.noise_sd**2) / precision
        uses = range(100, 100 + rules.NUM_ACTIONS)
        draws = [normals(self.seeds[rows], STREAM_POLICY, context.ordinal, use) for use in uses]
        noise = np.stack(draws, axis=1)
        values = mean + noise / np.sqrt(precision) - penalties(self.spec, context)
        return np.asarray(values.argmax(axis=1))

    def observe(self, completed: CompletedTasks, rows: Ints) -> None:
        """Count the rewards of the actions that were taken."""
        at = rows, completed.task_type, completed.action
        np.add.at(self.count, at, 1.0)
        np.add.at(self.total, at, self.learned(completed))
