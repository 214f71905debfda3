"""Records of a live cluster, its clock, and the queue of events.

Everything here runs on the caller's thread, except `put`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.live.placement.events import write
from inframind_gym.simulator.native import Bound


class Records:
    """The simulation's records, written by events of live servers.

    Args:
        simulation: the owner of the records.

    Attributes:
        end_s: when the decision interval is to end, on the clock.
    """

    def __init__(self, simulation: PlacementSimulation) -> None:
        self.world, self.state = simulation.world, simulation.state
        self.tick_length_s = simulation.config.routing_interval_s
        self.end_s = 0.0
        self._terms = simulation.terms[0]
        self._write = Bound(write)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._no_action = np.zeros(simulation.num_gpus, np.int64)
        self._no_observation = np.zeros(simulation.observation_size, np.float32)
        self.start_clock()

    def start_clock(self) -> None:
        """Set the clock to 0."""
        self.began_s = time.monotonic()
        self.epoch_s = time.time()  # the same instant as a time of day
        self.end_s = 0.0

    @property
    def now_s(self) -> float:
        """Time since the episode began."""
        return time.monotonic() - self.began_s

    @property
    def tick(self) -> int:
        """The last tick in the records."""
        return int(self.state.episode[0]["tick"])

    @property
    def clock_tick(self) -> int:
        """The last tick by the clock."""
        return int(self.now_s / self.tick_length_s + 1e-9)

    def set_tick(self) -> None:
        """Write the clock's tick into the records."""
        self.state.episode[0]["tick"] = max(self.tick, self.clock_tick)

    def put(self, event: Callable[[], None]) -> None:
        """Have a function called on the caller's thread, soon; from any thread."""
        self._events.put(event)

    def take_events(self, until_s: float) -> None:
        """Call what was `put`, until a time."""
        while True:
            try:
                event = self._events.get(timeout=max(until_s - self.now_s, 0.0))
            except queue.Empty:
                return
            event()

    def write(
        self,
        event: int,
        place: int = 0,
        model: int = 0,
        *,
        number: int = 0,
        now_s: float = 0.0,
        action: NDArray[np.int64] | None = None,
        observation: NDArray[np.float32] | None = None,
    ) -> int:
        """Write an event into the records; arguments and result are those of `events.write`."""
        code: int = self._write(
            self.world,
            self.state,
            event,
            place,
            model,
            number,
            now_s,
            self.end_s,
            self._no_action if action is None else action,
            self._no_observation if observation is None else observation,
            self._terms,
        )
        return code
