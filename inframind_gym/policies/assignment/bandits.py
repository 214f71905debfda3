"""Contextual bandits: LinUCB and Thompson sampling, learning online from nothing.

Both know the rule of the load penalty, which the application computes itself: they learn the
reward of an answer and subtract the penalty of the moment. With queues the penalty is what a call
has waited, which nobody knows beforehand: it is part of what they learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inframind_gym.configs import NonNegative, Positive, StrictModel, validate
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.policies.assignment.protocol import (
    BaseAssignmentPolicy,
    Floats,
    Ints,
    one_a_row,
    penalties,
)
from inframind_gym.simulator.rng import STREAM_POLICY
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.simulate import normals


class LinUcbSettings(StrictModel):
    """Numbers of `LinUcbPolicy`."""

    alpha: NonNegative
    ridge: Positive
    prior_mean: NonNegative


class LinUcbPolicy(BaseAssignmentPolicy):
    """Disjoint LinUCB (Li et al. 2010): a ridge regression for each action.

    The features are the task's type (one-hot), its complexity and, with queues, the tasks in the
    action's server over 8.

    Args:
        alpha: weight of the uncertainty.
        ridge: weight of the identity.
        prior_mean: of a reward; the regressions are of the difference to it.

    Raises:
        ConfigError: a number is out of range.
    """

    name = "linucb"

    def __init__(self, alpha: float = 0.02, ridge: float = 1.0, prior_mean: float = 0.7) -> None:
        given = {"alpha": alpha, "ridge": ridge, "prior_mean": prior_mean}
        of = validate(given, LinUcbSettings, source=self.name)
        self.alpha, self.ridge, self.prior_mean = of.alpha, of.ridge, of.prior_mean
        self.fingerprint = of.model_dump_json()

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        size = len(rules.TASK_TYPES) + 1 + spec.config.queues
        shape = (len(seeds), rules.NUM_ACTIONS, size)
        self.inverse = np.broadcast_to(np.eye(size) / self.ridge, (*shape, size)).copy()
        self.target = np.zeros(shape)
        self._seen = np.zeros((len(seeds), spec.config.num_tasks, *shape[1:]))

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions of the highest upper bound, (n,)."""
        features = self._features(context)
        self._seen[rows, context.ordinal] = features
        inverse = self.inverse[rows]
        theta = np.einsum("naij,naj->nai", inverse, self.target[rows])
        mean = np.einsum("nai,nai->na", theta, features)
        variance = np.einsum("nai,naij,naj->na", features, inverse, features)
        bound = mean + self.alpha * np.sqrt(variance) - penalties(self.spec, context)
        return self.best(bound, rows, context.ordinal)

    def observe(self, completed: Completed) -> None:
        """Update the regressions of the actions that were taken."""
        reward = completed.reward if self.spec.config.queues else completed.raw_reward
        for part in one_a_row(completed._replace(reward=reward)):
            at = part.row, part.action
            x = self._seen[part.row, part.ordinal, part.action]
            along = np.einsum("nij,nj->ni", self.inverse[at], x)
            scale = 1.0 + np.einsum("ni,ni->n", x, along)
            self.inverse[at] -= along[:, :, None] * along[:, None, :] / scale[:, None, None]
            self.target[at] += (part.reward - self.prior_mean)[:, None] * x

    def _features(self, context: AssignmentContext) -> Floats:
        """Return (n, 8, d)."""
        shared = np.column_stack(
            [np.eye(len(rules.TASK_TYPES))[context.task_type], context.complexity]
        )
        every = np.repeat(shared[:, None], rules.NUM_ACTIONS, axis=1)
        if not self.spec.config.queues:
            return every
        return np.concatenate([every, context.in_flight[:, :, None] / 8.0], axis=2)


class ThompsonSettings(StrictModel):
    """Numbers of `ThompsonPolicy`."""

    prior_mean: NonNegative
    prior_sd: Positive
    noise_sd: Positive


class ThompsonPolicy(BaseAssignmentPolicy):
    """Thompson sampling with a normal posterior for each task type and action.

    Args:
        prior_mean: of a reward.
        prior_sd: of a mean reward.
        noise_sd: of one reward around its mean.

    Raises:
        ConfigError: a number is out of range.
    """

    name = "thompson"

    def __init__(
        self, prior_mean: float = 0.7, prior_sd: float = 0.05, noise_sd: float = 0.04
    ) -> None:
        given = {"prior_mean": prior_mean, "prior_sd": prior_sd, "noise_sd": noise_sd}
        self.settings = validate(given, ThompsonSettings, source=self.name)
        self.fingerprint = self.settings.model_dump_json()

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Start one untaught learner for every row."""
        super().reset(spec, seeds)
        shape = (len(seeds), len(rules.TASK_TYPES), rules.NUM_ACTIONS)
        self.count, self.total = np.zeros(shape), np.zeros(shape)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the best actions of a draw from the posterior, (n,)."""
        of = self.settings
        at = rows, context.task_type
        prior, precision = of.prior_sd**-2, of.prior_sd**-2 + self.count[at] / of.noise_sd**2
        mean = (prior * of.prior_mean + self.total[at] / of.noise_sd**2) / precision
        noise = np.stack(
            [
                normals(self.seeds[rows], STREAM_POLICY, context.ordinal, 100 + action)
                for action in range(rules.NUM_ACTIONS)
            ],
            axis=1,
        )
        return np.asarray(
            (mean + noise / np.sqrt(precision) - penalties(self.spec, context)).argmax(axis=1)
        )

    def observe(self, completed: Completed) -> None:
        """Count the rewards of the actions that were taken."""
        reward = completed.reward if self.spec.config.queues else completed.raw_reward
        at = completed.row, completed.task_type, completed.action
        np.add.at(self.count, at, 1.0)
        np.add.at(self.total, at, reward)
