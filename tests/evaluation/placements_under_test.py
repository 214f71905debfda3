"""Placement policies of a user."""

import numpy as np

from inframind_gym.policies.placement import BasePlacementPolicy


class FirstModel(BasePlacementPolicy):
    """Ten lines that a user would write: the first model wherever it may come."""

    name = "first_model"

    def decide(self, context, row):
        return context.mask[0, :, 1].astype(np.int64)


class Raises(FirstModel):
    name = "raises"

    def decide(self, context, row):
        raise KeyError("my own mistake")


class OutOfRange(FirstModel):
    name = "out_of_range"

    def decide(self, context, row):
        return np.full(self.spec.num_gpus, 99)


class NoPolicy:
    """Lacks what the protocol asks for."""
