"""Phases, begun by the records and ended by the servers; and servers that are lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.live.config import LiveLimits
from inframind_gym.live.placement import events
from inframind_gym.live.placement.instance import Instance, Outcome
from inframind_gym.live.placement.records import Records
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    DRAINING,
    LOADING,
    SLEEPING,
    SLEPT,
    VANISHING,
    WAKING,
    is_moving,
)

_log = logging.getLogger(__name__)
_KEPT: Final = 1000
_PHASES: Final = {LOADING: "load", WAKING: "wake", SLEEPING: "sleep", VANISHING: "stop"}
_STABLE: Final = {ACTIVE: "active", SLEPT: "slept"}


class Transition(NamedTuple):
    """One phase that ended, for people and logs."""

    time_s: float  # of the episode
    gpu: int  # the first of the block
    model: str
    phase: str  # "load", "wake", "sleep" or "stop"; "lost": its server died or hung
    took_s: float
    now: str  # "active", "slept" or "absent"
    why: str = ""  # it failed

    def __str__(self) -> str:
        where = f"{self.time_s:7.1f} s  GPU {self.gpu}  {self.model}"
        if self.phase == "lost":
            return f"{where}: {self.why}"
        if self.why:
            return f"{where}: {self.phase} failed after {self.took_s:.2f} s, {self.now}: {self.why}"
        return f"{where}: {self.phase} took {self.took_s:.2f} s, {self.now}"


@dataclass
class Conductor:
    """The instances of a cluster.

    Args:
        records: of the cluster.
        aliases: (M,) of the models.
        limits: of phases.
        make_instance: makes the instance of a model on the block that begins at a GPU.
        take_back: has the calls on their way to the server at a leader wait for another one.
        on_transition: called with every phase that ended.

    Attributes:
        instances: by leader and model.
        transitions: of the episode, the last 1,000.
        cancelled: starts under way are to be given up.
    """

    records: Records
    aliases: tuple[str, ...]
    limits: LiveLimits
    make_instance: Callable[[int, int], Instance]
    take_back: Callable[[int], None]
    on_transition: Callable[[Transition], None]
    instances: dict[tuple[int, int], Instance] = field(default_factory=dict)
    transitions: deque[Transition] = field(default_factory=lambda: deque(maxlen=_KEPT))
    cancelled: bool = False
    _phases: dict[tuple[int, int], threading.Thread] = field(default_factory=dict)  # the last ones

    def instance(self, g: int, m: int) -> Instance:
        """Return the instance of a model on the block that begins at a GPU."""
        if (g, m) not in self.instances:
            self.instances[g, m] = self.make_instance(g, m)
        return self.instances[g, m]

    def state(self, g: int, m: int) -> int:
        """Return the state of an instance, by the records."""
        return int(self.records.state.instance[0, g, m]["state"])

    def close_blocks(self, mask: NDArray[np.bool_]) -> None:
        """Close blocks to models that failed on them just now, in masks (G, M + 1)."""
        now_s = time.monotonic()
        for (g, m), instance in self.instances.items():
            if now_s < instance.closed_until_s and self.state(g, m) != ACTIVE:
                tp = int(self.records.world.model[m]["tp"])
                mask[g : g + tp, m + 1] = False

    def advance(self) -> None:
        """Begin the phases that have begun in the records."""
        self.records.write(events.ADVANCE)
        states = self.records.state.instance["state"][0]
        for g, m in np.argwhere(is_moving(states)).tolist():
            state, instance = int(states[g, m]), self.instance(g, m)
            if state == DRAINING:
                self._drain(instance, g)
            elif state in _PHASES and not instance.busy:
                self._begin(instance, g, m, state)

    def _drain(self, instance: Instance, g: int) -> None:
        """Send nothing more to a server that is to leave; what takes too long goes elsewhere."""
        now_s = time.monotonic()
        if instance.drains_since_s is None:
            instance.drains_since_s = now_s
            instance.hold("drains")
        elif now_s - instance.drains_since_s > self.limits.drain_s:
            instance.drains_since_s = math.inf  # once
            _log.warning("%s: not drained in %g s", instance.name, self.limits.drain_s)
            self.take_back(g)

    def _begin(self, instance: Instance, g: int, m: int, state: int) -> None:
        instance.busy, instance.drains_since_s = True, None

        def run() -> None:
            outcome = instance.run(state, lambda: self.cancelled)
            self.records.put(lambda: self._ended(instance, g, m, state, outcome))

        thread = threading.Thread(target=run, name=f"placement-{_PHASES[state]}", daemon=True)
        self._phases[g, m] = thread
        thread.start()

    def _ended(self, instance: Instance, g: int, m: int, state: int, outcome: Outcome) -> None:
        if self.instances.get((g, m)) is not instance:
            return  # of a cluster that was closed meanwhile
        instance.busy = False
        self.records.write(events.ENDED, g, m, number=outcome.how, now_s=outcome.took_s)
        if outcome.why and state in (WAKING, LOADING):
            instance.closed_until_s = time.monotonic() + self.limits.backoff_s
        now = _STABLE.get(self.state(g, m), "absent")
        self._note(g, m, _PHASES[state], outcome.took_s, now, outcome.why)
        self.advance()

    def _note(self, g: int, m: int, phase: str, took_s: float, now: str, why: str) -> None:
        time_s = self.records.now_s
        transition = Transition(time_s, g, self.aliases[m], phase, took_s, now, why)
        self.transitions.append(transition)
        if why:
            _log.warning("%s", transition)
        self.on_transition(transition)

    def server_changed(self, g: int, m: int, up: bool) -> None:
        """Find out why a server was seen to be up or down; this cluster can be the cause."""
        state, instance = self.state(g, m), self.instance(g, m)
        if up or instance.busy or state not in (ACTIVE, DRAINING, SLEPT):
            return
        link = instance.link

        def check() -> None:
            gone = instance.seems_gone() if state == ACTIVE else instance.is_dead()
            asleep = link is not None and link.watcher.status()[0].asleep
            if gone:
                self.records.put(lambda: self._lost(instance, g, m, state, asleep))

        threading.Thread(target=check, name="placement-check", daemon=True).start()

    def _lost(self, instance: Instance, g: int, m: int, was: int, asleep: bool) -> None:
        """Take back the calls of a server that is gone, or was put to sleep from outside."""
        state = self.state(g, m)
        if self.instances.get((g, m)) is not instance or state != was or instance.busy:
            return
        instance.hold("is gone")
        if state != SLEPT:
            self.take_back(g)
        sleeps = state == ACTIVE and asleep
        self.records.write(events.AWAY, g, m, number=SLEEPING if sleeps else VANISHING)
        why = "somebody else has put it to sleep" if sleeps else "its server died, or hangs"
        self._note(g, m, "lost", 0.0, "slept" if sleeps else "absent", why)
        self.advance()

    def stop_all(self) -> None:
        """Stop every server; blocks."""
        self.cancelled = True

        def stop(instance: Instance, phase: threading.Thread | None) -> None:
            hangs = phase is not None and phase.name.endswith(("-sleep", "-wake"))
            if phase is not None and not hangs:
                phase.join()  # a start is given up by itself, an end is what is wanted
            outcome = instance.run(VANISHING, lambda: True)
            if outcome.why:
                _log.error("%s: %s", instance.name, outcome.why)

        stops = [
            threading.Thread(target=stop, args=(instance, self._phases.get(key)), daemon=True)
            for key, instance in self.instances.items()
        ]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
        self.instances, self._phases = {}, {}
