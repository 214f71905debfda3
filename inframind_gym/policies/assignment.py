"""Policies of assignment: rules, bounds, and learners that learn online from nothing.

Every row learns for itself and `reset` forgets, so that a run depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import Fraction, NonNegative, NonNegativeInt, Positive, StrictModel
from inframind_gym.envs.assignment import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.core import Bools, Floats, Ints
from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import ContextPolicy, place_in
from inframind_gym.policies.learners import Learner, Ridge
from inframind_gym.simulator.rng import STREAM_POLICY
from inframind_gym.teams.assignment import optimum, rules
from inframind_gym.teams.assignment.simulate import normals

FIRST_SERVICE_S: Final = 2.0  # assumed until a server's first call has ended
DEFAULT_PROVIDER: Final = rules.PROVIDERS.index("openai")
# The agent whose role has the name of a task's type, by type.
EXPERT: Final = np.array(
    [rules.AGENTS.index(a) for a in ("analyst", "coder", "researcher", "validator")]
)
TRAINING_TASKS: Final = 50  # of the production variants of Q-learning
_EXPLORE, _ACTION, _NEXT_TYPE = range(3)  # uses of draws


class BaseAssignmentPolicy(ContextPolicy[AssignmentSpec, AssignmentContext]):
    """A policy that decides from the contexts alone, by `choose`, and learns in `observe`."""

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Learn from tasks (k,) that ended, in `rows` (k,)."""

    def best(self, values: Floats, rows: Ints, ordinals: Ints, use: int = 99) -> Ints:
        """Return the places of the largest of `values` (n, k), drawn where several are, (n,)."""
        return place_in(values >= values.max(axis=1, keepdims=True), self.draw(rows, ordinals, use))


def penalties(spec: AssignmentSpec, context: AssignmentContext) -> Floats:
    """Return the load penalty of each action, (n, 8): 0 with queues, where waiting replaces it."""
    if spec.config.queues:
        return np.zeros((len(context.task), rules.NUM_ACTIONS))
    return rules.load_penalties(context.counts)[:, rules.agent_of(np.arange(rules.NUM_ACTIONS))]


def one_a_row(completed: Completed) -> Iterator[Completed]:
    """Split tasks into parts with at most one task a row, each row's in the order they ended."""
    left = np.ones(len(completed.row), np.bool_)
    while left.any():
        places = np.flatnonzero(left)
        first = places[np.unique(completed.row[places], return_index=True)[1]]
        chosen = np.zeros_like(left)
        chosen[first] = True
        left &= ~chosen
        yield completed.of(chosen)


class RandomAssignment(BaseAssignmentPolicy):
    """Any of the eight actions."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return draws, (n,)."""
        return np.asarray(self.draw(rows, context.ordinal) * rules.NUM_ACTIONS, np.int64)


class RoundRobinAssignment(BaseAssignmentPolicy):
    """The agents in turn, on the default provider."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the turns."""
        return np.asarray(rules.action_index(context.ordinal % len(rules.AGENTS), DEFAULT_PROVIDER))


class LeastLoadedAssignment(BaseAssignmentPolicy):
    """The least loaded agent, on the default provider; ties are drawn.

    Its load is the tasks in flight with queues, and the share of the window without.
    """

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        load = context.counts
        if self.spec.config.queues:
            shape = (len(rows), len(rules.AGENTS), len(rules.PROVIDERS))
            load = context.in_flight.reshape(shape).sum(axis=2)
        agent = self.best(-load.astype(np.float64), rows, context.ordinal)
        return np.asarray(rules.action_index(agent, DEFAULT_PROVIDER))


class LeastBusyAssignment(BaseAssignmentPolicy):
    """The deployment with fewest requests in flight; ties go to the first.

    This is the rule of LiteLLM's routing strategy "least-busy". Where tasks come one at a time,
    nothing is in flight when one arrives, and all of them go to the first deployment.
    """

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(context.in_flight.argmin(axis=1))


class StaticExpertAssignment(BaseAssignmentPolicy):
    """The agent whose role has the name of the task's type, on the default provider."""

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(rules.action_index(EXPERT[context.task_type], DEFAULT_PROVIDER))


