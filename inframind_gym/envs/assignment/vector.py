"""Many teams in one batch: `gym.make_vec("InfraMind-Assignment-v0", num_envs=1024)`."""

from __future__ import annotations

from inframind_gym.envs.assignment.context import Completed
from inframind_gym.envs.assignment.env import AssignmentEnv
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.envs.batch import signature_in_a_batch
from inframind_gym.envs.teams import TeamVectorEnv


class AssignmentVectorEnv(TeamVectorEnv):
    """`InfraMind-Assignment-v0` in a batch (`BatchEnv`); arguments as of `AssignmentEnv`."""

    __signature__ = signature_in_a_batch(AssignmentEnv)
    simulates = AssignmentSimulation
    simulation: AssignmentSimulation

    def completed(self) -> Completed:
        """Return the tasks that ended in the last step, of all rows."""
        return self.simulation.last_completed()
