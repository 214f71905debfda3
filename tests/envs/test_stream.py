"""InfraMind-Stream-v0 and -Executor-v0: the sweep as a whole, and what it is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from inframind_gym.policies import resolve_policy
from inframind_gym.simulator.workflow.state import FINAL, FIRST
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS
from tests.envs.streams import EXECUTOR, STREAM, Cycle, make_batch, sweep

ROOT = Path(__file__).parents[2]
FAST = Cycle([13])  # the smallest model, answering concisely


@pytest.fixture(scope="module")
def env() -> Any:
    return make_batch(4, num_queries=400)


def test_arrivals_tasks_and_budgets_are_what_was_asked_for(env: Any) -> None:
    rates = np.array([10.0, 30.0, 90.0, 300.0])
    tasks, tiers = env.simulation.tasks, env.policy_spec().budget_tiers_s
    rows = sweep(env, FAST, (0, 1, 2, 3), arrival_rate_per_min=rates)
    for records, rate in zip(rows, rates, strict=True):
        assert 400 / records["arrival_s"][-1] * 60 == pytest.approx(rate, rel=0.2)
        assert np.all(np.isin(records["budget_s"], tiers))
        counts = np.array([(records["budget_s"] == tier).sum() for tier in tiers])
        assert len(tiers) == 8 and np.all(np.abs(counts - 50) < 5 * np.sqrt(50))
        assert np.array_equal(records["domain"], tasks.domain[records["task"]])
        domains = np.bincount(records["domain"], minlength=3)
        assert np.all(np.abs(domains - 400 / 3) < 5 * np.sqrt(400 * 2 / 9))
        for d in range(len(DOMAINS)):  # no task comes back before all of its kind have come
            drawn = records["task"][records["domain"] == d]
            times = np.bincount(drawn, minlength=len(tasks.domain))[tasks.domain == d]
            assert times.max() - times.min() <= 1
            assert times.max() == -(-len(drawn) // len(times))


def test_contexts_of_some_rows_are_chosen_as_numpy_chooses(env: Any) -> None:
    every = env.contexts()
    for rows in (np.array([2, 0]), np.array([False, False, True, True]), slice(1, 3)):
        assert np.array_equal(env.contexts(rows), every[rows])


def test_a_pool_of_one_s_own(tmp_path: Path) -> None:
    pool = yaml.safe_load((ROOT / "envs_configs/pools/b200-2gpu.yaml").read_text())
    pool["name"] = "two"
    pool["models"] = pool["models"][3:]
    pool["max_output_tokens"] = 100
    pool["metrics_poll_s"] = 1.0
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(pool))
    env: Any = gym.make(
        STREAM, pool=str(path), observation="index", num_queries=30, record_calls=True
    ).unwrapped
    assert env.action_space.n == 6
    assert env.observation_space.shape == (2 + 1 + 4,)
    assert env.policy_spec().models == ("llama-8b", "llama-3b")
    env.reset(seed=0)
    over, polls = False, []
    while not over:
        polls.append(env.context()["poll"])
        over = env.step(4)[2]
        assert env.context()["telemetry_age_s"] <= 1.0 + 1e-9
    calls = env.calls()
    assert calls["output_tokens"].max() == 100
    assert calls["truncated"].sum() == (calls["output_tokens"] == 100).sum() > 0
    assert max(polls) > 10


@pytest.mark.parametrize("model", range(5))
def test_expected_call_seconds_are_those_of_an_idle_server(model: int) -> None:
    env: Any = gym.make(
        STREAM,
        observation="index",
        planner={"topology": "IO", "num_agents": 1},
        num_queries=100,
        arrival_rate_per_min=0.2,
        record_calls=True,
    ).unwrapped
    policy = resolve_policy("static", model=env.policy_spec().models[model], strategy="mix")
    policy.reset(env.policy_spec(), [0])
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        observation, _, over, _, _ = env.step(policy.act(observation, env.context()))
    calls = env.calls()
    calls = calls[calls["phase"] == FIRST]
    measured_s = (calls["finish_s"] - calls["submit_s"]).mean()
    assert env.policy_spec().expected_call_s[model] == pytest.approx(measured_s, rel=0.2)


def test_a_graph_of_ones_own_is_carried_out() -> None:
    """0 and 1 are read by 2, and 3 reads nobody: two waves, then the decision."""
    plan = {"num_agents": 4, "edges": [[0, 2], [1, 2]]}
    own: Any = gym.make(STREAM, num_queries=1, planner=plan, record_calls=True).unwrapped
    own.reset(seed=0)
    while not own.step(13)[2]:
        pass
    (record,) = own.completed()
    assert (record["num_nodes"], record["topology"]) == (4, len(TOPOLOGIES))
    calls = own.calls()
    calls = calls[calls["phase"] != FINAL]
    first = [calls[calls["node"] == n]["submit_s"].min() for n in range(4)]
    ends = [calls[calls["node"] == n]["finish_s"].max() for n in range(3)]
    assert first[0] == first[1] == first[3] == record["arrival_s"]
    assert first[2] == max(ends[:2])


def test_in_flight_is_the_routers_own_count_and_never_old() -> None:
    features = ["queue", "e2e", "in_flight"]
    own: Any = gym.make(STREAM, num_queries=60, record_calls=True, system_features=features)
    layout = own.unwrapped.policy_spec().layout
    observation, info = own.reset(seed=3)
    seen = []
    over = False
    while not over:
        seen.append((info["time_s"], layout.in_flight_req(observation)))
        observation, _, over, _, info = own.step(len(seen) % 15)
    calls = own.unwrapped.calls()
    for time_s, counted in seen:
        for m, count in enumerate(counted):
            mine = calls[calls["model"] == m]
            done = mine["finish_s"] <= time_s
            assert ((mine["submit_s"] < time_s) & ~done).sum() <= count
            assert count <= ((mine["submit_s"] <= time_s) & ~done).sum()


# Mixtures that drift, budgets from a list


DRIFT = """name: drifting
mix: {math: 3, mbpp: 1}
mix_to: {math: 1, mbpp: 3}
drift_queries: 400
"""


def test_a_stream_asks_what_the_weights_say(tmp_path: Path) -> None:
    path = tmp_path / "drifting.yaml"
    path.write_text(DRIFT)
    env = make_batch(8, workload=str(path), num_queries=4000)
    env.reset(seed=0)
    code = env.simulation.tasks.domain[env.simulation.state.task] == DOMAINS.index("Code")
    by_phase = code.reshape(8, 10, 4, 100).mean(axis=(0, 1, 3))  # quarters of a drift
    np.testing.assert_allclose(by_phase, [0.375, 0.625, 0.625, 0.375], atol=0.03)


def test_budgets_are_drawn_from_a_list() -> None:
    env = make_batch(4, budget_s=[30, 30, 30, 600], num_queries=500)
    budgets = np.concatenate(sweep(env, FAST, range(4)))["budget_s"]
    assert set(budgets.tolist()) == {30.0, 600.0}
    assert np.mean(budgets == 30.0) == pytest.approx(0.75, abs=0.04)
    assert set(env.policy_spec().budget_tiers_s) == {30.0, 600.0}


def test_an_overrun_stream_is_truncated() -> None:
    arguments: dict[str, Any] = {"num_queries": 400, "arrival_rate_per_min": 300.0, "budget_s": 20}
    arguments |= {"reward": "goodput", "truncate_overrun_s": 30.0}
    envs: Any = gym.make_vec(STREAM, num_envs=3, **arguments)
    envs.reset(seed=0)
    overrun_s, ended, cut = np.full(3, -np.inf), np.zeros((3, 3)), np.zeros(3, np.bool_)
    while not cut.any():
        assert overrun_s.max() <= 30.0
        _, _, terminated, cut, infos = envs.step(np.zeros(3, np.int64))  # to the largest model
        rows, records = envs.unwrapped.completed()
        np.maximum.at(overrun_s, rows, records["latency_s"] - records["budget_s"])
        counts = np.ones(len(rows)), records["solved"], records["latency_s"] / records["budget_s"]
        np.add.at(ended, rows, np.stack(counts, axis=1))
        assert not terminated.any()
    assert ((overrun_s > 30.0) == cut).all() and ended[:, 0].sum() < 400
    queries, solved, costs = ended[cut].T
    means = {"queries": queries, "solve_rate": solved / 400, "mean_cost": costs / queries}
    for name, wanted in means.items():
        np.testing.assert_allclose(infos["final_info"][name][cut], wanted)
    assert infos["_final_info"][cut].all()


# One query of a sweep is an episode of InfraMind-Executor-v0


def test_reset_goes_on_in_the_sweep_until_it_is_over() -> None:
    env: Any = gym.make(EXECUTOR, num_queries=25, arrival_rate_per_min=60.0).unwrapped
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
    busy: Any = gym.make(EXECUTOR, num_queries=120, arrival_rate_per_min=120.0, agents={}).unwrapped
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
