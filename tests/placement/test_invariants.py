"""Invariants under any decisions: memory, who serves, where every request is, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.simulator.placement.state import ACTIVE, DRAINING, NONE, QUEUED, SLEPT
from tests.placement.toys import ROW, some_action, started, tight_cluster, write_demand

EPS_MB = 1e-6


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("tight")
    yield {
        "cluster": tight_cluster(folder, alpha=0.1),
        "demand": write_demand(folder, shuffle=True),
        "num_decisions": 25,
        "foreign_memory": {"max_MB": 15_000, "every_s": 2},
    }


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    wild=st.booleans(),
    initial=st.sampled_from(["spread", "empty"]),
    load=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_invariants(
    tight: dict[str, Any], seed: int, wild: bool, initial: str, load: float
) -> None:
    simulation, observations = started({**tight, "initial": initial, "load": load}, seed)
    rng = np.random.default_rng(seed)
    finished: list[float] = []
    now_s = -1.0
    for _ in range(simulation.config.num_decisions):
        simulation.step(ROW, some_action(rng, simulation, wild)[None], observations)
        check_memory(simulation)
        check_servers(simulation)
        check_requests(simulation)
        assert simulation.now_s()[0] > now_s
        now_s = simulation.now_s()[0]
        new = simulation.completed(0)
        assert (new["finish_s"] <= now_s).all()
        assert (new["finish_s"] >= now_s - simulation.config.decision_interval_s).all()
        assert (new["latency_s"] >= new["ideal_s"] * (1 - 1e-9)).all()
        finished += new["job"].tolist()
    assert len(set(finished)) == len(finished)
    assert sorted(finished) == sorted(simulation.finished(0)["job"].tolist())


def check_memory(simulation: PlacementSimulation) -> None:
    """Models and foreign processes fit on every GPU, sleepers within their share."""
    context = simulation.contexts(ROW)
    world = simulation.world
    assert (context.free_mb >= -EPS_MB).all()
    from_slept = simulation.state.instance["from_slept"][0]
    slept = np.zeros(simulation.num_gpus)
    awake = np.zeros(simulation.num_gpus, np.int64)
    for g in range(simulation.num_gpus):
        for m in range(simulation.num_models):
            state = context.state[0, g, m]
            leader = g // world.model["tp"][m] * world.model["tp"][m]
            if state == SLEPT or (state == QUEUED and from_slept[leader, m]):
                slept[g] += world.model["slept_mb"][m]
            awake[g] += state in (ACTIVE, DRAINING)
    assert (slept <= world.gpu["slept_limit_mb"] + EPS_MB).all()
    assert (awake <= 1).all()


def check_servers(simulation: PlacementSimulation) -> None:
    """Only instances that are ACTIVE or DRAINING have calls, and no more than they have room."""
    state, world = simulation.state, simulation.world
    for g in range(simulation.num_gpus):
        server = state.server[0, g]
        m = int(server["model"])
        if m == NONE:
            assert server["running"] == server["queued"] == 0
            continue
        assert state.instance[0, g, m]["state"] in (ACTIVE, DRAINING)
        assert (state.host[0, g : g + int(world.model["tp"][m])] == g).all()
        assert server["running"] <= world.model["slots"][m]
        assert server["queued"] <= world.model["queue"][m]
        if server["queued"]:
            assert server["running"] == world.model["slots"][m]
        for i in range(int(server["running"])):
            request = state.request[0, state.run_request[0, g, i]]
            assert state.job[0, request["job"]]["model"][request["call"]] == m


def check_requests(simulation: PlacementSimulation) -> None:
    """Every call of every job in the cluster is in exactly one place."""
    state = simulation.state
    episode = state.episode[0]
    places: list[tuple[int, int]] = []
    waiting = running = queued = 0
    for m in range(simulation.num_models):
        queue = state.waiting[0, m]
        identity, stamp_s = int(queue["head"]), -1.0
        for _ in range(int(queue["count"])):
            request = state.request[0, identity]
            places.append((int(request["job"]), int(request["call"])))
            assert request["ready_s"] <= request["stamp_s"] <= simulation.now_s()[0]
            assert request["stamp_s"] >= stamp_s  # first come, first served
            stamp_s = request["stamp_s"]
            identity = int(request["next"])
        waiting += int(queue["count"])
    for g in range(simulation.num_gpus):
        server = state.server[0, g]
        ids = state.run_request[0, g, : server["running"]].tolist()
        head, width = int(server["queue_head"]), state.queue.shape[2]
        ids += [int(state.queue[0, g, (head + i) % width]) for i in range(int(server["queued"]))]
        running += int(server["running"])
        queued += int(server["queued"])
        places += [(int(state.request[0, i]["job"]), int(state.request[0, i]["call"])) for i in ids]
    assert all(count == 1 for count in Counter(places).values())
    assert waiting + queued == episode["waiting"]
    assert running == episode["serving"]
    made, done = int(episode["requests_made"]), int(episode["requests_done"])
    assert made == done + len(places)

    free = set(state.free_job[0, : episode["free_jobs"]].tolist())
    alive = int(episode["used_jobs"]) - len(free)
    assert alive + int(episode["jobs_done"]) == int(episode["next_job"])
