"""Policies that know the skills of the agents: the myopic one, and the exact optimum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.assignment.reward import waiting_penalty
from inframind_gym.errors import ConfigError
from inframind_gym.policies.assignment.optimum import expected_rewards, solve
from inframind_gym.policies.assignment.protocol import BaseAssignmentPolicy, Ints, penalties
from inframind_gym.teams.assignment import rules

FIRST_SERVICE_S = 2.0  # assumed until a server's first call has ended


class MyopicPolicy(BaseAssignmentPolicy):
    """The highest expected reward of this task, whatever it does to the next ones.

    With queues the wait is estimated: the calls ahead of the task times the mean time of service
    seen so far, over the server's slots.
    """

    name = "myopic"
    bound = True  # not ranked: it knows the skills

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Look up the expected rewards."""
        super().reset(spec, seeds)
        self._expected = expected_rewards(spec.config.team)
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
            expected = expected - waiting_penalty(ahead * service_s / self.spec.slots)
        return np.asarray(expected.argmax(axis=1))

    def observe(self, completed: Completed) -> None:
        """Note times of service."""
        at = completed.row, completed.action
        np.add.at(self._served, at, 1.0)
        np.add.at(self._service_s, at, completed.latency_s - completed.wait_s)


class OptimalPolicy(BaseAssignmentPolicy):
    """The actions of the exact optimum (`inframind_gym.policies.assignment.optimum`)."""

    name = "optimum"
    bound = True

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
        self._optimum = solve(config.team, config.arrivals, config.num_tasks)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions, (n,)."""
        length = self.spec.config.num_tasks
        return self._optimum.look_up(context.window, context.task, context.ordinal, length)