class MyopicAssignment(BaseAssignmentPolicy):
    """The highest expected reward of this task, whatever it does to the next ones.

    With queues the wait is estimated: the calls ahead of the task times the mean service time so
    far, over the server's slots.
    """

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Look up the expected rewards."""
        super().reset(spec, seeds)
        self._expected = optimum.expected_rewards(spec.config.team)
        self._served = np.ones((len(seeds), rules.NUM_ACTIONS))
        self._service_s = np.full((len(seeds), rules.NUM_ACTIONS), FIRST_SERVICE_S)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        levels = np.round(penalties(self.spec, context), 12)
        level = np.searchsorted(self._expected.levels, levels)
        actions = np.arange(rules.NUM_ACTIONS)
        expected = self._expected.reward[context.task[:, None], actions, level]
        if self.spec.config.queues:
            ahead = np.maximum(context.in_flight - self.spec.slots + 1, 0)
            service_s = self._service_s[rows] / self._served[rows]
            expected = expected - rules.waiting_penalty(ahead * service_s / self.spec.slots)
        return np.asarray(expected.argmax(axis=1))

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Note times of service."""
        at = completed.row, completed.action
        np.add.at(self._served, at, 1.0)
        np.add.at(self._service_s, at, completed.latency_s - completed.wait_s)


class OptimalAssignment(BaseAssignmentPolicy):
    """The actions of the exact optimum (`inframind_gym.teams.assignment.optimum`)."""

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Solve the run, or look its solution up.

        Raises:
            ConfigError: the run has queues, drifting agents or no end.
        """
        super().reset(spec, seeds)
        config = spec.config
        if config.queues or config.arrivals == "drifting" or config.episode == "request":
            raise ConfigError(
                "policy 'optimum' is exact where the state is a window and a task: load 'window', "
                "episode 'run', and arrivals other than 'drifting'. Leave it out, or play 'myopic'"
            )
        self._optimum = optimum.solve(config.team, config.arrivals, config.num_tasks)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        windows = np.where(context.window >= 0, context.window, 0)  # empty places are the oldest
        number = windows @ len(rules.AGENTS) ** np.arange(rules.WINDOW - 1, -1, -1)
        first, full = self._optimum.first, self._optimum.full
        actions = np.empty(len(rows), np.int64)
        for ordinal in np.unique(context.ordinal).tolist():
            to_go = min(self.spec.config.num_tasks - ordinal, len(full))
            table = first[ordinal] if ordinal < rules.WINDOW else full[to_go - 1]
            same = context.ordinal == ordinal
            actions[same] = table[number[same], context.task[same]]
        return actions


# Learners


class QSettings(StrictModel):
    """Settings of assignment's Q-learning."""

    learning_rate: Fraction = rules.LEARNING_RATE
    discount: Fraction = rules.DISCOUNT
    epsilon: Fraction = rules.EPSILON
    epsilon_min: Fraction = rules.EPSILON_MIN
    epsilon_decay: Fraction = rules.EPSILON_DECAY
    training_tasks: NonNegativeInt = TRAINING_TASKS


class QSeedAssignment(Learner, BaseAssignmentPolicy):
    """Load-aware Q-learning to the letter of its source.

    The table has a row for each task type and load state and a column for each action, 0 at the
    start. Each task that ended is one update, then epsilon decays. Ties of greedy actions go to the
    first (on a row of zeros the analyst on openai). The task type of the next state is drawn from
    the four, and is not that of the next task. Not in the source: epsilon begins at 1.0 and does
    not fall below 0.05.

    Args:
        **settings: see `QSettings`.
    """

    schema = QSettings
    random_tie: ClassVar[bool] = False
    production: ClassVar[bool] = False  # greedy after `training_tasks`
    terminal: ClassVar[bool] = False  # updates have no next state then

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start an untrained learner in every row."""
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

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Update the cell of every task that ended, and let epsilon decay."""
        settings = self.settings
        for part in one_a_row(completed):
            u = self.draw(part.row, part.ordinal, _NEXT_TYPE)
            next_type = np.floor(u * len(rules.TASK_TYPES)).astype(np.int64)
            next_state = rules.state_index(next_type, part.next_load_state)
            ahead = self.table[part.row, next_state].max(axis=1)
            if self.terminal:
                ahead = np.where(self._in_production(part.ordinal), 0.0, ahead)
            target = rules.td_target(part.reward, ahead, settings.discount)
            cell = part.row, rules.state_index(part.task_type, part.load_state), part.action
            self.table[cell] = rules.q_update(self.table[cell], target, settings.learning_rate)
            schedule = settings.epsilon_min, settings.epsilon_decay
            self.epsilon[part.row] = rules.decayed(self.epsilon[part.row], *schedule)

    def _in_production(self, ordinals: Ints) -> Bools:
        return np.asarray(self.production & (ordinals >= self.settings.training_tasks))


class QRandomTieAssignment(QSeedAssignment):
    """`q_seed` that draws one of the best actions."""

    random_tie = True


class QBanditAssignment(QRandomTieAssignment):
    """`q_random_tie` with a discount of 0.

    Load penalties depend little on earlier actions, and the smaller target needs fewer tasks.
    """

    changed: ClassVar[dict[str, float]] = {"discount": 0.0}


