"""The pre-flight: a cheap call that guesses the complexity of a task, and its minimum budget."""

from __future__ import annotations

from typing import Any, Final

from inframind_gym.teams.llm.service import EventLog, LLMService
from inframind_gym.teams.llm.types import BudgetError, LLMError
from inframind_gym.teams.token_budget import agents
from inframind_gym.teams.token_budget.agents import json_object
from inframind_gym.teams.token_budget.budget import PREFLIGHT
from inframind_gym.teams.token_budget.settings import COMPLEXITIES

ANSWER_TOKENS: Final = 30
FALLBACK: Final = COMPLEXITIES.index("moderate")  # where no usable answer came


async def classify(
    service: LLMService, provider: str, task: str, context: dict[str, Any], log: EventLog
) -> int:
    """Return the complexity of a task, a place in COMPLEXITIES.

    A call that fails or an answer that cannot be read is an event; the task counts as moderate.
    """
    prompt = agents.preflight(task)
    try:
        response = await service.acall(
            *prompt[:2],
            provider,
            ANSWER_TOKENS,
            prompt.schema,
            agent=PREFLIGHT,
            context={**context, "agent": PREFLIGHT},
        )
    except (BudgetError, LLMError) as error:
        log.append("preflight_missing", {"reason": str(error)})
        return FALLBACK
    found = (json_object(response.content) or {}).get("complexity")
    if found not in COMPLEXITIES:
        log.append("malformed", {"agent": PREFLIGHT, "answer": response.content[:500]})
        return FALLBACK
    return COMPLEXITIES.index(found)
