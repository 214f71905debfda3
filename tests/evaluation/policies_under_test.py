"""Policies that do what a benchmark must survive."""

import os
import time
from typing import ClassVar

import numpy as np

from inframind_gym.errors import ConfigError
from inframind_gym.policies import BasePolicy


class Cheapest(BasePolicy):
    """Ten lines that a user would write: the weakest model, briefly."""

    name = "cheapest"
    simulation = "of its own"  # only bounds bring one that plays

    def act_batch(self, observations, contexts, rows):
        return np.full(len(rows), self.spec.action(self.spec.num_models - 1, 0))


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


class Refuses(Cheapest):
    """Made for another pool."""

    name = "refuses"
    num_models = 7

    def reset(self, spec, seeds):
        super().reset(spec, seeds)
        if spec.num_models != self.num_models:
            raise ConfigError(
                f"is made for {self.num_models} models, the pool has {spec.num_models}"
            )


class RaisesLater(BasePolicy):
    """Fails in its second query."""

    name = "raises_later"

    def act_batch(self, observations, contexts, rows):
        if contexts["query"].max() > 0:
            raise KeyError("my own mistake")
        return np.zeros(len(rows), np.int64)


class Hangs(BasePolicy):
    """Waits for what does not come, and catches its own errors."""

    name = "hangs"

    def act_batch(self, observations, contexts, rows):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


class Wrong(BasePolicy):
    """Returns what WRONG_ACTION says, for every row."""

    name = "wrong"

    def act_batch(self, observations, contexts, rows):
        return [eval(os.environ["WRONG_ACTION"], {"nan": np.nan})] * len(rows)
