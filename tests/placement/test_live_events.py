"""Records that are written by events hold what the simulation's own hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.live.placement import events
from inframind_gym.simulator.placement.state import (
    FIRST_SLEEP,
    LOAD,
    LOADING,
    OFFLOAD,
    SLEEP,
    SLEEPING,
    VANISHING,
    WAKE,
    WAKING,
)
from tests.placement.toys import ROW, some_action, started, tight_cluster, write_demand

LEAVE, COME = {SLEEPING: SLEEP, VANISHING: OFFLOAD}, {WAKING: WAKE, LOADING: LOAD}


class Events:
    """A simulation whose records are written by events, by a clock that we turn."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.simulation, self.observations = started(arguments)

    @property
    def now_s(self) -> float:
        return float(self.simulation.now_s()[0])

    def tell(self, rule: Any, *arguments: Any) -> None:
        rule(self.simulation.state, 0, *arguments)

    def end_phases(self, kinds: dict[int, int]) -> None:
        """End the phases whose time, by the cards, is up."""
        instances = self.simulation.state.instance[0]
        for g, m in np.ndindex(instances.shape):
            state, kind = int(instances[g, m]["state"]), 0
            if state not in kinds:
                continue
            kind = kinds[state]
            if kind == SLEEP and not instances[g, m]["slept_before"]:
                kind = FIRST_SLEEP
            took_s = float(self.simulation.world.model[m]["time_s"][kind])
            if instances[g, m]["begun_s"] + took_s <= self.now_s:
                self.tell(events.phase_ended, g, m, False, took_s)

    def step(self, action: NDArray[np.int64]) -> None:
        simulation = self.simulation
        ticks, tick_s = simulation.config.ticks, simulation.config.routing_interval_s
        self.tell(events.begin_interval, self.now_s + ticks * tick_s, action)
        for tick in range(ticks + 1):
            self.tell(events.carry_on)
            self.end_phases(LEAVE)
            self.tell(events.carry_on)
            self.end_phases(COME)
            simulation.state.episode[0]["tick"] += tick < ticks
        self.tell(events.end_interval, simulation.terms[0])
        self.tell(events.write_mask)
        self.tell(events.observe, self.observations[0])


def test_phases_leave_what_those_of_the_simulation_leave(tmp_path: Path) -> None:
    """Without jobs and with times of whole ticks, both go through the same records."""
    arguments = {
        "cluster": tight_cluster(tmp_path, alpha=0.15),
        "demand": write_demand(tmp_path, jobs_per_gpu_per_min=0.001),
        "decision_interval_s": 1.0,
        "num_decisions": 500,
        "timing_spread": 0.0,
        "timing_noise": 0.0,
        "foreign_memory": {"max_MB": 0.0},
        "initial": "empty",
    }
    ours, (plain, observations) = Events(arguments), started(arguments)
    rng, slept = np.random.default_rng(1), False
    for _ in range(plain.config.num_decisions):
        action = some_action(rng, plain)
        plain.step(ROW, action[None], observations)
        ours.step(action)
        for field in ("state", "begun_s", "slept_before", "from_slept", "heavy"):
            one, other = (s.state.instance[0][field] for s in (ours.simulation, plain))
            np.testing.assert_array_equal(one, other, field)
        for name in ("host", "moving", "clear_s", "mask"):
            one, other = (getattr(s.state, name)[0] for s in (ours.simulation, plain))
            np.testing.assert_array_equal(one, other, name)
        np.testing.assert_allclose(ours.simulation.state.seen_s, plain.state.seen_s, rtol=1e-12)
        assert ours.simulation.counters(0) == plain.counters(0)
        slept |= bool((plain.state.instance["state"] == SLEEPING).any())
    assert slept and min(plain.counters(0)[k] for k in ("wakes", "loads", "sleeps", "offloads")) > 2
