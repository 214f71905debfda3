"""Policies that do what a benchmark must survive."""

import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from inframind_gym.policies import BasePolicy


class Cheapest(BasePolicy):
    """Ten lines that a user would write: the weakest model, briefly."""

    name = "cheapest"

    def act(self, observation, context):
        return self.spec.action(self.spec.num_models - 1, 0)


class Learner(BasePolicy):
    """Counts what it is told in each row and acts on it."""

    name = "learner"

    def reset(self, spec, seeds):
        super().reset(spec, seeds)
        self.seen = np.zeros(len(seeds), np.int64)

    def observe(self, completed, row):
        self.seen[row] += int(completed["latency_s"].sum()) + len(completed)

    def act_batch(self, observations, contexts, rows):
        return (self.seen[rows] + contexts["query"]) % self.spec.num_actions


class FullObservation(BasePolicy):
    """Acts on the embedding of the query."""

    name = "full"
    requires: ClassVar = {"observation": "full"}

    def act_batch(self, observations, contexts, rows):
        assert observations.shape[1] > 2 * 384
        return np.where(observations[:, 0] > 0, 3, 12)


class Raises(Cheapest):
    name = "raises"

    def act(self, observation, context):
        raise KeyError("my own mistake")


class OutOfRange(Cheapest):
    name = "out_of_range"

    def act(self, observation, context):
        return 15


class DiesOnce(Cheapest):
    """Kills its process the first time it acts, if the file named by DIES_ONCE is not there."""

    name = "dies_once"

    def act(self, observation, context):
        flag = Path(os.environ["DIES_ONCE"])
        if not flag.exists():
            flag.touch()
            os._exit(9)
        return super().act(observation, context)


class AlwaysDies(Cheapest):
    name = "always_dies"

    def act(self, observation, context):
        os._exit(9)


class Trained(BasePolicy):
    """Always asks the model that its checkpoint names."""

    name = "trained"

    def __init__(self, folder):
        self.fingerprint = (Path(folder) / "model").read_text()

    def act(self, observation, context):
        return self.spec.action(int(self.fingerprint), 0)
