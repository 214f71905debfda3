"""The judge: a model that scores an answer, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from inframind_gym.errors import ConfigError
from inframind_gym.files import parse_json
from inframind_gym.teams.assignment.model import LLMProvider, QualityScores
from inframind_gym.teams.assignment.rules import CRITERIA
from inframind_gym.teams.assignment.simulate import JUDGED_CHARS
from inframind_gym.teams.llm.service import LLMService
from inframind_gym.teams.llm.types import LLMError

JUDGE_SYSTEM: Final = (
    "You judge the answer of an agent to a task. Answer with one JSON object and nothing else: "
    '{"relevance": x, "accuracy": x, "completeness": x, "agent_match": x, "reasoning": "..."}. '
    "Each x is a number from 0 to 1: does the answer address the task, is it right, is anything "
    "missing, and is the agent's role the right one for this type of task. Reasoning: one sentence."
)
DEFAULT_SCORE: Final = 0.5
MOST_TOKENS: Final = 256  # of the judge's answer
_FENCE: Final = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL | re.IGNORECASE)
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        **{name: {"type": "number", "minimum": 0, "maximum": 1} for name in CRITERIA},
        "reasoning": {"type": "string", "maxLength": 300},
    },
    "required": [*CRITERIA, "reasoning"],
    "additionalProperties": False,
}


class LLMJudge:
    """Scores answers on one provider; an answer that cannot be read scores 0.5 everywhere.

    Args:
        llm_service: The gateway.
        provider: Who judges.

    Attributes:
        log: One mapping for each evaluation: task_type, agent_role, scores, and how they were read:
            "json", "fenced", "default" (not at all) or "failed" (the call did, with its error).
    """

    def __init__(self, llm_service: LLMService, provider: LLMProvider = LLMProvider.OPENAI) -> None:
        self.llm_service = llm_service
        self.provider = provider
        self.log: list[dict[str, Any]] = []

    def evaluate(
        self,
        task_desc: str,
        task_type: str,
        agent_role: str,
        output: str,
        context: Mapping[str, Any] | None = None,
    ) -> QualityScores:
        """Return the scores of an answer.

        Args:
            task_desc: The task.
            task_type: Its type.
            agent_role: Role of the agent that answered.
            output: The answer; its first 2,000 characters are judged.
            context: What a simulated provider draws by.
        """
        message = (
            f"Task ({task_type}): {task_desc}\nAgent: {agent_role}\n"
            f"Answer:\n{output[:JUDGED_CHARS]}"
        )
        try:
            content = self.llm_service.call(
                JUDGE_SYSTEM,
                message,
                self.provider,
                MOST_TOKENS,
                _SCHEMA,
                agent="judge",
                context=context,
            ).content
            scores, how = parse_scores(content)
            error = None
        except LLMError as failure:
            scores, how, error = default_scores(), "failed", str(failure)
        told = {"task_type": task_type, "agent_role": str(agent_role), "read": how}
        told |= {"error": error} if error else {}
        self.log.append({**told, "scores": scores.model_dump()})
        return scores


def parse_scores(content: str) -> tuple[QualityScores, str]:
    """Return the scores in a judge's answer, and how they were read: json, fenced or default."""
    fence = _FENCE.search(content)
    for how, text in (("json", content), ("fenced", fence and fence[1])):
        if text is None:
            continue
        try:
            return QualityScores.model_validate(parse_json(text.strip(), "scores")), how
        except (ConfigError, ValidationError):
            continue
    return default_scores(), "default"


def default_scores() -> QualityScores:
    """Return scores of 0.5."""
    return QualityScores(**dict.fromkeys(CRITERIA, DEFAULT_SCORE), reasoning="no scores were read")
