"""Load-aware Q-learning as a router: a table over task types and load states, learned online.

- Task types: the three domains of tasks. Load states: balanced and `<model>_hot`. Actions: every
  (model, strategy). Window 8, hot threshold 1.5, penalty min(0.15 * excess, 0.20).
- One routed call is one assignment: its penalty is read from the tracker *before* it is recorded,
  the next load state after.
- The raw reward of a query is quality - 0.05 * norm_latency, cut to [0, 1]. Quality is solved (0 or
  1); norm_latency is min(latency / budget, 1).
- A query that finishes gives every one of its assignments that raw reward, each less its own
  penalty and not below 0; epsilon decays once.
- The next state is that of the row's next decision; an assignment that no decision has followed yet
  is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    validate,
)
from inframind_gym.policies import Completed, Contexts, PolicySpec, models_up
from inframind_gym.policies.draws import RowwiseDraws
from inframind_gym.policies.heuristic import DRAW_MODEL, DRAW_TIE
from inframind_gym.tasks.taskset import DOMAINS
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.tracker import LoadTracker

LATENCY_WEIGHT: Final = 0.05


@dataclass(frozen=True)
class ModelStrategy:
    """One action: the assignment team's (agent, provider) is here (model, strategy)."""

    model: str
    strategy: str

    def key(self) -> str:
        """Return the action as one string."""
        return f"{self.model}:{self.strategy}"


@dataclass
class Assignment:
    """A decision that waits for its query to finish."""

    task_type: str
    load_state: str
    action_idx: int
    load_penalty: float
    next_load_state: str
    next_task_type: str | None = None


class Learner:
    """Tracker, table and open decisions of one row."""

    def __init__(
        self, tracker: LoadTracker, coordinator: QLearningCoordinator[ModelStrategy]
    ) -> None:
        self.tracker = tracker
        self.coordinator = coordinator
        self.open: dict[int, list[Assignment]] = {}  # by the query's ordinal
        self.last: Assignment | None = None
        self.time_s = -np.inf

    def decide(
        self,
        query: int,
        task_type: str,
        time_s: float,
        allowed: NDArray[np.bool_],
        draws: tuple[float, float],
    ) -> int:
        """Choose, read the penalty, record, and remember the decision under its query."""
        if time_s < self.time_s:  # a new episode: its predecessor's open queries never finish
            self.open.clear()
            self.last = None
        self.time_s = time_s
        if self.last is not None:
            self.last.next_task_type = task_type
        load_state = self.tracker.get_load_state()
        action_idx, chosen = self.coordinator.select_action(
            task_type, load_state, allowed=allowed, draws=draws
        )
        load_penalty = self.tracker.get_load_penalty(chosen.model)
        self.tracker.record(chosen.model)
        self.last = Assignment(
            task_type, load_state, action_idx, load_penalty, self.tracker.get_load_state()
        )
        self.open.setdefault(query, []).append(self.last)
        return action_idx

    def finish(self, query: int, raw_reward: float) -> None:
        """Learn from every decision of a finished query."""
        assignments = self.open.pop(query, None)
        if assignments is None:  # another router's query
            return
        for assignment in assignments:
            self.coordinator.update(
                assignment.task_type,
                assignment.load_state,
                assignment.action_idx,
                max(0.0, raw_reward - assignment.load_penalty),
                assignment.next_task_type,
                assignment.next_load_state,
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


class QLearningLoadTrackerPolicy(RowwiseDraws):
    """LoadTracker and load-aware Q-learning, learning online; every row learns for itself.

    `reset` forgets what was learned, so that a run depends on its seed alone.

    Args:
        **settings: see `QLearningSettings`.

    Raises:
        ConfigError: there is no such setting, or a value is out of its range.
    """

    name = "q_learning_load_tracker"

    def __init__(self, **settings: float) -> None:
        super().__init__()
        self._settings = validate(settings, QLearningSettings, source=self.name)
        self.fingerprint = self._settings.model_dump_json()
        self.learners: list[Learner] = []

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        actions = [ModelStrategy(m, s) for m in spec.models for s in spec.strategies]
        self.learners, of = [], self._settings
        for _ in seeds:
            tracker = LoadTracker(
                spec.models,
                window_size=of.window_size,
                hot_threshold=of.hot_threshold,
                penalty_weight=of.penalty_weight,
                max_penalty=of.max_penalty,
            )
            coordinator = QLearningCoordinator(
                DOMAINS,
                tracker.load_states,
                actions,
                lr=of.lr,
                gamma=of.gamma,
                epsilon=of.epsilon,
                epsilon_min=of.epsilon_min,
                epsilon_decay=of.epsilon_decay,
                keep_history=False,
            )
            self.learners.append(Learner(tracker, coordinator))

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`; see `Policy.act_batch`."""
        up = models_up(contexts, self.spec.num_models)
        allowed = np.repeat(up, self.spec.num_strategies, axis=1)
        explore, which = self.uniform(rows, DRAW_TIE), self.uniform(rows, DRAW_MODEL)
        actions = [
            self.learners[row].decide(query, DOMAINS[domain], time_s, allowed[i], (e, w))
            for i, (row, query, domain, time_s, e, w) in enumerate(
                zip(
                    rows.tolist(),
                    contexts["query"].tolist(),
                    contexts["domain"].tolist(),
                    contexts["time_s"].tolist(),
                    explore.tolist(),
                    which.tolist(),
                    strict=True,
                )
            )
        ]
        self.decisions[rows] += 1
        return np.array(actions, np.int64)

    def observe(self, completed: Completed, row: int) -> None:
        """Learn from the queries of `row` that finished during the last step."""
        learner = self.learners[row]
        for query, reward in zip(
            completed["query"].tolist(), raw_reward(completed).tolist(), strict=True
        ):
            learner.finish(query, reward)


def raw_reward(completed: Completed) -> NDArray[np.float64]:
    """clip(solved - 0.05 * min(latency / budget, 1), 0, 1) of each finished query, (k,)."""
    norm_latency = np.minimum(completed["latency_s"] / completed["budget_s"], 1.0)
    raw = completed["solved"] - LATENCY_WEIGHT * norm_latency
    return np.asarray(np.clip(raw, 0.0, 1.0), np.float64)
