"""Calls of the team that are no agent's: the pre-flight, and the ratings after each step.

The pre-flight is a cheap call that guesses the complexity of a task, and so its minimum budget.
After each agent step there are three proxies of quality:

- self-evaluation: an LLM rates the product on completeness, clarity and actionability, 0-100;
- flags: how many of the critic's flags the rating says are resolved;
- checklist: parts of the plan, or sections of the draft, that are there; no model is asked.

`rules.record` makes a score and an ROI of them. A rating that fails, is refused or cannot be read
leaves the last one in place; before the first, the other proxies count alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inframind_gym.teams.llm.service import EventLog, LLMService
from inframind_gym.teams.llm.types import BudgetError, LLMError
from inframind_gym.teams.token_budget import agents
from inframind_gym.teams.token_budget.agents import Flag, Product, Prompt, json_object, read_rating
from inframind_gym.teams.token_budget.budget import PREFLIGHT, SELF_EVAL
from inframind_gym.teams.token_budget.rules import Evidence
from inframind_gym.teams.token_budget.settings import COMPLEXITIES

RATING_TOKENS: Final = 60  # of a rating's answer at most
PREFLIGHT_TOKENS: Final = 30  # of the pre-flight's
FALLBACK: Final = COMPLEXITIES.index("moderate")  # where no usable answer came


class RoiEvaluator:
    """Pre-flight and ratings of one run.

    Args:
        service: of the run.
        provider: name of the provider that rates.
        log: where what goes wrong is written.
    """

    def __init__(self, service: LLMService, provider: str, log: EventLog) -> None:
        self._service, self._provider, self._log = service, provider, log
        self._score = float("nan")  # the last rating

    async def classify(self, task: str, context: dict[str, Any]) -> int:
        """Return the complexity of a task, a place in COMPLEXITIES.

        A call that fails or an answer that cannot be read is an event; the task counts as moderate.
        """
        prompt = agents.preflight(task)
        answer = await self._ask(PREFLIGHT, prompt, PREFLIGHT_TOKENS, context, "preflight_missing")
        if answer is None:
            return FALLBACK
        found = (json_object(answer) or {}).get("complexity")
        if found not in COMPLEXITIES:
            self._log.append("malformed", {"agent": PREFLIGHT, "answer": answer[:500]})
            return FALLBACK
        return COMPLEXITIES.index(found)

    async def evaluate(
        self, product: Product, new_flags: list[Flag], *, is_review: bool, context: dict[str, Any]
    ) -> Evidence:
        """Rate the product after a step.

        Args:
            product: after the step; flags that were resolved are marked in it.
            new_flags: of the critic, in this step.
            is_review: whether the step was the critic's, which resolves nothing.
            context: further context of the call.
        """
        open_flags = [number for number, _ in product.open_flags]
        rating = await self._rate(product, {**context, "open_flags": open_flags})
        resolved = 0
        if rating is not None:
            self._score, numbers = rating
            for number in set(numbers) & set(open_flags) if not is_review else ():
                product.flags[number - 1].is_resolved = True
                resolved += 1
        return Evidence(
            np.array([self._score]),
            np.array([product.checklist]),
            np.array([len(new_flags)]),
            np.array([resolved]),
            np.array([sum(flag.points for flag in new_flags)], np.float64),
        )

    async def _rate(
        self, product: Product, context: dict[str, Any]
    ) -> tuple[float, list[int]] | None:
        prompt = agents.self_eval(product)
        answer = await self._ask(SELF_EVAL, prompt, RATING_TOKENS, context, "rating_missing")
        if answer is None:
            return None
        rating = read_rating(answer)
        if rating is None:
            self._log.append("malformed", {"agent": SELF_EVAL, "answer": answer[:500]})
        return rating

    async def _ask(
        self, agent: str, prompt: Prompt, most_tokens: int, context: dict[str, Any], missing: str
    ) -> str | None:
        """Return the answer to a prompt; None, and an event `missing`, where none comes."""
        try:
            response = await self._service.acall(
                *prompt[:2],
                self._provider,
                most_tokens,
                prompt.schema,
                agent=agent,
                context={**context, "agent": agent},
            )
        except (BudgetError, LLMError) as error:
            self._log.append(missing, {"reason": str(error)})
            return None
        return response.content
