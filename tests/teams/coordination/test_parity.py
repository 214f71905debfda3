"""Application and environment are the same team: decisions, seconds, tokens, rewards, truth."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination import (
    CoordinationConfig,
    CoordinationSimulation,
    CoordinationSpec,
    coordination_contexts,
    observe,
)
from inframind_gym.envs.core import checked_arguments
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import WAY, Agents, Work
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.rules import ANSWERED, OVERFLOWED, CoordinationState
from inframind_gym.teams.coordination.scenarios import SCENARIOS
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.settings import QuerySettings, load_settings
from inframind_gym.teams.coordination.simulate import Pinned
from inframind_gym.teams.llm import LLMService, Retries
from tests.teams.coordination.drawn import QUERY, ROW, DrawnTeam
from tests.teams.token_budget.runs import Log

Snapshot = dict[str, Any]
POLICIES = ("seed_supervisor", "sequential_supervisor", "always_plan", "random")


class Played(NamedTuple):
    """An episode: its decisions, the state before each and at the end, rewards by their terms."""

    taken: list[int]
    seen: list[Snapshot]
    rewards: list[Any]
    truth: Any  # score and attribution
    kept: list[int]  # exchanges before that are still there


def snapshot(state: CoordinationState) -> Snapshot:
    """Every number of the state, by name."""
    found = {k: v[0].copy() for k, v in vars(state).items() if isinstance(v, np.ndarray)}
    return found | {"observation": observe(state, ROW)[0]}


def decider(name: str, seed: int, taken: list[int]) -> Any:
    settings = load_settings()
    policy = resolve_policy(name, family="coordination")
    policy.reset(CoordinationSpec(settings, settings.server.max_num_seqs), [seed])

    def decide(state: CoordinationState) -> int:
        action = int(
            policy.act_batch(observe(state, ROW), coordination_contexts(state, ROW), ROW)[0]
        )
        if state.mask[0, rules.TRIM] and state.iteration[0] == seed % 3:  # sooner than policies do
            action = rules.TRIM
        taken.append(action)
        return action

    return decide


def in_the_environment(
    name: str, seed: int, noise: bool, conversation: float, pinned: Pinned | None
) -> Played:
    arguments = {"noise": noise, "conversation": conversation}
    simulation = CoordinationSimulation(checked_arguments(CoordinationConfig, arguments), 1)
    observations = simulation.observations()
    simulation.scenario = None if pinned is None else SCENARIOS["S6"]._replace(pinned=pinned)
    simulation.reset(ROW, [seeding.np_random(seed)[0]], observations)
    taken: list[int] = []
    decide, seen = decider(name, seed, taken), [snapshot(simulation.state)]
    rewards = []
    while not simulation.state.over[0]:
        simulation.step(ROW, np.array([decide(simulation.state)]), observations)
        seen.append(snapshot(simulation.state))
        rewards.append(simulation.terms[0].copy())
    question = simulation.question
    kept = np.flatnonzero(question.kept[0]).tolist() if question.history.any() else []
    return Played(taken, seen, rewards, question.scores(ROW), kept)


def in_the_application(
    name: str, seed: int, noise: bool, conversation: float, pinned: Pinned | None
) -> tuple[Played, Log]:
    settings, log = load_settings(), Log()
    team = DrawnTeam(settings, seed, noise=noise, conversation=conversation, pinned=pinned)
    work = Work(QUERY, team.history())
    agents = Agents(
        LLMService({WAY: team}, log=log, retries=Retries(most_attempts=1)),
        team,
        work,
        rewrite=lambda question: [],
        is_about=lambda query, documents: True,
        log=log,
        lost_tokens=team.lost_tokens,
    )
    taken: list[int] = []
    seen: list[Snapshot] = []
    choose = decider(name, seed, taken)

    def decide(state: CoordinationState) -> int:
        seen.append(snapshot(state))
        return int(choose(state))

    session = Session(
        settings,
        QuerySettings(rewrite="model"),
        agents,
        team,
        decide,
        ContextManager(settings.context),
        hint=int(team.question.hint[0]),
        refers=bool(team.question.refers_to[0] >= 0),
        log=log,
    )
    asyncio.run(session.play())
    seen.append(snapshot(session.state))
    truth = team.question.scores(ROW)
    kept = [message["place"] for message in work.history]
    return Played(taken, seen, earned(seen, truth), truth, kept), log


def earned(seen: list[Snapshot], truth: Any) -> list[Any]:
    """Terms of the rewards of an application's decisions."""
    rewards = []
    for before, after in pairwise(seen):
        has_answered = after["reason"] == ANSWERED
        is_given = 0 < after["reason"] < OVERFLOWED
        terms = rules.reward_terms(
            np.array([after["elapsed_ms"] - before["elapsed_ms"]]),
            np.array([after["total_tokens"] - before["total_tokens"]]),
            truth[0] * is_given,
            truth[1] * has_answered,
            has_answered & ~after["judged"],
            load_settings().reward,
        )
        rewards.append(terms[0])
    return rewards


def assert_same(
    name: str, seed: int, noise: bool, conversation: float = 0.0, pinned: Pinned | None = None
) -> Any:
    """Play a question in both and compare them; returns the last state."""
    there = in_the_environment(name, seed, noise, conversation, pinned)
    here, log = in_the_application(name, seed, noise, conversation, pinned)
    assert here.taken == there.taken
    for app, env in zip(here.seen, there.seen, strict=True):
        assert set(app) == set(env)
        for key, value in env.items():
            np.testing.assert_allclose(app[key], value, rtol=1e-6, atol=1e-9, err_msg=key)
    np.testing.assert_allclose(here.rewards, there.rewards, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(here.truth, there.truth)
    assert here.kept == there.kept
    told = log.of("decision")
    assert len([d for d in told if "forced" not in d]) == len(there.taken)
    return here.seen[-1]


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_the_application_is_the_environment(name: str, noise: bool) -> None:
    for seed in range(3):
        assert assert_same(name, seed, noise)["over"]
        assert assert_same(name, seed, noise, 1.0)["context"] > 1_000
    assert_same(name, 0, noise, pinned=SCENARIOS["S4"].pinned)


@pytest.mark.parametrize("history", [126_000, 108_700])  # of the latter the rest is the excess
@pytest.mark.parametrize("name", ["seed_supervisor", "checked_rag", "random"])
def test_a_trim_leaves_the_same_of_both(name: str, history: int) -> None:
    pinned = Pinned(history=history, refers_to=0)
    ends = [assert_same(name, seed, True, pinned=pinned) for seed in range(6)]
    trimmed = [int(end["trimmed_to"]) for end in ends if end["trimmed"]]
    assert len(trimmed) >= 3
    assert max(trimmed) <= load_settings().context.trim_to_tokens
