"""RecordEpisodeCost and its vector form: right sums, right violations, no wall-clock time."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

import inframind_gym  # noqa: F401
from inframind_gym.envs.wrappers import RecordEpisodeCost, RecordEpisodeCostVector

STREAM, EXECUTOR = "InfraMind-Stream-v0", "InfraMind-Executor-v0"
SMALL: dict[str, Any] = {"num_queries": 6, "observation": "index"}


class Scripted(gym.Env[np.ndarray, int]):
    """Costs 0.4 a step and gives reward 1 at the end of an episode of three steps."""

    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"cost": 0.0}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == 3
        return np.full(1, self.t, np.float32), float(over), over, False, {"cost": 0.4}


def episodes(env: Any, count: int, seed: int = 0) -> list[tuple[list[float], list[float], Any]]:
    """Rewards, costs and last info of some episodes with sampled actions."""
    out = []
    env.action_space.seed(seed)
    for episode in range(count):
        env.reset(seed=seed if episode == 0 else None)
        rewards, costs, over = [], [], False
        while not over:
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            over = terminated or truncated
            rewards.append(reward)
            costs.append(info["cost"])
            assert over or "episode" not in info
        out.append((rewards, costs, info))
    return out


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_the_last_info_sums_up_the_episode(name: str):
    env = RecordEpisodeCost(gym.make(name, **SMALL))
    runs = episodes(env, 3)
    for rewards, costs, info in runs:
        assert info["episode"] == {
            "r": sum(rewards),
            "l": len(rewards),
            "c": pytest.approx(info["episode_cost"]),
        }
        assert info["episode"]["c"] == pytest.approx(sum(costs))
    assert env.episode_count == 3
    assert list(env.return_queue) == [info["episode"]["r"] for *_, info in runs]
    assert list(env.length_queue) == [info["episode"]["l"] for *_, info in runs]
    assert list(env.cost_queue) == [info["episode"]["c"] for *_, info in runs]


def test_an_executor_violates_by_its_cost_and_a_stream_by_its_mean_cost():
    executor = RecordEpisodeCost(gym.make(EXECUTOR, budget_s=60.0, **SMALL))
    infos = [info for *_, info in episodes(executor, 12)]
    late = [info["latency_s"] > info["budget_s"] for info in infos]
    assert list(executor.violation_queue) == late
    assert any(late) and not all(late)
    stream = RecordEpisodeCost(gym.make(STREAM, **SMALL))
    for _, costs, info in episodes(stream, 2):
        mean = sum(costs) / 6
        assert info["mean_cost"] == pytest.approx(mean)
        assert stream.violation_queue.popleft() == (mean > 1)


def test_a_stream_that_is_cut_short_is_judged_by_what_it_finished():
    slowly = gym.make(STREAM, arrival_rate_per_min=2.0, **SMALL)
    env = RecordEpisodeCost(TimeLimit(slowly, 20))
    ((_, costs, info),) = episodes(env, 1)
    done = env.unwrapped.queries_done
    assert 0 < done < 6 and "mean_cost" not in info
    assert list(env.violation_queue) == [sum(costs) / done > 1]
    executor = RecordEpisodeCost(TimeLimit(gym.make(EXECUTOR, **SMALL), 1))
    episodes(executor, 1)
    assert executor.episode_count == 1


def test_it_stands_beside_gymnasiums_own_statistics():
    env = RecordEpisodeCost(RecordEpisodeStatistics(Scripted()))
    *_, info = episodes(env, 1)[0]
    assert info["episode"].keys() == {"r", "l", "t", "c"}
    assert info["episode"]["c"] == pytest.approx(1.2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_statistics_count_each_step_once_in_every_autoreset_mode(mode: AutoresetMode):
    envs = RecordEpisodeCostVector(SyncVectorEnv([Scripted] * 2, autoreset_mode=mode))
    envs.reset(seed=0)
    ended = 0
    for _ in range(12):
        _, _, terminations, _, infos = envs.step(np.zeros(2, np.int64))
        if terminations.any():
            ended += 1
            np.testing.assert_array_equal(infos["_episode"], [True, True])
            np.testing.assert_allclose(infos["episode"]["r"], [1.0, 1.0])
            np.testing.assert_array_equal(infos["episode"]["l"], [3, 3])
            np.testing.assert_allclose(infos["episode"]["c"], [1.2, 1.2])
            if mode == AutoresetMode.DISABLED:
                envs.reset(options={"reset_mask": terminations})
    assert ended == (3 if mode == AutoresetMode.NEXT_STEP else 4)
    assert envs.episode_count == 2 * ended and set(envs.violation_queue) == {True}


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_the_compiled_batch_reports_what_single_environments_do(name: str):
    envs = RecordEpisodeCostVector(gym.make_vec(name, num_envs=3, **SMALL))
    rng = np.random.default_rng(5)
    actions = rng.integers(0, 15, (400, 3))
    envs.reset(seed=11)
    found: list[list[dict[str, float]]] = [[], [], []]
    last: list[list[dict[str, float]]] = [[], [], []]
    for row in actions:
        *_, infos = envs.step(row)
        for i in np.flatnonzero(infos.get("_episode", [])):
            found[i].append({key: values[i] for key, values in infos["episode"].items()})
            final = infos["final_info"]
            last[i].append({k: v[i] for k, v in final.items() if not k.startswith("_")})
    assert min(map(len, found)) >= 1
    for i in range(3):
        env = RecordEpisodeCost(gym.make(name, **SMALL))
        env.reset(seed=11 + i)
        expected, finals = [], []
        for action in actions[:, i]:
            _, _, over, _, info = env.step(int(action))
            if over:
                expected.append(info["episode"])
                finals.append(info)
                env.reset()
        np.testing.assert_equal(found[i], expected)
        for ours, theirs in zip(last[i], finals, strict=True):
            for key in ours.keys() - {"episode_reward"}:
                assert ours[key] == pytest.approx(theirs[key]), key


def test_the_batch_judges_streams_by_their_mean_cost():
    envs = RecordEpisodeCostVector(gym.make_vec(STREAM, num_envs=4, **SMALL))
    envs.reset(seed=0)
    while envs.episode_count < 4:
        envs.step(np.zeros(4, np.int64))
    assert list(envs.violation_queue) == [cost / 6 > 1 for cost in envs.cost_queue]
