"""Credit by decision, vectors of costs, compact observations, and the split that plays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from inframind_gym.envs.layout import COMPACT
from tests.envs.streams import STREAM

ONE_AGENT: dict[str, Any] = {"workload": "math", "planner": {"topology": "IO", "num_agents": 1}}
SHORT: dict[str, Any] = {"num_queries": 30, "arrival_rate_per_min": 120.0, "credit": True}


@pytest.mark.parametrize("level", ["executor", "planner", "joint"])
@pytest.mark.parametrize("reward", ["solved", "goodput"])
def test_every_reward_and_cost_is_credited_to_the_decisions_that_earned_it(
    level: str, reward: str
) -> None:
    envs = gym.make_vec(STREAM, num_envs=3, level=level, reward=reward, **SHORT)
    envs.action_space.seed(0)
    _, infos = envs.reset(seed=0)
    inner: Any = envs.unwrapped
    made: list[list[tuple[int, int]]] = [[], [], []]
    credited = ended = late = 0
    for _ in range(150):
        for row, one in enumerate(inner.contexts()):
            made[row].append((int(one["query"]), -1 if one["kind"] == 1 else int(one["node"])))
        _, rewards, _, _, infos = envs.step(envs.action_space.sample())
        assert infos["costs"][:, 0] == pytest.approx(infos["cost"])
        for row, earned in enumerate(infos["earned"]):
            places = (earned[name] for name in ("query", "node", "ago"))
            for query, node, ago in zip(*places, strict=True):
                assert made[row][-1 - ago] == (query, node)
            queries, first = np.unique(earned["query"], return_index=True)
            assert earned["reward"][first].sum() == rewards[row]
            assert earned["cost"][first].sum() == pytest.approx(infos["costs"][row, 0])
            assert earned["late"][first].sum() == infos["costs"][row, 1]
            late += int(earned["late"][first].sum())
            assert reward == "solved" or not (earned["reward"] * earned["late"]).any()
            credited += len(earned["query"])
            ended += len(queries)
        seconds = inner.completed()[1]["node_latency_s"].sum()
        assert infos["costs"][:, 2:].sum() == pytest.approx(seconds)
        if level == "joint":  # every call is of one of the agent's decisions
            seconds = sum(earned["seconds"].sum() for earned in infos["earned"])
            assert inner.completed()[1]["node_latency_s"].sum() == pytest.approx(seconds)
    assert ended > 15 and credited >= ended > late > 0


def test_single_environments_pass_the_checker_with_credit() -> None:
    check_env(gym.make(STREAM, observation="compact", **SHORT, **ONE_AGENT).unwrapped)
    plain = gym.make(STREAM, num_queries=5)
    _, info = plain.reset(seed=0)
    assert info["split"] == "test" and "earned" not in plain.step(0)[4]
    batch = gym.make_vec(STREAM, num_envs=2, num_queries=5, split="train")
    assert batch.reset(seed=0)[1]["split"].tolist() == ["train"] * 2


def test_compact_observations_are_of_this_stream_alone() -> None:
    env = gym.make(STREAM, observation="compact", **SHORT, **ONE_AGENT)
    fresh = {seed: env.reset(seed=seed)[0] for seed in range(5)}
    for before, seed in np.ndindex(5, 5):  # other streams, which began earlier or later
        env.reset(seed=before)
        assert (env.reset(seed=seed)[0] == fresh[seed]).all(), (before, seed)


def test_compact_observations_say_what_the_others_say() -> None:
    actions = np.random.default_rng(0).integers(0, 15, (60, 2))
    seen = {}
    features = ("queue", "e2e", "in_flight")
    for form in ("index", "compact"):
        arguments = ONE_AGENT | {"observation": form, "system_features": features}
        envs = gym.make_vec(STREAM, num_envs=2, num_queries=100, **arguments)
        observation, _ = envs.reset(seed=3)
        for action in actions:
            observation = envs.step(action)[0]
        seen[form] = observation, envs.unwrapped.policy_spec()
    (index, spec), (compact, _) = seen["index"], seen["compact"]
    numbers = seen["compact"][1].layout.servers(compact)
    columns = dict(zip(COMPACT, np.moveaxis(numbers, 2, 0), strict=True))
    own = spec.layout.in_flight_req(index) / spec.max_num_seqs
    assert columns["own_load"] == pytest.approx(own) and own.sum() > 0.1
    assert columns["e2e"] == pytest.approx(index[:, spec.layout.system("e2e")])
    assert compact[:, 0] == pytest.approx(index[:, spec.layout.budget])
    for gpu in np.unique(spec.gpu):
        shared = spec.gpu == gpu
        assert columns["gpu_load"][:, shared] == pytest.approx(
            np.tile(own[:, shared].sum(axis=1, keepdims=True), shared.sum()), rel=1e-5
        )
    assert np.expm1(compact[:, 1] * np.log(300)) == pytest.approx(100.0, rel=0.5)  # queries/min
