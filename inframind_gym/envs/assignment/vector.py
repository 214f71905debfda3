"""Many teams in one batch: `gym.make_vec("InfraMind-Assignment-v0", num_envs=1024)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym.envs.assignment.config import assignment_config
from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.envs.assignment.env import REPORTED, AssignmentEnv, space_of
from inframind_gym.envs.assignment.observation import flat_space, form_of
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.envs.batch import BatchEnv, signature_in_a_batch
from inframind_gym.teams.assignment import rules


class AssignmentVectorEnv(BatchEnv):
    """`InfraMind-Assignment-v0` in a batch (`BatchEnv`); arguments as of `AssignmentEnv`."""

    __signature__ = signature_in_a_batch(AssignmentEnv)

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, arguments)
        self.config = assignment_config(arguments)
        self.truncates = self.config.episode == "run"
        self.simulation = AssignmentSimulation(self.config, num_envs)
        self._set_spaces(
            flat_space(self.config.queues)[0], None, spaces.Discrete(rules.NUM_ACTIONS)
        )
        self._show(
            form_of(self.config.observation, self.config.queues), self.simulation.observation_size
        )
        self.single_observation_space = space_of(self._form)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def _start(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], *, first: bool
    ) -> None:
        if self.config.episode == "request" and not first:
            self.simulation.resume(rows, observations)
            return
        generators = [self._generators[row] for row in rows.tolist()]
        self.simulation.start(rows, generators, observations)

    def _carry_out(
        self,
        actions: NDArray[np.int64],
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], dict[str, Any]]:
        simulation = self.simulation
        simulation.step(actions[rows, 0], rows, observations)
        done = simulation.completed
        over = simulation.over() if self.truncates else np.isin(self._every_row, rows)
        counts = np.bincount(done.row, minlength=self.num_envs)
        infos: dict[str, Any] = {
            "completed": counts,
            **{name: simulation.sum_of(getattr(done, name)) for name in REPORTED},
            "load_state": simulation.load_state.copy(),
            "utilization": rules.utilization(simulation.counts),
            "imbalance": simulation.imbalance.copy(),
        }
        infos |= {f"_{name}": np.ones(self.num_envs, np.bool_) for name in infos}
        return simulation.sum_of(done.reward), simulation.sum_of(done.cost_usd), over, infos

    def _sample_masks(self) -> tuple[Any, ...]:
        return tuple(self.action_masks().astype(np.int8))

    # Information for policies

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the actions that are open, (E, 8): all of them."""
        return np.ones((self.num_envs, rules.NUM_ACTIONS), np.bool_)

    def contexts(self, rows: NDArray[np.int64] | None = None) -> AssignmentContext:
        """Return the input of an assignment policy, of some rows or of all."""
        return self.simulation.context(np.arange(self.num_envs) if rows is None else rows)

    def assignment_spec(self) -> AssignmentSpec:
        """Return the facts of the run that a policy is reset with."""
        return self.simulation.spec()

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step, of all rows."""
        return Completed._make(column.copy() for column in self.simulation.completed)

    def _summary(
        self, over: NDArray[np.bool_], rewards: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        summary: dict[str, NDArray[Any]] = {}
        for row in np.flatnonzero(over).tolist():
            for key, value in self.simulation.summary(row).items():
                summary.setdefault(key, np.zeros(self.num_envs))[row] = value
        return summary
