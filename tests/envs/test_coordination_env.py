"""The contract of InfraMind-Coordination-v0 with Gymnasium and its users."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env, data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

import inframind_gym  # noqa: F401
from inframind_gym.envs.coordination.config import CoordinationConfig
from inframind_gym.envs.coordination.env import CoordinationEnv
from inframind_gym.envs.coordination.observation import OBSERVATION_SIZE
from inframind_gym.envs.coordination.vector import CoordinationVectorEnv
from inframind_gym.errors import ActionError, ConfigError
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    PLAN,
    RETRIEVE,
    ROUTE,
    SYNTHESIS,
    TRIM,
    VALIDATE,
)

ID = "InfraMind-Coordination-v0"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"conversation": True, "trim": "newest"},
    {"supervisor": "model", "max_num_seqs": 1, "conversation": 0.5},
    {"noise": False, "fallback": False},
)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_check_env_passes_without_a_warning(variant: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, render_mode="rgb_array", **variant).unwrapped)


def test_stable_baselines3_check_env_passes_without_a_warning() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(gym.make(ID).unwrapped)


def test_the_constructors_name_every_argument() -> None:
    fields = {name: field.default for name, field in CoordinationConfig.model_fields.items()}
    for cls, arguments in (
        (CoordinationEnv, [*fields, "render_mode", "unknown_arguments"]),
        (CoordinationVectorEnv, ["num_envs", "num_threads", "autoreset_mode", *fields]),
    ):
        found = inspect.signature(cls).parameters
        assert list(found) == arguments
        assert {name: found[name].default for name in fields} == fields


def test_spaces_are_as_documented() -> None:
    env = gym.make(ID)
    assert env.action_space == Discrete(15)
    assert isinstance(env.observation_space, Box)
    assert env.observation_space.shape == (49,) == (OBSERVATION_SIZE,)


def episode(env: gym.Env[Any, Any], seed: int, legal: bool = True) -> list[Any]:
    """Observation, reward and info of each step."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    trace: list[Any] = [(observation.copy(), 0.0, dict(info))]
    over = False
    while not over:
        likely = rng.random(15) * (info["action_mask"] if legal else 1)
        likely[FALLBACK] *= 0.2
        observation, reward, over, truncated, info = env.step(likely.argmax())
        assert not truncated
        assert observation in env.observation_space
        assert reward == pytest.approx(sum(info["rewards"].values()))
        trace.append((observation.copy(), reward, dict(info)))
    return trace


def test_a_spec_survives_json_and_a_seed_gives_the_same_bits() -> None:
    env = gym.make(ID, conversation=0.5, max_num_seqs=2)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    first, second = episode(env, 3), episode(again, 3)
    assert len(first) == len(second)
    for (a, x, i), (b, y, j) in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
        assert x == y
        assert data_equivalence(i, j)
    assert episode(env, 4)[1][0].tobytes() != first[1][0].tobytes()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_row_of_the_batch_is_a_single_environment(variant: dict[str, Any]) -> None:
    """Over autoresets too: same bits, rewards, costs, ends and last infos."""
    num = 5
    batch: Any = gym.make_vec(ID, num_envs=num, **variant)
    singles = [gym.make(ID, **variant) for _ in range(num)]
    observations, _ = batch.reset(seed=7)
    for row, env in enumerate(singles):
        assert np.array_equal(observations[row], env.reset(seed=7 + row)[0])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        likely = batch.action_masks() * rng.random((num, 15))
        likely[:, FALLBACK] *= 0.3
        actions = np.where(rng.random(num) < 0.1, rng.integers(15, size=num), likely.argmax(axis=1))
        observations, rewards, terminations, _, infos = batch.step(actions)
        for row, env in enumerate(singles):
            observation, reward, terminated, _, info = env.step(actions[row])
            assert terminations[row] == terminated
            assert rewards[row] == reward
            assert infos["cost"][row] == info["cost"]
            if terminated:
                ends += 1
                assert np.array_equal(infos["final_obs"][row], observation)
                for key in ("answer_score", "latency_s", "tokens", "episode_reward"):
                    assert infos["final_info"][key][row] == info[key], key
                observation, info = env.reset()
            assert np.array_equal(observations[row], observation)
            assert np.array_equal(batch.action_masks()[row], info["action_mask"])
    assert ends > 20


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    actions=st.lists(st.integers(0, 14), min_size=10, max_size=10),
    conversation=st.booleans(),
    model=st.booleans(),
)
def test_whatever_is_done_the_answer_is_there_by_three_seconds(
    seed: int, actions: list[int], conversation: bool, model: bool
) -> None:
    env: Any = gym.make(
        ID, conversation=conversation, supervisor="model" if model else "rule"
    ).unwrapped
    env.reset(seed=seed)
    before, total = 0, 0.0
    for action in actions:
        _, reward, over, _, info = env.step(action)
        state = env.simulation.state
        now = int(state.elapsed_ms[0])
        assert now >= before and int(state.total_tokens[0]) >= 0
        assert 0 <= info["rewards"]["answer"] <= 1 and info["rewards"]["time"] <= 0
        before, total = now, total + reward
        if over:
            break
    assert over  # by the tenth decision
    assert info["latency_s"] <= 3.0
    assert info["episode_reward"] == pytest.approx(total)
    deadline = 1.5 if env.simulation.question.complexity[0] == 0 else 2.0
    assert info["episode_cost"] == pytest.approx(max(0, info["latency_s"] - deadline) / deadline)


