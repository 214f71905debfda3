"""Supervisors of one query: a policy of the environment, or a model.

The model reads where the query stands and names the next step. Its turns are calls like any other:
they take time before the deadline, and tokens, which is what fewer turns save. An answer that names
no open step, or none in time, leaves the step to the rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from inframind_gym.envs.coordination.context import CoordinationSpec, contexts
from inframind_gym.envs.coordination.observation import observe
from inframind_gym.errors import ConfigError
from inframind_gym.policies.coordination import registry
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import SYSTEM
from inframind_gym.teams.coordination.session import Decider
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    COMPLEXITIES,
    STRATEGIES,
    CoordinationSettings,
)
from inframind_gym.teams.coordination.state import CoordinationState
from inframind_gym.teams.coordination.work import Work
from inframind_gym.teams.coordination.workers import WAY
from inframind_gym.teams.llm.service import EventLog, LLMService
from inframind_gym.teams.llm.types import BudgetError, LLMError
from inframind_gym.teams.token_budget.agents import Prompt, json_object

NAME: Final = "llm_supervisor"
NO_MODEL: Final = f"policy {NAME} asks a model: name one with --provider."
_RULE: Final = "seed_supervisor"  # decides where a model does not
_ROW: Final = np.zeros(1, np.int64)
_MOST_TOKENS: Final = 48
_STEPS: Final = (
    "route names complexity and strategy; plan splits a complex question; rewrite improves its "
    "words for search; retrieve searches for the next sub-task, in parallel for all that wait; "
    "synthesize merges several searches; validate writes an answer and checks it; regenerate "
    "mends it; trim shortens the conversation; answer ends; fallback ends with a basic search."
)


class PolicySupervisor:
    """Decides by a coordination policy.

    Args:
        name: Of the policy, or "module:Class".
        settings: Constants of the query.
        max_num_seqs: Calls that the server carries out together.
        seed: Of policies that draw.

    Raises:
        ConfigError: There is no such policy.
    """

    def __init__(
        self, name: str, settings: CoordinationSettings, max_num_seqs: int, seed: int
    ) -> None:
        self._policy = registry.resolve(name)
        self._policy.reset(CoordinationSpec(settings, max_num_seqs), [seed])

    def __call__(self, state: CoordinationState) -> int:
        """Return the next action, 0-14."""
        seen = contexts(state, _ROW)
        return int(self._policy.act_batch(observe(state, _ROW), seen, _ROW)[0])


class LlmSupervisor:
    """Decides by asking the model.

    Args:
        service: Way to the model.
        work: Product so far.
        rule: Decides where the model does not.
        log: Where its failures are written.

    Attributes:
        tokens: Prompt and answer of the last turn.
    """

    def __init__(
        self,
        service: LLMService,
        work: Work,
        rule: Callable[[CoordinationState], int],
        log: EventLog,
    ) -> None:
        self.tokens = (0, 0)
        self._service, self._work, self._rule, self._log = service, work, rule, log

    def __call__(self, state: CoordinationState) -> Awaitable[int]:
        """Return the next action, 0-14."""
        return self._decide(state)

    async def _decide(self, state: CoordinationState) -> int:
        names = [rules.NAMES[i] for i in np.flatnonzero(state.mask[0])]
        asked, self.tokens = prompt(state, self._work, names), (0, 0)
        try:
            reply = await self._service.acall(
                *asked[:2], WAY, _MOST_TOKENS, asked.schema, agent="supervisor"
            )
        except (LLMError, BudgetError) as error:
            self._log.append("supervisor_failed", {"reason": str(error)})
            return self._rule(state)
        self.tokens = (reply.input_tokens, reply.output_tokens)
        step = (json_object(reply.content) or {}).get("step")
        if step not in names:
            self._log.append(
                "supervisor_failed", {"reason": f"no open step: {reply.content[:100]}"}
            )
            return self._rule(state)
        return rules.NAMES.index(str(step))


def decider(
    policy: str,
    settings: CoordinationSettings,
    max_num_seqs: int,
    seed: int,
    service: LLMService,
    work: Work,
    log: EventLog,
) -> Decider:
    """Return who decides: a policy, or the model with the rule of the design behind it.

    Raises:
        ConfigError: The policy is not known, or there is no model to ask.
    """
    if policy != NAME:
        return PolicySupervisor(policy, settings, max_num_seqs, seed)
    if service.is_simulated:
        raise ConfigError(NO_MODEL)
    rule = PolicySupervisor(_RULE, settings, max_num_seqs, seed)
    return LlmSupervisor(service, work, rule, log)


def prompt(state: CoordinationState, work: Work, names: list[str]) -> Prompt:
    """Return the prompt of a turn: where the query stands, and what is open."""
    failed = [agent for agent, has in zip(AGENTS, state.failed[0], strict=True) if has]
    stands: dict[str, Any] = {
        "complexity": _name(COMPLEXITIES, int(state.complexity[0])),
        "strategy": _name(STRATEGIES, int(state.strategy[0])),
        "needs planning": bool(state.needs_planning[0]),
        "searches that wait": int(state.pending[0]),
        "passages": int(state.docs[0]),
        "merged": bool(state.merged[0]),
        "answer written": bool(state.drafted[0]),
        "answer validated": bool(state.judged[0]),
        "answer valid": bool(state.valid[0]),
        "failed agents": ", ".join(failed) or "none",
        "seconds": int(state.elapsed_ms[0]) / 1000.0,
        "seconds at most": state.settings.limits.hard_s,
    }
    told = "; ".join(f"{key}: {value}" for key, value in stands.items())
    return Prompt(
        SYSTEM,
        f"Question: {work.query}\n\nTask: Name the next step of the team as one JSON object with "
        f"the key step. {_STEPS} State: {told}. Open steps: {', '.join(names)}.",
        {
            "type": "object",
            "properties": {"step": {"enum": names}},
            "required": ["step"],
        },
    )


def _name(names: tuple[str, ...], place: int) -> str:
    return names[place] if place >= 0 else "unknown"