class QProductionAssignment(QSeedAssignment):
    """`q_seed` for 50 tasks, then greedy, with updates that have no next state.

    As in the source's production system. Values that were trained towards r / (1 - discount) are
    then pulled down to r, cell by cell: the policy unlearns.
    """

    production = True
    terminal = True


class QProductionBootstrapAssignment(QProductionAssignment):
    """`q_seed` for 50 tasks, then greedy with the same updates as before."""

    terminal = False


class BanditAssignment(Learner, BaseAssignmentPolicy):
    """Base of the bandits, which know the rule of the load penalty.

    They learn the reward of an answer, and subtract the penalty that the rule gives at a decision.
    With queues the penalty is for a call's wait, which is unknown beforehand: they learn the reward
    less the penalty.
    """

    def learned(self, completed: Completed) -> NDArray[np.float64]:
        """Return the rewards to learn from, (k,)."""
        return completed.reward if self.spec.config.queues else completed.raw_reward


class LinUcbAssignmentSettings(StrictModel):
    """Settings of `LinUcbAssignment`."""

    alpha: NonNegative = 0.02  # weight of the uncertainty
    ridge: Positive = 1.0  # weight of the identity
    prior_mean: NonNegative = 0.7  # of a reward; the regressions are of the difference to it


class LinUcbAssignment(BanditAssignment):
    """Disjoint LinUCB (Li et al. 2010): a `Ridge` regression for each action.

    The features are the task's type (one-hot), its complexity and, with queues, the tasks in the
    action's server over 8.

    Args:
        **settings: see `LinUcbAssignmentSettings`.
    """

    schema = LinUcbAssignmentSettings

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start an untrained learner in every row."""
        super().reset(spec, seeds)
        size = len(rules.TASK_TYPES) + 1 + spec.config.queues
        self.ridge = Ridge(len(seeds), rules.NUM_ACTIONS, size, self.settings.ridge)
        self._features = np.zeros((len(seeds), spec.config.num_tasks, rules.NUM_ACTIONS, size))

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions of the highest upper bound, (n,)."""
        of_type = np.eye(len(rules.TASK_TYPES))[context.task_type]
        shared = np.column_stack([of_type, context.complexity])
        features = np.repeat(shared[:, None], rules.NUM_ACTIONS, axis=1)  # (n, 8, d)
        if self.spec.config.queues:
            load = context.in_flight[:, :, None] / 8.0
            features = np.concatenate([features, load], axis=2)
        self._features[rows, context.ordinal] = features
        bounds = self.ridge.bounds(rows, features, self.settings.alpha)
        return self.best(bounds - penalties(self.spec, context), rows, context.ordinal)

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Update the regressions of the actions that were taken."""
        for part in one_a_row(completed._replace(reward=self.learned(completed))):
            x = self._features[part.row, part.ordinal, part.action]
            self.ridge.update(part.row, part.action, x, part.reward - self.settings.prior_mean)


class ThompsonSettings(StrictModel):
    """Settings of `ThompsonAssignment`."""

    prior_mean: NonNegative = 0.7  # of a reward
    prior_sd: Positive = 0.05  # of a mean reward
    noise_sd: Positive = 0.04  # of one reward around its mean


class ThompsonAssignment(BanditAssignment):
    """Thompson sampling with a normal posterior for each task type and action.

    Args:
        **settings: see `ThompsonSettings`.
    """

    schema = ThompsonSettings

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start an untrained learner in every row."""
        super().reset(spec, seeds)
        shape = (len(seeds), len(rules.TASK_TYPES), rules.NUM_ACTIONS)
        self.count, self.total = np.zeros(shape), np.zeros(shape)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the best actions of a draw from the posterior, (n,)."""
        s, at = self.settings, (rows, context.task_type)
        prior, precision = s.prior_sd**-2, s.prior_sd**-2 + self.count[at] / s.noise_sd**2
        mean = (prior * s.prior_mean + self.total[at] / s.noise_sd**2) / precision
        uses = range(100, 100 + rules.NUM_ACTIONS)
        draws = [normals(self.seeds[rows], STREAM_POLICY, context.ordinal, use) for use in uses]
        noise = np.stack(draws, axis=1)
        values = mean + noise / np.sqrt(precision) - penalties(self.spec, context)
        return np.asarray(values.argmax(axis=1))

    def observe(self, completed: Completed, rows: Ints) -> None:
        """Count the rewards of the actions that were taken."""
        at = rows, completed.task_type, completed.action
        np.add.at(self.count, at, 1.0)
        np.add.at(self.total, at, self.learned(completed))
