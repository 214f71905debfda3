"""Simulated providers of the application: what `simulate` draws, in the form of model answers."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.assignment import simulate
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.rules import AGENTS, CRITERIA, PROVIDERS, TASK_TYPES, agent_of
from inframind_gym.teams.llm.providers import Simulated
from inframind_gym.teams.llm.types import Completion, LLMRequest

MARK: Final = "[simulated]"


class DrawnAnswers:
    """Answers of agents and judge in one run.

    The context of a call says what it is: `call` ("agent" or "judge"), and the place that its
    numbers belong to: `ordinal` of the task in the run, `task` in the bank, `action`.

    Args:
        team: Constants.
        seed: Seed of the run.
        arrivals: Order of tasks; "drifting" also changes an agent.
        num_tasks: Length of the run, by which the drift is timed.
    """

    def __init__(self, team: simulate.Team, seed: int, arrivals: Arrivals, num_tasks: int) -> None:
        self._team = team
        self._key = simulate.key_of(seed)
        self._drifts = arrivals == "drifting"
        self._num_tasks = num_tasks

    def providers(self) -> dict[str, Simulated]:
        """Return the two providers by their names."""
        settings = self._team.settings.providers
        return {name: Simulated(getattr(settings, name).model, self) for name in PROVIDERS}

    def __call__(self, request: LLMRequest) -> Completion:
        """Return the completion of a request."""
        place = request.context
        drawn = self._answer(place["ordinal"], place["task"], place["action"])
        if place["call"] == "agent":
            agent = AGENTS[agent_of(place["action"])]
            task = self._team.settings.tasks[place["task"]]
            text = f"{MARK} The {agent}'s answer to: {task.description}"
            return _completion(text, drawn, request.max_tokens)
        key, ordinal = self._key, _one(place["ordinal"])
        call = simulate.judge_call(self._team, key, ordinal, drawn.output_tokens)
        scores = dict(zip(CRITERIA, drawn.scores[0].tolist(), strict=True))
        return _completion(json.dumps({**scores, "reasoning": MARK}), call, request.max_tokens)

    def _answer(self, ordinal: int, task: int, action: int) -> simulate.Answers:
        ordinals, actions = _one(ordinal), _one(action)
        change = None
        if self._drifts:
            change = simulate.drift(
                self._team, self._key, ordinals, self._num_tasks, _one(agent_of(action))
            )
        return simulate.answer(self._team, self._key, ordinals, _one(task), actions, change)


def bank_place(team: simulate.Team, description: str, task_type: str, ordinal: int) -> int:
    """Return the task of the bank that a request is drawn as: itself, or one of its type."""
    for place, task in enumerate(team.settings.tasks):
        if task.description == description:
            return place
    tasks = team.of_type[TASK_TYPES.index(task_type)]
    return int(tasks[ordinal % len(tasks)])


def _completion(text: str, drawn: Any, max_tokens: int) -> Completion:
    """Return a drawn call as a completion, cut at the limit of its answer."""
    wanted = int(drawn.output_tokens[0])
    made = min(wanted, max_tokens)
    latency_s = float(drawn.latency_s[0]) * (made / wanted)
    reason = "stop" if made == wanted else "length"
    return Completion(text, int(drawn.input_tokens[0]), made, reason, latency_s)


def _one(value: int) -> NDArray[np.int64]:
    return np.array([value], np.int64)
