"""Suites of placements: the same bits always, judged as the environment judges itself."""

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.evaluation.placement import FIELDS, DecisionLayout
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.policies import resolve_policy


def test_metrics_of_decisions_by_hand() -> None:
    first = dict(zip(FIELDS, (30.0, 6, 4, 0, 1, 4, 2, 20.0, 3, 2), strict=True))
    second = dict(zip(FIELDS, (50.0, 2, 0, 1, 0, 4, 1, 20.0, 4, 1), strict=True))
    columns = {name: np.array([first[name], second[name]]) for name in first}
    columns |= {"job_latency_s": np.array([3.0, 5.0, 10.0])}
    metrics = DecisionLayout().evaluate(DecisionLayout().table(columns).sum(axis=0))
    expected = {"call_latency_s": 80.0 / 8, "slo": 1 - 1 / 4, "job_latency_mean_s": 6.0}
    expected |= {"finished": 3 / 4, "switches_per_gpu_hour": 3 / (40.0 / 3600)}
    assert metrics == pytest.approx({**expected, "illegal_share": 1 / 8, "serving_share": 7 / 8})


def test_a_cell_is_judged_as_the_environment_judges_its_episode() -> None:
    """Cells run on the clusters themselves; here is the loop of a user on the environment."""
    small = {"policies": ["greedy"], "clusters": ["h100-4gpu"], "demands": ["steady", "shifting"]}
    config = load_suite("placement_quick", {**small, "num_decisions": 40, "seeds": [3]}).resolve()
    results = config.player().run(config.cells()[1:])
    [(cell, columns)] = results
    env = gym.make("InfraMind-Placement-v0", **config.env_kwargs(cell.place))
    policy = resolve_policy("greedy", family="placement")
    observation, _ = env.reset(seed=cell.episode_seed)
    policy.reset(env.unwrapped.policy_spec(), [cell.policy_seed])
    over, rewards = False, 0.0
    while not over:
        context = env.unwrapped.context()
        action = policy.act_batch(observation[None], context, np.zeros(1, np.int64))[0]
        observation, reward, _, over, info = env.step(action)
        rewards += reward
    layout = DecisionLayout()
    sums = layout.table(columns).sum(axis=0)
    found = {name: float(v) for name, v in layout.evaluate(sums).items()}
    assert len(columns["decision"]) == 40
    assert found["call_latency_s"] == pytest.approx(info["mean_call_latency_s"])
    assert 1.0 - found["slo"] == pytest.approx(info["late_share"])
    assert 0.0 < info["late_share"] < 1.0
    assert found["job_latency_mean_s"] == pytest.approx(info["mean_latency_s"])
    assert columns["switches"].sum() == info["wakes"] + info["loads"] > 0
    assert len(columns["job_latency_s"]) == info["jobs"]
