"""Application and environment are the same team: decisions, seconds, tokens, all of the state."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.utils import seeding

from inframind_gym.envs.coordination import CoordinationConfig, CoordinationSimulation, observe
from inframind_gym.envs.core import checked_arguments
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import rules, settings
from inframind_gym.teams.coordination.agents import AGENT_OF, Work
from inframind_gym.teams.coordination.app import MultiAgentCoordinator, Session
from inframind_gym.teams.coordination.retrieval import RRF, Corpus
from inframind_gym.teams.coordination.rules import FAILURES, CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import Document, QuerySettings
from inframind_gym.teams.coordination.simulate import SCENARIOS, Pinned, SimulatedQuestion
from inframind_gym.teams.llm import LLMError, LLMRequest, LLMResponse
from inframind_gym.teams.state import key_of
from tests.teams.coordination.runs import answer_of
from tests.teams.token_budget.runs import Log

SETTINGS = settings.load_settings()
ROW = np.zeros(1, np.int64)
QUERY = "the whole question"
TEXT = "x" * 4 * SETTINGS.tokens.passage


class DrawnTeam:
    """Model and search of one question that answer as the environment draws them.

    Texts go through prompts and parsers; numbers are those of the draw. Exchanges before are a
    message each, since the environment trims exchanges and the application messages.
    """

    model = "drawn"
    is_simulated = True
    corpus = Corpus("none", ())  # for the rules that rewrite questions

    def __init__(self, seed: int, noise: bool, conversation: float, pinned: Pinned | None) -> None:
        self.question = SimulatedQuestion(SETTINGS, 1, noise=noise, conversation=conversation)
        self.question.start(ROW, key_of(seed), pinned)
        self.outcome = Outcome.empty(1)
        self._failing: set[str] = set()  # sub-tasks whose search fails
        self._known: list[str] = []  # documents that were found
        self._copies = self._prompt = self._completion = self._to_come = 0

    def history(self) -> list[Any]:
        tokens = self.question.history[0]
        said = ({"content": "four" * n, "place": i} for i, n in enumerate(tokens))
        return [{"role": "assistant", **each} for each in said] if tokens.any() else []

    def begin(self, action: int, state: CoordinationState) -> None:
        """Draw what comes of an action."""
        was_open = self.question.open[0].copy()
        self.outcome = outcome = self.question.act(ROW, np.array([action]), state)
        self._prompt, self._completion = int(outcome.prompt[0]), int(outcome.completion[0])
        self._copies, self._to_come = int(outcome.duplicates[0]), int(outcome.docs[0])
        width = int(state.pending[0]) if action >= rules.PARALLEL else 1
        asked = [f"part {i + 1}" for i in np.flatnonzero(was_open)][:width] or [QUERY]
        came = [f"part {i + 1}" for i in np.flatnonzero(was_open & ~self.question.open[0])]
        self._failing = set(asked) - set(came or [QUERY] * int(outcome.answered[0] > 0))

    async def complete(self, request: LLMRequest) -> LLMResponse:
        agent, drawn = str(request.context["agent"]), self.outcome
        question = str(request.context.get("question", ""))
        failed = question in self._failing
        if agent != "retrieval":
            who = ("", *settings.AGENTS)[1 + int(drawn.failed[0])]
            failed = AGENT_OF.get(agent, agent) == who
            failed &= not (agent == "draft" and drawn.drafted[0])
        if failed and FAILURES[int(drawn.failure[0])] == "timeout":
            raise LLMError("timeout", "late", "unknown")
        text = self._text(agent, question)
        if failed:
            text = "" if agent == "draft" else "{"
        prompt, completion = self._prompt, self._completion
        self._prompt = self._completion = 0
        return LLMResponse(text, prompt, completion, "stop", 0.0)

    def lost_tokens(self, _: str) -> int:
        prompt, self._prompt = self._prompt, 0
        return prompt

    def _text(self, agent: str, question: str) -> str:
        drawn = self.outcome
        counts = zip(settings.ISSUES, drawn.issues[0].tolist(), strict=True)
        types = [kind for kind, count in counts for _ in range(count)]
        worst = settings.SEVERITIES[max(int(drawn.severity[0]) - 1, 0)]
        grades = [worst, *["low"] * 20]
        issues = [
            {"type": kind, "severity": grade, "description": "drawn"}
            for kind, grade in zip(types, grades, strict=False)
        ]
        made: dict[str, Any] = {
            "router": {
                "strategy": settings.STRATEGIES[int(drawn.strategy[0])],
                "complexity": settings.COMPLEXITIES[int(drawn.complexity[0])],
                "needs_planning": bool(drawn.needs_planning[0]),
                "confidence": float(drawn.confidence[0]),
            },
            "planner": {"sub_tasks": [f"part {i + 1}" for i in range(int(drawn.subtasks[0]))]},
            "retrieval": {"refined": question, "variants": []},
            "validation": {
                "valid": bool(drawn.valid[0]),
                "confidence": float(drawn.verdict[0]),
                "issues": issues,
            },
        }
        return answer_of(agent, made.get(agent, {})) or "An answer [1]."

    def retrieve(self, query: Any, strategy: str = "hybrid", top_k: int = 10) -> list[Document]:
        """Documents of one search; copies of known ones come last of all."""
        score = float(self.outcome.score[0]) * (1.0 if strategy == "vector" else 2.0 / (RRF + 1.0))
        documents = []
        for _ in range(top_k):
            is_copy = 0 < self._to_come <= self._copies
            self._to_come -= 1
            if not (is_copy and self._known):
                self._known.append(f"document {len(self._known)}")
            name = self._known[0] if is_copy else self._known[-1]
            documents.append(Document(doc_id=name, text=TEXT, source=name, score=score))
        return documents


class Decider:
    """A policy that trims sooner than policies do, and notes what it sees and does."""

    def __init__(self, name: str, seed: int) -> None:
        self.policy, self.seed = resolve_policy(name, family="coordination"), seed
        self.policy.reset(SETTINGS, [0])
        self.taken: list[int] = []
        # Every number of the state before each action, and at the end.
        self.seen: list[dict[str, Any]] = []
        self.kept: list[int] = []  # exchanges that are left

    def look(self, state: CoordinationState) -> None:
        numbers = {k: v[0].copy() for k, v in vars(state).items() if isinstance(v, np.ndarray)}
        self.seen.append(numbers | {"observation": observe(state, ROW)[0]})

    def act_batch(self, observations: Any, state: CoordinationState, rows: Any) -> Any:
        self.look(state)
        actions = self.policy.act_batch(observations, state, rows)
        if state.mask[0, rules.TRIM] and state.iteration[0] == self.seed % 3:
            actions = np.array([rules.TRIM])
        self.taken.append(int(actions[0]))
        return actions


def in_the_environment(
    decide: Decider, noise: bool, conversation: float, pinned: Pinned | None
) -> None:
    arguments = {"noise": noise, "conversation": conversation}
    simulation = CoordinationSimulation(checked_arguments(CoordinationConfig, arguments), 1)
    observations, simulation.scenario = simulation.observations(), pinned
    simulation.reset(ROW, [seeding.np_random(decide.seed)[0]], observations)
    while not (state := simulation.state).over[0]:
        actions = decide.act_batch(observe(state, ROW), state.rows(ROW), ROW)
        simulation.step(ROW, actions, observations)
    decide.look(simulation.state)
    question = simulation.question
    decide.kept.extend(np.flatnonzero(question.kept[0]) if question.history.any() else ())


class DrawnSession(Session):
    """A query whose actions are drawn, with their times."""

    team: DrawnTeam

    def waves_of(self, action: int) -> Any:
        self.team.begin(action, self.state)
        return super().waves_of(action)

    def action_ms(self, action: int, tasks: Any) -> int:
        return int(self.team.outcome.ms[0])


def in_the_application(
    decide: Decider, noise: bool, conversation: float, pinned: Pinned | None
) -> None:
    team = DrawnTeam(decide.seed, noise, conversation, pinned)
    parts: Any = {"provider": team, "searcher": team, "log": Log()}
    work = Work(QUERY, team.history())
    options = QuerySettings(rewrite="model")
    session = DrawnSession(MultiAgentCoordinator(**parts), work, options, time.monotonic())
    session.agents.lost_tokens = team.lost_tokens
    session.team, session.policy = team, decide  # type: ignore[assignment]
    refers, tokens = team.question.refers_to >= 0, team.question.history.sum()
    session.state.begin(ROW, team.question.hint, refers, tokens, model=False)
    asyncio.run(session.play())
    decide.look(session.state)
    decide.kept.extend(message["place"] for message in work.history)


def assert_same(
    name: str, seed: int, noise: bool, conversation: float = 0.0, pinned: Pinned | None = None
) -> Any:
    """Play a question in both and compare them; returns the last state."""
    there, here = Decider(name, seed), Decider(name, seed)
    in_the_environment(there, noise, conversation, pinned)
    in_the_application(here, noise, conversation, pinned)
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
