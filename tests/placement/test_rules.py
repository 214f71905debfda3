"""Single rules, on clusters small enough to be worked out by hand (times in the docstrings)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.simulator.placement.state import ABSENT, ACTIVE, SLEPT
from tests.placement.toys import ROW, card, started, write_cluster, write_demand

EXACT: dict[str, Any] = {
    "timing_spread": 0.0,
    "timing_noise": 0.0,
    "foreign_memory": {"max_MB": 0},
    "initial": "empty",
}


class Toy:
    """A small cluster without chance in its times."""

    def __init__(self, folder: Path, cards: list[dict[str, Any]], gpus: int = 2, **changes: Any):
        group = {key: changes.pop(key) for key in ("alpha", "vram_total_MB") if key in changes}
        demand = {key: changes.pop(key) for key in ("jobs_per_gpu_per_min",) if key in changes}
        arguments = {
            "cluster": write_cluster(folder, cards, gpus, **group),
            "demand": write_demand(folder, **demand),
            **EXACT,
            **changes,
        }
        self.simulation, self.observations = started(arguments)

    def step(self, *action: int, times: int = 1) -> None:
        for _ in range(times):
            self.simulation.step(ROW, np.array([action]), self.observations)

    def state(self, g: int, m: int) -> int:
        return int(self.simulation.state.instance[0, g, m]["state"])

    def since(self, g: int, m: int) -> float:
        return float(self.simulation.state.instance[0, g, m]["begun_s"])

    @property
    def illegal(self) -> int:
        return int(self.simulation.state.episode[0]["illegal"])


# No job comes within the horizon: the cluster is idle.
IDLE = {"jobs_per_gpu_per_min": 1e-6}


def test_a_switch_takes_the_sum_of_its_phases(tmp_path: Path) -> None:
    """Load 10 s from 0: ACTIVE at 10. At 10 the other is chosen: first sleep 4 s, then load 10 s:
    ACTIVE at 24. At 25 back: first sleep of the second 4 s, wake 2 s: ACTIVE at 31. At 35 again:
    now both have slept before: 1 s and 2 s: ACTIVE at 38."""
    toy = Toy(tmp_path, [card("a"), card("b")], gpus=1, **IDLE)
    toy.step(1, times=2)
    assert toy.state(0, 0) == ACTIVE
    assert toy.since(0, 0) == 10.0
    toy.step(2)
    toy.step(0, times=2)
    assert (toy.state(0, 0), toy.state(0, 1)) == (SLEPT, ACTIVE)
    assert (toy.since(0, 0), toy.since(0, 1)) == (14.0, 24.0)
    toy.step(1)
    toy.step(0)
    assert (toy.state(0, 0), toy.since(0, 0)) == (ACTIVE, 31.0)
    toy.step(2)
    assert (toy.state(0, 1), toy.since(0, 1)) == (ACTIVE, 38.0)
    assert toy.simulation.counters(0) == {
        "wakes": 2, "loads": 2, "sleeps": 3, "offloads": 0, "failed_wakes": 0, "failed_loads": 0,
    }  # fmt: skip


def test_a_group_needs_all_its_gpus(tmp_path: Path) -> None:
    toy = Toy(tmp_path, [card("a"), card("pair", tp_min=2)], gpus=3, **IDLE)
    mask = toy.simulation.state.mask[0]
    assert mask[:, 2].tolist() == [True, True, False]  # GPU 2 is beyond the last pair
    toy.step(2, 0, 0)
    assert toy.illegal == 1
    toy.step(2, 1, 0)
    assert toy.illegal == 1  # the choice of `a` on GPU 1 is legal, the half pair is not
    assert toy.state(1, 0) != ABSENT
    toy.step(0, 0, 0, times=2)
    toy.step(2, 2, 0)
    assert toy.illegal == 0
    toy.step(0, 0, 0, times=3)
    assert toy.state(0, 1) == ACTIVE
    assert toy.simulation.state.host[0].tolist() == [0, 0, -1]
    assert toy.state(1, 0) == SLEPT


def test_mean_reward_is_minus_mean_latency(tmp_path: Path) -> None:
    """Little's law: over a long episode with light load the summed reward, scaled back, is the
    summed time of all calls, and so close to calls times the mean time of a call."""
    toy = Toy(tmp_path, [card("a", slots=64, queue=0)], gpus=1, initial="spread",
              num_decisions=200)  # fmt: skip
    total = 0.0
    for _ in range(200):
        toy.step(0)
        total += float(toy.simulation.terms[0, :2].sum())
    episode = toy.simulation.state.episode[0]
    norm = float(toy.simulation.world.settings[0]["request_norm"])
    server = toy.simulation.state.server[0, 0]
    in_servers_s = float(server["latency_sum_s"])
    calls = int(episode["requests_done"])
    assert calls > 1000
    # outside its server a call waits up to 1 s for the next tick, half a second or so
    spent_s = -total * norm
    assert in_servers_s < spent_s < in_servers_s + 1.05 * calls
    summary = toy.simulation.summary(0)
    assert summary["mean_call_latency_s"] == pytest.approx(spent_s / episode["requests_made"])
