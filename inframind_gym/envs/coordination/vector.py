"""Many questions in one batch: `gym.make_vec("InfraMind-Coordination-v0", num_envs=64)`."""

from __future__ import annotations

from inframind_gym.envs.batch import signature_in_a_batch
from inframind_gym.envs.coordination.env import CoordinationEnv
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.envs.teams import TeamVectorEnv


class CoordinationVectorEnv(TeamVectorEnv):
    """`InfraMind-Coordination-v0` in a batch (`BatchEnv`); arguments as of `CoordinationEnv`.

    A scenario of `reset` is that of all rows until the next `reset`. In place of texts the infos
    have arrays: "action" (what was carried out, -1 for nothing) and "reason" (a place in
    `teams.coordination.state.REASONS`).
    """

    __signature__ = signature_in_a_batch(CoordinationEnv)
    simulates = CoordinationSimulation
