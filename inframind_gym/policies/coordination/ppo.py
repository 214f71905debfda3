"""`sb3_maskable_ppo`: a network that sb3-contrib has trained, played with NumPy alone."""

from __future__ import annotations

from typing import Final

from inframind_gym.envs.coordination.observation import OBSERVATION_SIZE
from inframind_gym.policies import checkpoint
from inframind_gym.policies.coordination.protocol import BaseCoordinationPolicy
from inframind_gym.policies.masked import MaskedPerceptron
from inframind_gym.teams.coordination.rules import NUM_ACTIONS

KIND: Final = "coordination_perceptron"


class MaskablePpoPolicy(MaskedPerceptron, BaseCoordinationPolicy):  # type: ignore[misc]
    """The best open action of an exported network."""

    version = 2  # trained where what follows a trim is read again
    kind = KIND
    shipped = checkpoint.SHIPPED / "coordination_maskable_ppo"
    sizes = OBSERVATION_SIZE, NUM_ACTIONS
