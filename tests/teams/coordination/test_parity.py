"""Application and environment are the same team: decisions, seconds, tokens, rewards, truth."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.context import CoordinationSpec, contexts
from inframind_gym.envs.coordination.observation import observe
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.policies.coordination import registry
from inframind_gym.teams.coordination import graph, rules
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.question import Pinned
from inframind_gym.teams.coordination.scenarios import SCENARIOS, Scenario
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.settings import load_settings
from inframind_gym.teams.coordination.state import ANSWERED, OVERFLOWED, CoordinationState
from inframind_gym.teams.coordination.work import Work
from inframind_gym.teams.coordination.workers import WAY, Workers
from inframind_gym.teams.llm.service import LLMService, Retries
from tests.teams.coordination.drawn import QUERY, ROW, DrawnTeam
from tests.teams.token_budget.runs import Log

Snapshot = dict[str, Any]
POLICIES = ("seed_supervisor", "sequential_supervisor", "always_plan", "no_validate", "basic_rag")


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
    policy = registry.resolve(name)
    policy.reset(CoordinationSpec(settings, settings.server.max_num_seqs), [seed])

    def decide(state: CoordinationState) -> int:
        action = int(policy.act_batch(observe(state, ROW), contexts(state, ROW), ROW)[0])
        if state.mask[0, rules.TRIM] and state.iteration[0] == seed % 3:  # sooner than policies do
            action = rules.TRIM
        taken.append(action)
        return action

    return decide


def in_the_environment(
    name: str, seed: int, noise: bool, conversation: float, pinned: Pinned | None
) -> Played:
    arguments = {"noise": noise, "conversation": conversation}
    simulation = CoordinationSimulation(coordination_config(arguments), 1)
    observations = simulation.observations()
    simulation.scenario = None if pinned is None else Scenario("", pinned, {})
    simulation.start(ROW, [seeding.np_random(seed)[0]], observations)
    taken: list[int] = []
    decide, seen = decider(name, seed, taken), [snapshot(simulation.state)]
    rewards = []
    while not simulation.state.over[0]:
        simulation.step_rows(ROW, np.array([decide(simulation.state)]), observations)
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
    service = LLMService({WAY: team}, log=log, retries=Retries(most_attempts=1))
    workers = Workers(
        service,
        team,
        work,
        rewrite=lambda question: [],
        check=lambda query, response, sources: [],
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
        work,
        workers,
        team,
        decide,
        ContextManager(settings.context),
        hint=int(team.question.hint[0]),
        refers=bool(team.question.refers_to[0] >= 0),
        max_num_seqs=settings.server.max_num_seqs,
        log=log,
    )
    asyncio.run(graph.play(session))
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


@pytest.mark.parametrize("with_langgraph", [True, False])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("name", [*POLICIES, "random"])
def test_the_application_is_the_environment(
    name: str, noise: bool, with_langgraph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_langgraph:
        pytest.importorskip("langgraph")
    monkeypatch.setattr(graph, "has_langgraph", lambda: with_langgraph)
    for seed in range(2 if with_langgraph else 12):
        assert assert_same(name, seed, noise)["over"]


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("name", [*POLICIES, "random"])
def test_they_are_the_same_in_a_conversation(
    name: str, noise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "has_langgraph", lambda: False)
    for seed in range(12):
        assert assert_same(name, seed, noise, 1.0)["context"] > 1_000
    assert_same(name, 0, noise, pinned=SCENARIOS["S4"].pinned)


@pytest.mark.parametrize("with_langgraph", [True, False])
@pytest.mark.parametrize("history", [126_000, 108_700])  # of the latter the rest is the excess
@pytest.mark.parametrize("name", ["seed_supervisor", "checked_rag", "random"])
def test_a_trim_leaves_the_same_of_both(
    name: str, history: int, with_langgraph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_langgraph:
        pytest.importorskip("langgraph")
    monkeypatch.setattr(graph, "has_langgraph", lambda: with_langgraph)
    pinned = Pinned(history=history, refers_to=0)
    ends = [assert_same(name, seed, True, pinned=pinned) for seed in range(6)]
    trimmed = [int(end["trimmed_to"]) for end in ends if end["trimmed"]]
    assert len(trimmed) >= 3
    assert max(trimmed) <= load_settings().context.trim_to_tokens
