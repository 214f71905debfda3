"""What a person sees of an environment: queues, budget and the last decisions."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from inframind_gym.orchestration.simulation import Simulation


class DecisionLog:
    """The last `size` decisions."""

    def __init__(self, size: int) -> None:
        self.entries: deque[tuple[np.void, NDArray[np.int64]]] = deque(maxlen=size)

    def clear(self) -> None:
        """Forget all."""
        self.entries.clear()

    def add(self, context: np.void, action: NDArray[np.int64], num_routes: int) -> None:
        """Keep a decision: its CONTEXT record and the action (a,) that was taken."""
        self.entries.append((context, action))


def render_table(simulation: Simulation, context: np.void, log: DecisionLog) -> str:
    """The state as a table of text."""
    return ""


def render_frame(simulation: Simulation, context: np.void, log: DecisionLog) -> NDArray[np.uint8]:
    """The state as an image (height, width, 3)."""
    return np.zeros((480, 720, 3), np.uint8)
