"""The simulated provider of the application: `simulate` in the form of model answers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium.utils import seeding

from inframind_gym.teams.llm.providers import Simulated
from inframind_gym.teams.llm.types import Completion, LLMRequest
from inframind_gym.teams.token_budget.agents import CRITERIA, DEFAULT_SECTIONS, PLAN_PARTS, to_json
from inframind_gym.teams.token_budget.budget import PREFLIGHT, SELF_EVAL
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR
from inframind_gym.teams.token_budget.settings import AGENTS, COMPLEXITIES, SIZES, TeamSettings
from inframind_gym.teams.token_budget.simulate import Calls, make_task

MARK: Final = "[simulated]"
MODEL: Final = "simulated-team"
_ROW: Final = np.zeros(1, np.int64)
OVERHEAD_ANSWER: Final = 30  # tokens of the answer to rating or pre-flight; the rest is its prompt


class DrawnAnswers:
    """Answers of one run, drawn as the environment of the same seed draws them.

    The context of a call says what it is: `agent`; for planner, executor and critic `size`; for a
    rating `open_flags`, the numbers of the flags that are not resolved.

    Args:
        settings: constants of the team.
        profile: "simulated", or a script.
        seed: of the run.

    Attributes:
        task: the simulated task.
    """

    def __init__(self, settings: TeamSettings, profile: str, seed: int) -> None:
        self._settings = settings
        self.task = make_task(settings, profile, 1)
        key = seeding.np_random(seed)[0].integers(2**64, dtype=np.uint64)
        self.task.start(_ROW, np.array([key]))
        self._last: Calls | None = None
        self._plan_level = self._sections = 0

    def provider(self) -> Simulated:
        """Return the provider that answers so."""
        return Simulated(MODEL, self)

    def __call__(self, request: LLMRequest) -> Completion:
        """Return the completion of a request."""
        agent = request.context["agent"]
        if agent == PREFLIGHT:
            seen = COMPLEXITIES[int(self.task.seen[0])]
            return self._overhead({"complexity": seen}, self._settings.overhead.preflight)
        if agent == SELF_EVAL:
            rating = self._rating(request.context["open_flags"])
            return self._overhead(rating, self._settings.overhead.self_eval)
        which, size = AGENTS.index(agent), SIZES.index(request.context["size"])
        limit = np.array([request.max_tokens])
        self._last = calls = self.task.call(_ROW, np.array([which]), np.array([size]), limit)
        prompt, completion = int(calls.prompt[0]), int(calls.completion[0])
        reason = "length" if calls.cut_off[0] else "stop"
        text = (self._plan, self._draft, self._review)[which]()
        return Completion(text, prompt, completion, reason, self._seconds(completion))

    def _overhead(self, answer: dict[str, Any], tokens: int) -> Completion:
        tokens = tokens if self.task.has_overhead else 0
        made = min(OVERHEAD_ANSWER, tokens)
        return Completion(to_json(answer), tokens - made, made, "stop", self._seconds(made))

    def _seconds(self, tokens: int) -> float:
        seconds = self._settings.simulation.seconds
        return seconds.first_token + seconds.per_token * tokens

    def _rating(self, open_flags: list[int]) -> dict[str, Any]:
        """Return the rating after the last call; the flags that it resolved are the oldest."""
        assert self._last is not None, "a rating follows a call"
        evidence = self._last.evidence
        score, count = float(evidence.self_eval[0]), int(evidence.resolved[0])
        return {**dict.fromkeys(CRITERIA, score), "resolved": open_flags[:count]}

    def _share(self) -> float:
        """Return the share of the checklist that the last call left."""
        assert self._last is not None
        return float(np.nan_to_num(self._last.evidence.checklist[0]))

    def _plan(self) -> str:
        drafted = bool(self.task.has_draft(_ROW)[0])
        full = drafted or self._share() > 0.5
        parts: dict[str, Any] = {
            "goal": f"{MARK} answer the task" if full else "",
            "steps": [f"{MARK} step {i}" for i in (1, 2, 3)],
            "sections": list(DEFAULT_SECTIONS),
            "risks": [f"{MARK} a risk"] if full else [],
        }
        return to_json({part: parts[part] for part in PLAN_PARTS})

    def _draft(self) -> str:
        count = round(self._share() * len(DEFAULT_SECTIONS))
        version = int(self.task.calls[0, EXECUTOR])
        parts = [f"## {title}\n{MARK} version {version}" for title in DEFAULT_SECTIONS[:count]]
        return "\n\n".join(parts) or f"{MARK} version {version}"

    def _review(self) -> str:
        assert self._last is not None
        evidence = self._last.evidence
        count = int(evidence.found[0])
        points = float(evidence.claimed[0]) / max(count, 1)
        review = int(self.task.calls[0, CRITIC])
        flags = [
            {"issue": f"{MARK} defect {i + 1} of review {review}", "points": points}
            for i in range(count)
        ]
        return to_json({"flags": flags})
