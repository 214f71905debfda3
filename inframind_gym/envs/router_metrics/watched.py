"""What of an environment is looked at, between its steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.simulator.workflow.state import IS_DUE


class Due(NamedTuple):
    """The decision that waits."""

    slot: int  # of its query
    node: int  # or PLAN_NODE
    query: int  # ordinal in the sweep
    remaining_s: float  # of the budget


class Watched:
    """An environment's state by column, where it lies: a record at a time is slow to read."""

    def __init__(self, env: InfraMindEnv) -> None:
        flows = env.simulation.flows
        self.env = env
        self.sweep = flows.sweep[0]
        self.ordinal = flows.query["ordinal"][0]
        self.arrival_s = flows.query["arrival_s"][0]
        self.budget_s = flows.query["budget_s"][0]
        self.topology = flows.query["topology"][0]
        self.model = flows.query["model"][0]
        self.strategy = flows.query["strategy"][0]
        self.call = flows.call[0]
        self.records_calls = env.config.record_calls
        self.begin()

    def begin(self) -> None:
        """A sweep may have begun: its telemetry has a place of its own."""
        self.seen = self.env.simulation.seen(0)  # (3, M), in which it is kept up to date

    def due(self) -> Due | None:
        """The decision that waits now."""
        sweep = self.sweep
        if sweep["live"] != IS_DUE:
            return None
        slot = int(sweep["slot"])
        passed_s = float(sweep["now_s"]) - self.arrival_s.item(slot)
        remaining_s = self.budget_s.item(slot) - passed_s  # exactly the budget on arrival
        return Due(slot, int(sweep["node"]), self.ordinal.item(slot), remaining_s)

    def completed(self) -> NDArray[Any] | None:
        """The agent's queries that ended in the last step, (k,) COMPLETED; None: none did."""
        if self.sweep["reported"] == self.sweep["finished"]:
            return None
        return self.env.completed()
