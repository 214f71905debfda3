"""Application and environment are the same team: decisions, seconds, tokens, all of the state."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination import (
    CoordinationConfig,
    CoordinationSimulation,
    observe,
)
from inframind_gym.envs.core import checked_arguments
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import WAY, Agents, Work
from inframind_gym.teams.coordination.rules import CoordinationState
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.settings import QuerySettings, load_settings
from inframind_gym.teams.coordination.simulate import SCENARIOS, Pinned
from inframind_gym.teams.llm import LLMService
from tests.teams.coordination.drawn import QUERY, ROW, DrawnTeam
from tests.teams.token_budget.runs import Log

SETTINGS = load_settings()


class Played(NamedTuple):
    """An episode: its decisions, the state before each and at the end, exchanges that are left."""

    taken: list[int]
    seen: list[dict[str, Any]]
    kept: list[int]


def snapshot(state: CoordinationState) -> dict[str, Any]:
    """Every number of the state, by name."""
    numbers = {k: v[0].copy() for k, v in vars(state).items() if isinstance(v, np.ndarray)}
    return numbers | {"observation": observe(state, ROW)[0]}


def deciding(name: str, seed: int, played: Played) -> Any:
    """A policy that trims sooner than policies do, and notes what it sees and does."""
    policy = resolve_policy(name, family="coordination")
    policy.reset(SETTINGS, [0])

    def decide(state: CoordinationState) -> int:
        played.seen.append(snapshot(state))
        action = int(policy.act_batch(observe(state, ROW), state.rows(ROW), ROW)[0])
        if state.mask[0, rules.TRIM] and state.iteration[0] == seed % 3:
            action = int(rules.TRIM)
        played.taken.append(action)
        return action

    return decide


def in_the_environment(
    name: str, seed: int, noise: bool, conversation: float, pinned: Pinned | None
) -> Played:
    arguments = {"noise": noise, "conversation": conversation}
    simulation = CoordinationSimulation(checked_arguments(CoordinationConfig, arguments), 1)
    observations, played = simulation.observations(), Played([], [], [])
    simulation.scenario = pinned
    simulation.reset(ROW, [seeding.np_random(seed)[0]], observations)
    decide = deciding(name, seed, played)
    while not simulation.state.over[0]:
        simulation.step(ROW, np.array([decide(simulation.state)]), observations)
    played.seen.append(snapshot(simulation.state))
    question = simulation.question
    played.kept.extend(np.flatnonzero(question.kept[0]) if question.history.any() else ())
    return played


class DrawnSession(Session):
    """A query whose actions are drawn, with their times."""

    team: DrawnTeam
    policy_of_test: Any

    def decide(self) -> int:
        return int(self.policy_of_test(self.state))

    def waves_of(self, action: int) -> Any:
        self.team.begin(action, self.state)
        return super().waves_of(action)

    def action_ms(self, action: int, reports: Any) -> int:
        return int(self.team.outcome.ms[0])


def in_the_application(
    name: str, seed: int, noise: bool, conversation: float, pinned: Pinned | None
) -> Played:
    log, played = Log(), Played([], [], [])
    team = DrawnTeam(SETTINGS, seed, noise=noise, conversation=conversation, pinned=pinned)
    work = Work(QUERY, team.history())
    agents = Agents(
        LLMService({WAY: team}, log=log),
        team.retrieve,
        work,
        rewrite=lambda question: [],
        is_about=lambda query, documents: True,
        log=log,
        lost_tokens=team.lost_tokens,
    )
    refers = bool(team.question.refers_to[0] >= 0)
    session = DrawnSession(SETTINGS, QuerySettings(), agents, int(team.question.hint[0]), refers)
    session.team, session.policy_of_test = team, deciding(name, seed, played)
    asyncio.run(session.play())
    played.seen.append(snapshot(session.state))
    played.kept.extend(message["place"] for message in work.history)
    return played


def assert_same(
    name: str, seed: int, noise: bool, conversation: float = 0.0, pinned: Pinned | None = None
) -> Any:
    """Play a question in both and compare them; returns the last state."""
    there = in_the_environment(name, seed, noise, conversation, pinned)
    here = in_the_application(name, seed, noise, conversation, pinned)
    assert (here.taken, here.kept) == (there.taken, there.kept)
    for app, env in zip(here.seen, there.seen, strict=True):
        assert set(app) == set(env)
        for key, value in env.items():
            np.testing.assert_allclose(app[key], value, rtol=1e-6, atol=1e-9, err_msg=key)
    return here.seen[-1]


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(
    "name", ["seed_supervisor", "sequential_supervisor", "always_plan", "random"]
)
def test_the_application_is_the_environment(name: str, noise: bool) -> None:
    for seed in range(3):
        assert assert_same(name, seed, noise)["over"]
        assert assert_same(name, seed, noise, 1.0)["context"] > 1_000
    assert_same(name, 0, noise, pinned=SCENARIOS["S4"])


@pytest.mark.parametrize("history", [126_000, 108_700])  # of the latter the rest is the excess
@pytest.mark.parametrize("name", ["seed_supervisor", "checked_rag", "random"])
def test_a_trim_leaves_the_same_of_both(name: str, history: int) -> None:
    pinned = Pinned(history=history, refers_to=0)
    ends = [assert_same(name, seed, True, pinned=pinned) for seed in range(6)]
    trimmed = [int(end["trimmed_to"]) for end in ends if end["trimmed"]]
    assert len(trimmed) >= 3
    assert max(trimmed) <= SETTINGS.context.trim_to_tokens
