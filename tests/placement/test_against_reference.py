"""The compiled cluster does, decision by decision, what the plain one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.envs.placement_kernel import TERMS
from inframind_gym.simulator.placement.state import ABSENT, COUNTERS, SLEPT
from tests.placement.reference import ReferenceCluster
from tests.placement.toys import ROW, some_action, started, tight_cluster, write_demand

DECISIONS = 40


def play(arguments: dict[str, Any], seed: int, kind: str) -> dict[str, int]:
    """One episode of both under random actions; what happened in it."""
    simulation, observations = started(arguments, seed)
    rng = np.random.default_rng(seed)
    plain = ReferenceCluster(simulation)
    compare(simulation, plain, observations)
    for decision in range(simulation.config.num_decisions):
        action = np.zeros(simulation.num_gpus, np.int64)
        if decision % 3 == 0:
            action = some_action(rng, simulation, wild=kind == "wild")
        simulation.step(ROW, action[None], observations)
        terms = plain.step(action.tolist())
        assert simulation.terms[0] == pytest.approx(terms, rel=1e-7, abs=1e-9), TERMS
        assert simulation.state.episode[0]["illegal"] == plain.illegal
        assert simulation.state.episode[0]["late"] == plain.late_now
        compare(simulation, plain, observations)
    compare_jobs(simulation, plain)
    served = [call for job in plain.jobs for call in job.calls]
    assert all(call.times_served <= 1 for call in served)
    assert all(call.times_served == 1 for call in served if call.is_done)
    return simulation.counters(0) | {"jobs": len(plain.done)}


def compare(
    simulation: PlacementSimulation, plain: ReferenceCluster, observations: NDArray[np.float32]
) -> None:
    assert simulation.counters(0) == plain.count
    assert simulation.state.mask[0].tolist() == plain.masks
    assert simulation.state.foreign_mb[0] == pytest.approx(plain.foreign, abs=1e-6)
    assert observations[0] == pytest.approx(plain.observation(), rel=1e-5, abs=1e-6)


def compare_jobs(simulation: PlacementSimulation, plain: ReferenceCluster) -> None:
    ours = simulation.finished(0)
    assert ours["job"].tolist() == [job.ordinal for job in plain.done]
    assert ours["calls"].tolist() == [len(job.calls) for job in plain.done]
    assert ours["late"].tolist() == [job.is_late for job in plain.done]
    for name, expected in (
        ("finish_s", [job.finish_s for job in plain.done]),
        ("latency_s", [job.finish_s - job.arrival_s for job in plain.done]),
        ("ideal_s", [job.ideal_s for job in plain.done]),
        ("slo_s", [job.deadline_s - job.arrival_s for job in plain.done]),
    ):
        assert ours[name] == pytest.approx(expected, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("kind", ["wild", "masked"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tight_cluster(tmp_path: Path, kind: str, seed: int) -> None:
    arguments = {
        "cluster": tight_cluster(tmp_path),
        "demand": write_demand(tmp_path, shuffle=True, zipf=0.5),
        "num_decisions": DECISIONS,
        "initial": "empty" if seed == 1 else "spread",
    }
    happened = play(arguments, seed, kind)
    assert happened["jobs"] > 0
    assert happened["loads"] > 0


def test_everything_that_can_happen_happens(tmp_path: Path) -> None:
    """Over some seeds the comparison meets every kind of transition, failed starts included."""
    arguments = {
        "cluster": tight_cluster(tmp_path, alpha=0.15),
        "demand": write_demand(tmp_path, shuffle=True),
        "num_decisions": 2 * DECISIONS,
        "foreign_memory": {"max_MB": 12_000, "every_s": 2},
    }
    total = dict.fromkeys(COUNTERS, 0)
    for seed in range(4):
        happened = play(arguments, 10 + seed, "masked")
        total = {key: total[key] + happened[key] for key in COUNTERS}
    assert all(total.values()), total


@pytest.mark.parametrize("demand", ["steady", "diurnal", "bursty", "shifting"])
def test_the_shipped_demands(demand: str) -> None:
    arguments = {"cluster": "h100-4gpu", "demand": demand, "num_decisions": 30, "load": 0.5}
    assert play(arguments, 5, "masked")["jobs"] > 20


def test_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [
        f"{i * 0.7 + (i % 5) * 0.1:.2f},{300 + 37 * (i % 11)},{50 + 13 * (i % 17)}"
        for i in range(90)
    ]
    trace.write_text("timestamp,input,output\n" + "\n".join(rows) + "\n")
    arguments = {
        "cluster": "h100-4gpu", "demand": "trace", "trace": str(trace), "num_decisions": 30,
    }  # fmt: skip
    assert play(arguments, 3, "masked")["jobs"] > 20


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """A reference whose transitions take a hundredth longer is told apart."""

    class Wrong(ReferenceCluster):
        def time(self, instance: Any, kind: str) -> float:
            return 1.01 * super().time(instance, kind)

    simulation, observations = started({"cluster": tight_cluster(tmp_path), "initial": "empty"})
    plain = Wrong(simulation)
    assert set(np.unique(simulation.state.instance["state"])) <= {ABSENT, SLEPT}
    action = np.array([1, 2, 5, 1])
    with pytest.raises(AssertionError):
        for _ in range(6):
            simulation.step(ROW, action[None], observations)
            plain.step(action.tolist())
            compare(simulation, plain, observations)
