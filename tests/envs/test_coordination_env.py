"""The contract of InfraMind-Coordination-v0 with Gymnasium and its users."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inframind_gym  # noqa: F401
from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination.rules import ANSWER, PLAN, RETRIEVE, ROUTE, TRIM, VALIDATE

ID = "InfraMind-Coordination-v0"


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
    batch: Any = gym.make_vec(ID, num_envs=3)
    batch.reset(seed=0, options={"scenario": "S7"})
    assert (batch.simulation.question.history.sum(axis=1) > 125_000).all()
