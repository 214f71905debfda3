"""InfraMind-Executor-v0: one query is an episode, the rest of the sweep is its weather."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.streams import EXECUTOR


def make(**arguments: Any) -> Any:
    """The environment itself, with index observations."""
    return gym.make(EXECUTOR, **{"observation": "index", **arguments}).unwrapped


def play(env: Any, action: Any) -> dict[str, Any]:
    """The rest of an episode: its contexts, rewards, costs and last info."""
    over = False
    run: dict[str, Any] = {"contexts": [], "rewards": [], "costs": []}
    while not over:
        run["contexts"].append(env.context())
        _, reward, over, _, info = env.step(action)
        run["rewards"].append(reward)
        run["costs"].append(info["cost"])
    return {**run, "contexts": np.array(run["contexts"]), "info": info, "query": env.completed()}


@pytest.fixture(scope="module")
def busy() -> Any:
    return make(num_queries=120, arrival_rate_per_min=120.0, agents={})


def test_a_wave_costs_what_its_slowest_call_takes() -> None:
    env = make(
        background="none", planner={"topology": "Debate", "num_agents": 4}, record_calls=True
    )
    env.reset(seed=3, options={"budget_s": 50.0})
    run = play(env, 4)
    calls = env.calls()
    first = calls[(calls["node"] < 4) & (calls["phase"] == 0)]
    lasted_s = first["finish_s"] - first["submit_s"]
    assert run["costs"][3] == pytest.approx(lasted_s.max() / 50.0, rel=1e-9)
    assert lasted_s.max() > lasted_s.min()


def test_reset_goes_on_in_the_sweep_until_it_is_over() -> None:
    env = make(num_queries=25, arrival_rate_per_min=60.0)
    env.reset(seed=2)
    seen = [env.context()]
    for _ in range(40):
        play(env, 13)
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


def test_seeded_resets_put_the_query_at_a_random_place(busy: Any) -> None:
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


def shares_of(background: str, **arguments: Any) -> NDArray[np.float64]:
    """Shares of the models among the calls of the background, at a light load."""
    env = make(
        background=background,
        num_queries=400,
        arrival_rate_per_min=10.0,
        record_calls=True,
        planner={"topology": "IO", "num_agents": 4},
        **arguments,
    )
    env.reset(seed=1)
    own = []
    while not own or env.context()["query"] > own[-1]:  # to the end of the sweep
        own.append(int(env.context()["query"]))
        play(env, 14)
        calls, now_s = env.calls(), env.context()["time_s"]
        env.reset()
    # Of the last ones only the quick are done.
    counted = (calls["phase"] == 0) & (calls["submit_s"] < now_s - 400.0)
    counts = np.bincount(calls["model"][counted & ~np.isin(calls["query"], own)], minlength=5)
    assert counts.sum() > 400
    return counts / counts.sum()


def test_background_routers() -> None:
    np.testing.assert_allclose(shares_of("round_robin"), 0.2, atol=0.005)
    mix = make().policy_spec().model_share
    np.testing.assert_allclose(shares_of("static_mix"), mix, atol=0.07)
    by_load = shares_of("least_loaded")
    assert np.all(np.diff(by_load[[0, 1, 3, 4]]) > 0.0), "faster servers empty sooner"
    without = shares_of("static_mix", down_models=["qwen-14b"])
    assert without[2] == 0.0
    assert without[3] == pytest.approx(mix[2] + mix[3], abs=0.07), "the next one takes its calls"


def test_calls_in_flight_are_the_agents_own_not_the_backgrounds() -> None:
    env: Any = gym.make(
        "InfraMind-Executor-v0",
        arrival_rate_per_min=200.0,
        planner={"topology": "IO", "num_agents": 3},
        system_features=["queue", "in_flight"],
    )
    layout = env.unwrapped.policy_spec().layout
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        assert not layout.in_flight_req(observation).any()
        for sent in (1, 2):
            observation, *_ = env.step(0)
            assert layout.in_flight_req(observation).tolist() == [sent, 0, 0, 0, 0]
    assert layout.queue_depth_req(observation).sum() > 20
