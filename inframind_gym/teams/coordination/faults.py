"""Faults put between the team and its model, to see what the team makes of them."""

from __future__ import annotations

import asyncio
from typing import Final

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.teams.llm.types import AttemptError, Completion, LLMRequest, Provider

AGENTS: Final = ("router", "planner", "retrieval", "synthesis", "draft", "validation", "fallback")
KINDS: Final = ("timeout", "garbage", "error", "slow")
SLOW_S: Final = 0.5  # that a slow call takes longer
_FOREVER_S: Final = 3600.0


def parse_fault(fault: str) -> tuple[str, str]:
    """Return agent and kind of a fault.

    Raises:
        ConfigError: There is no such agent or kind.
    """
    agent, _, kind = fault.partition(":")
    if agent not in AGENTS:
        raise ConfigError(f"fault {fault!r}: {unknown('agent', agent, AGENTS)}")
    if kind not in KINDS:
        raise ConfigError(f"fault {fault!r}: {unknown('kind', kind, KINDS)}")
    return agent, kind


class Faulty:
    """A provider whose calls by one agent go wrong.

    Args:
        inner: The provider.
        fault: Agent and kind, as "planner:timeout".

    Raises:
        ConfigError: There is no such agent or kind.
    """

    def __init__(self, inner: Provider, fault: str) -> None:
        agent, kind = parse_fault(fault)
        self.model, self.is_simulated = inner.model, inner.is_simulated
        self._inner, self._agent, self._kind = inner, agent, kind

    async def complete(self, request: LLMRequest) -> Completion:
        """See `Provider`."""
        if request.context.get("agent") != self._agent:
            return await self._inner.complete(request)
        if self._kind == "timeout":
            if not self.is_simulated:  # where time is virtual the clock knows the limit
                await asyncio.sleep(_FOREVER_S)
            raise AttemptError("timeout", "no answer", is_retryable=False, spent="unknown")
        if self._kind == "error":
            raise AttemptError("http_500", "internal error", is_retryable=False, spent="nothing")
        found = await self._inner.complete(request)
        if self._kind == "garbage":
            return Completion("{\x00", found.input_tokens, found.output_tokens)
        if found.latency_s is None:
            await asyncio.sleep(SLOW_S)
            return found
        seconds = found.latency_s + SLOW_S
        return Completion(found.content, found.input_tokens, found.output_tokens, "stop", seconds)

    async def aclose(self) -> None:
        """See `Provider`."""
        await self._inner.aclose()