def test_an_action_that_is_not_open_takes_an_iteration_alone() -> None:
    env: Any = gym.make(ID).unwrapped
    _, info = env.reset(seed=0)
    assert not info["action_mask"][[ANSWER, VALIDATE, TRIM]].any()
    _, reward, over, _, info = env.step(ANSWER)
    assert info["carried_out"] == "" and not over
    assert reward == pytest.approx(-0.1 / 2000.0)  # the overhead of the decision, a millisecond
    assert env.context().iteration[0] == 1


def test_ten_decisions_force_the_fallback() -> None:
    env: Any = gym.make(ID).unwrapped
    env.reset(seed=0)
    for _ in range(9):
        assert not env.step(ANSWER)[2]
    _, _, over, _, info = env.step(ANSWER)
    assert over and info["reason"] == "iterations" and info["carried_out"] == "fallback"
    assert info["rewards"]["attribution"] == 0.0


def test_without_a_fallback_there_is_no_answer() -> None:
    for fallback in (True, False):
        scores = []
        for seed in range(12):
            env: Any = gym.make(ID, fallback=fallback, noise=False).unwrapped
            env.reset(seed=seed, options={"scenario": "S1"})
            over = False
            while not over:
                _, _, over, _, info = env.step(TRIM)
            scores.append(info["answer_score"])
        assert (max(scores) > 0.0) == fallback


def test_an_answer_from_one_search_by_hand() -> None:
    """30 + 4 passages of 97 tokens are read and 60 written, after a search."""
    env: Any = gym.make(ID, noise=False).unwrapped
    env.reset(seed=1, options={"scenario": "S1"})
    _, _, _, _, info = env.step(RETRIEVE)
    search = 1 + round(1000 * (30 / 1050 + 16 / 130 + 0.02))
    assert env.context().elapsed_ms[0] == search
    _, _, over, _, info = env.step(ANSWER)
    answer = 1 + round(1000 * ((30 + 4 * 97) / 1050 + 60 / 130))
    assert over and info["latency_s"] == (search + answer) / 1000
    assert info["tokens"] == 46 + 30 + 4 * 97 + 60
    assert info["rewards"]["validation"] == -0.1
    assert info["rewards"]["tokens"] == pytest.approx(-0.05 * (30 + 4 * 97 + 60) / 4096)


@pytest.mark.parametrize("seed", [74, 193, 271])
def test_a_draft_that_fails_before_its_validation_is_a_retry(seed: int) -> None:
    env: Any = gym.make(ID).unwrapped
    env.reset(seed=seed)
    for action in (RETRIEVE, VALIDATE, VALIDATE):
        env.step(action)
    state = env.simulation.state
    assert state.retries[0] == 1 and state.failures[0, SYNTHESIS] == 2


def test_a_conversation_that_overflows_is_worth_nothing() -> None:
    env: Any = gym.make(ID, conversation=True, noise=False).unwrapped
    env.reset(seed=0)
    env.simulation.state.context[0] = 131_000
    _, reward, over, _, info = env.step(RETRIEVE)
    assert over and info["reason"] == "context" and info["answer_score"] == 0.0
    assert info["rewards"]["answer"] == 0.0 and reward < 0.0


def test_a_model_reads_a_trimmed_conversation_again() -> None:
    """The cache ends where the cut is: 70 % of 108,800 tokens are 72 s of reading."""
    for supervisor, late in (("rule", False), ("model", True)):
        env: Any = gym.make(ID, supervisor=supervisor, noise=False).unwrapped
        env.reset(seed=0, options={"scenario": "S7"})
        env.step(TRIM)
        assert env.context().context[0] <= 108_800
        _, _, over, _, info = env.step(ROUTE)
        assert over == late and (info["reason"] == "deadline") == late


def test_scenarios_and_their_facts() -> None:
    env: Any = gym.make(ID).unwrapped
    for seed in range(8):
        env.reset(seed=seed, options={"scenario": "S3"})
        _, _, _, _, _ = env.step(PLAN)  # which times out
        assert env.context().failed[0].tolist() == [False, True, False, False, False]
    env.reset(seed=0, options={"scenario": "S4"})
    assert env.context().refers[0] and env.simulation.question.history.sum() == pytest.approx(
        6000, abs=5
    )
    env.reset(seed=0)
    assert not env.simulation.question.history.any()
    with pytest.raises(ConfigError, match="Known: S1"):
        env.reset(options={"scenario": "S9"})
    with pytest.raises(ConfigError, match="unknown option"):
        env.reset(options={"scenarios": "S1"})
    batch: Any = gym.make_vec(ID, num_envs=3)
    batch.reset(seed=0, options={"scenario": "S7"})
    assert (batch.simulation.question.history.sum(axis=1) > 125_000).all()


def test_renders_and_refuses() -> None:
    env: Any = gym.make(ID, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    before = env.render()
    env.step(ROUTE)
    assert before.shape == (540, 960, 3) and not np.array_equal(before, env.render())
    text: Any = gym.make(ID, render_mode="ansi").unwrapped
    text.reset(seed=0)
    text.step(ROUTE)
    assert "route" in text.render() and "router" in text.render()
    with pytest.raises(ActionError):
        env.step(15)
    with pytest.raises(ConfigError, match="Did you mean 'conversation'"):
        gym.make(ID, conversations=True)
    with pytest.raises(ConfigError, match="trim"):
        gym.make(ID, trim="oldest")
    trace = episode(env, 1)
    assert "episode_reward" in trace[-1][2]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(ROUTE)
