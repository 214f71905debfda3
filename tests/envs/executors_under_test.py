"""Executors that tell what they were asked, and some that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import BasePolicy, Completed, Contexts, PolicySpec
from inframind_gym.simulator.workflow.state import ROUTE
from tests.envs.streams import Rows, Seen

FEATURES = ("in_flight", "kv", "queue")
PLANS = {"planner": {"topology": "IO", "num_agents": 2}}


class Probe(BasePolicy):
    """Routes by (query, node) and remembers all that it was told."""

    name = "probe"
    requires: ClassVar[dict[str, Any]] = {}

    def __init__(self, salt: str = "0") -> None:
        self.salt = int(salt)
        self.resets: list[list[int]] = []
        self.asked: list[tuple[Seen, Contexts, Rows]] = []
        self.finished: list[tuple[int, Completed]] = []
        made.append(self)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        super().reset(spec, seeds)
        self.resets.append(list(seeds))
        self.finished.clear()

    def routes(self, contexts: Contexts) -> NDArray[np.int64]:
        assert (contexts["kind"] == ROUTE).all()
        place = contexts["query"].astype(np.int64) * 31 + contexts["node"] * 7 + self.salt * 1013
        return place * 48271 % 65537 % 15

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        self.asked.append((observations.copy(), contexts.copy(), rows.copy()))
        return self.routes(contexts)

    def observe(self, completed: Completed, row: int) -> None:
        self.finished.append((row, completed.copy()))


made: list[Probe] = []
"""Probes in the order of their making: an environment gives no access to its executor."""


class Joint(Probe):
    """One that would also plan, and reads embeddings and its own telemetry."""

    name = "joint_probe"
    requires: ClassVar[dict[str, Any]] = {
        "level": "joint",
        "observation": "full",
        "system_features": list(FEATURES),
        "scheduler": "fcfs",
    }

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        actions = np.full((len(rows), 9), 5, np.int64)
        actions[:, 8] = super().act_batch(observations, contexts, rows)
        return actions


class Compact(Probe):
    """One that sees load over slots."""

    name = "compact_probe"
    requires: ClassVar[dict[str, Any]] = {"observation": "compact"}


class JointCompact(Joint):
    """The same, and it would also plan."""

    name = "joint_compact_probe"
    requires: ClassVar[dict[str, Any]] = {**Joint.requires, "observation": "compact"}


class Insists(BasePolicy):
    """One that has a plan of its own."""

    name = "insists"
    requires: ClassVar[dict[str, Any]] = PLANS

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        return np.zeros(len(rows), np.int64)


class PlansOnly(Insists):
    """One that plans and does not route."""

    requires: ClassVar[dict[str, Any]] = {"level": "planner"}


class Faulty(BasePolicy):
    """Gives whatever it was made with."""

    name = "faulty"

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        if self.answer == "short":
            return np.zeros(0, np.int64)
        answer: Any = np.full(len(rows), float(self.answer))
        return answer if "." in self.answer else answer.astype(np.int64)
