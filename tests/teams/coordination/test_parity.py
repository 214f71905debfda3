"""Application and environment are the same team: decisions, seconds, tokens, truth."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.context import CoordinationSpec, contexts
from inframind_gym.envs.coordination.observation import observe
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.policies.coordination import registry
from inframind_gym.teams.coordination import graph
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.settings import load_settings
from inframind_gym.teams.coordination.state import CoordinationState
from inframind_gym.teams.coordination.workers import WAY, Work, Workers
from inframind_gym.teams.llm.service import LLMService, Retries
from tests.teams.coordination.drawn import QUERY, ROW, DrawnTeam
from tests.teams.token_budget.runs import Log

Snapshot = dict[str, Any]
POLICIES = ("seed_supervisor", "sequential_supervisor", "always_plan", "no_validate", "basic_rag")


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
        taken.append(action)
        return action

    return decide


def in_the_environment(name: str, seed: int, noise: bool) -> tuple[list[int], list[Snapshot], Any]:
    simulation = CoordinationSimulation(coordination_config({"noise": noise}), 1)
    observations = simulation.observations()
    simulation.start(ROW, [seeding.np_random(seed)[0]], observations)
    taken: list[int] = []
    decide, seen = decider(name, seed, taken), [snapshot(simulation.state)]
    while not simulation.state.over[0]:
        simulation.step(np.array([decide(simulation.state)]), observations)
        seen.append(snapshot(simulation.state))
    return taken, seen, simulation.question.scores(ROW)


def in_the_application(
    name: str, seed: int, noise: bool
) -> tuple[list[int], list[Snapshot], Any, Log]:
    settings, log = load_settings(), Log()
    team, work = DrawnTeam(settings, seed, noise=noise), Work(QUERY)
    service = LLMService({WAY: team}, log=log, retries=Retries(most_attempts=1))
    workers = Workers(
        service,
        team,
        work,
        rewrite=lambda question: [],
        check=lambda query, response, sources: [],
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
    return taken, [*seen, snapshot(session.state)], team.question.scores(ROW), log


@pytest.mark.parametrize("with_langgraph", [True, False])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("name", [*POLICIES, "random"])
def test_the_application_is_the_environment(
    name: str, noise: bool, with_langgraph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_langgraph:
        pytest.importorskip("langgraph")
    monkeypatch.setattr(graph, "has_langgraph", lambda: with_langgraph)
    endings = set()
    for seed in range(2 if with_langgraph else 12):
        there = in_the_environment(name, seed, noise)
        here = in_the_application(name, seed, noise)
        assert here[0] == there[0]  # decisions
        assert len(here[1]) == len(there[1])
        for app, env in zip(here[1], there[1], strict=True):
            assert set(app) == set(env)
            for key, value in env.items():
                np.testing.assert_allclose(app[key], value, rtol=1e-6, atol=1e-9, err_msg=key)
        np.testing.assert_array_equal(here[2], there[2])  # score and attribution
        told = here[3].of("decision")
        assert len([d for d in told if "forced" not in d]) == len(there[0])
        endings.add(int(here[1][-1]["reason"]))
    assert endings
