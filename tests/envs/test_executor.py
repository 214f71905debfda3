"""InfraMind-Executor-v0: one query is an episode, the rest of the sweep is its weather."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.envs.streams import EXECUTOR


def make(**arguments: Any) -> Any:
    """The environment itself, with index observations."""
    return gym.make(EXECUTOR, **{"observation": "index", **arguments}).unwrapped


def test_reset_goes_on_in_the_sweep_until_it_is_over() -> None:
    env = make(num_queries=25, arrival_rate_per_min=60.0)
    env.reset(seed=2)
    seen = [env.context()]
    for _ in range(40):
        while not env.step(13)[2]:
            pass
        env.reset()
        seen.append(env.context())
    ordinals = np.array([context["query"] for context in seen])
    times = np.array([context["time_s"] for context in seen])
    fresh = np.diff(ordinals) <= 0
    assert fresh.sum() >= 2, "40 episodes of 25 queries need more than one sweep"
    assert np.all(np.diff(times)[~fresh] > 0.0)
    # A sweep that follows another one begins with its first query, on idle servers.
    assert np.all(ordinals[1:][fresh] == 0)
    # The agent's next query is the first to arrive after the last one was done.
    assert np.all(np.diff(ordinals)[~fresh] >= 1)


def test_seeded_resets_put_the_query_at_a_random_place() -> None:
    busy = make(num_queries=120, arrival_rate_per_min=120.0, agents={})
    places, loads = [], []
    for seed in range(60):
        observation, _ = busy.reset(seed=seed)
        places.append(int(busy.context()["query"]))
        loads.append(busy.simulation.layout.queue_depth_req(observation).sum())
    assert 0.3 * 120 < np.mean(places) < 0.7 * 120
    assert min(places) < 20
    assert max(places) > 100
    late = np.array(places) > 40
    assert np.all(np.array(loads)[late] > 0.0), "the traffic before it has loaded the servers"
