"""Load-aware Q-learning: the source's learner to the letter, and its mended variants.

The table has a row for each task type and load state and a column for each action, 0 at the start.
Each task that ended is one update, then epsilon decays. A learner begins its run untaught.

- `q_seed`: greedy actions are the first of the best (on a row of zeros the analyst on openai), and
  the next state has a task type drawn from the four, not the one that comes.
- `q_random_tie`: as `q_seed`, but one of the best is drawn.
- `q_bandit`: as `q_random_tie` with a discount of 0. Load penalties depend on earlier actions, but
  not much; the smaller target is learned from fewer tasks.
- `q_production`: as `q_seed` for 50 tasks; from then on greedy, and updates have no next state, as
  in the source's production system. Values that were trained towards r / (1 - discount) are then
  pulled down to r, cell by cell: it unlearns.
- `q_production_bootstrap`: as `q_production`, but updates keep their next state.

Not in the source: epsilon begins at 1.0 and does not fall below 0.05.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from inframind_gym.configs import Fraction, NonNegativeInt, StrictModel, validate
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.policies.assignment.protocol import BaseAssignmentPolicy, Ints, one_a_row
from inframind_gym.teams.assignment import rules

TRAINING_TASKS: Final = 50  # of the production variants
_EXPLORE, _ACTION, _NEXT_TYPE = range(3)  # uses of draws


class QSettings(StrictModel):
    """Numbers of the learner."""

    learning_rate: Fraction = rules.LEARNING_RATE
    discount: Fraction = rules.DISCOUNT
    epsilon: Fraction = rules.EPSILON
    epsilon_min: Fraction = rules.EPSILON_MIN
    epsilon_decay: Fraction = rules.EPSILON_DECAY
    training_tasks: NonNegativeInt = TRAINING_TASKS


class QSeedPolicy(BaseAssignmentPolicy):
    """The source's learner; each row learns for itself, from nothing.

    Args:
        **settings: see `QSettings`.

    Attributes:
        table: (rows, 20, 8) values.
        epsilon: (rows,) exploration rates.

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
        self.epsilon = np.full(len(seeds), self.settings.epsilon)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return a random action with probability epsilon, else a best one, (n,)."""
        states = rules.state_index(context.task_type, context.load_state)
        values = self.table[rows, states]
        greedy = values.argmax(axis=1)
        if self.random_tie:
            greedy = self.best(values, rows, context.ordinal)
        epsilon = np.where(self._in_production(context.ordinal), 0.0, self.epsilon[rows])
        random = np.floor(self.draw(rows, context.ordinal, _ACTION) * rules.NUM_ACTIONS)
        explores = self.draw(rows, context.ordinal, _EXPLORE) < epsilon
        return np.where(explores, random.astype(np.int64), greedy)

    def observe(self, completed: Completed) -> None:
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

    def _in_production(self, ordinals: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray(self.production & (ordinals >= self.settings.training_tasks))


class QRandomTiePolicy(QSeedPolicy):
    """`q_seed` that draws one of the best actions."""

    name = "q_random_tie"
    random_tie = True


class QBanditPolicy(QRandomTiePolicy):
    """`q_random_tie` that looks at the reward of the task alone."""

    name = "q_bandit"
    changed: ClassVar[dict[str, float]] = {"discount": 0.0}


class QProductionPolicy(QSeedPolicy):
    """`q_seed`, then the source's production system."""

    name = "q_production"
    production = True
    terminal = True


class QProductionBootstrapPolicy(QProductionPolicy):
    """`q_seed`, then greedy with the same updates as before."""

    name = "q_production_bootstrap"
    terminal = False
