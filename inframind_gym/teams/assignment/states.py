"""State machines of training and production, which the run log shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.teams.llm.service import EventLog

TRAINING: Final[Mapping[str, tuple[str, ...]]] = {
    "Start": ("Setup",),
    "Setup": ("Initialized",),
    "Initialized": ("GraphCompiled",),
    "GraphCompiled": ("PickingTask",),
    "PickingTask": ("QueryingLoad",),
    "QueryingLoad": ("AssigningAgent",),
    "AssigningAgent": ("ExecutingLLM",),
    "ExecutingLLM": ("JudgingOutput",),
    "JudgingOutput": ("ComputingPenalty",),
    "ComputingPenalty": ("RecordingLoad",),
    "RecordingLoad": ("UpdatingRL",),
    "UpdatingRL": ("CheckingDone",),
    "CheckingDone": ("PickingTask", "Visualisation"),
    "Visualisation": ("QTableByLoad",),
    "QTableByLoad": ("PolicyShifts",),
    "PolicyShifts": ("Demo",),
    "Demo": ("End",),
}
# From every state after the rate limit an arrow leads back to Ready: there the request failed.
PRODUCTION: Final[Mapping[str, tuple[str, ...]]] = {
    "Start": ("Ready",),
    "Ready": ("RateLimitCheck",),
    "RateLimitCheck": ("LoadAwareRouting", "Ready"),
    "LoadAwareRouting": ("Executing", "Ready"),
    "Executing": ("Judging", "Ready"),
    "Judging": ("Scoring", "Ready"),
    "Scoring": ("LoadPenaltyCalc", "Ready"),
    "LoadPenaltyCalc": ("OnlineLearning", "Ready"),
    "OnlineLearning": ("Logging", "Ready"),
    "Logging": ("Ready",),
}
MACHINES: Final = {"training": TRAINING, "production": PRODUCTION}


class StateMachine:
    """One machine, whose every step is an event `state` of the log.

    Args:
        name: "training" or "production".
        log: Where events go.

    Attributes:
        state: Where it is.
    """

    def __init__(self, name: str, log: EventLog) -> None:
        self.name = name
        self.state = "Start"
        self._log = log

    def enter(self, state: str, **data: Any) -> None:
        """Go to a state.

        Args:
            state: Its name.
            data: What the event tells besides.

        Raises:
            InfraMindError: No arrow leads there.
        """
        if state not in MACHINES[self.name].get(self.state, ()):
            raise InfraMindError(f"{self.name}: no arrow leads from {self.state} to {state}.")
        self.state = state
        self._log.append("state", {"machine": self.name, "state": state, **data})
