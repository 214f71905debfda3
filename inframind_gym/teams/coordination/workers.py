"""Agents at work: each takes a task, calls a model or searches, and hands its result back.

A worker knows its task and the work so far, and nothing of the other workers, so those that are
sent out together run at the same time. Whatever goes wrong comes back as a failure of the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.errors import InfraMindError, shortened
from inframind_gym.teams.coordination import agents, lexical, reading
from inframind_gym.teams.coordination.contracts import (
    Document,
    Issue,
    Plan,
    Retrieved,
    Route,
    Synthesis,
    Validation,
)
from inframind_gym.teams.coordination.reports import Report
from inframind_gym.teams.coordination.searching import Searcher, extract, in_order, search
from inframind_gym.teams.coordination.work import Work, merged
from inframind_gym.teams.llm.service import EventLog, LLMService
from inframind_gym.teams.llm.types import BudgetError, LLMError, estimate_tokens
from inframind_gym.teams.token_budget.agents import Prompt

WAY: Final = "team"  # name of the provider in the service
# Most tokens of an answer in JSON or text; a simulated model has lengths of its own.
MOST_TOKENS: Final = {
    "router": 96,
    "planner": 256,
    "retrieval": 160,
    "synthesis": 128,
    "draft": 256,
    "validation": 256,
    "fallback": 128,
}
FALLBACK_DOCUMENTS: Final = 3
SENTENCES: Final = {"simple": 2, "medium": 2, "complex": 3}  # of an answer
MOST_USEFUL: Final = 5  # sources that the writer is pointed to
MOST_QUERIES: Final = 4  # forms of a question that are searched for
_QUOTING_S: Final = 0.05  # of the fallback's limit, to quote passages where the model is late


@dataclass(slots=True)
class _Calls:
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0


class Workers:
    """The five agents, and the basic retrieval that answers where they fail.

    Args:
        service: Way to the model, under the name `WAY`.
        searcher: Way to documents.
        work: Product so far; workers read it.
        rewrite: Forms of a question for retrieval, by rules.
        check: Issues of an answer against its sources, by rules.
        log: Where passages that are withheld are written.
        most_sub_tasks: Of a plan.
        model_queries: The retrieval agent lets the model write what it searches for.
        lost_tokens: Tokens of a prompt whose answer never came.
    """

    def __init__(
        self,
        service: LLMService,
        searcher: Searcher,
        work: Work,
        *,
        rewrite: Callable[[str], list[str]],
        check: Callable[[str, str, Sequence[Document]], Sequence[Issue]],
        log: EventLog,
        most_sub_tasks: int = 3,
        model_queries: bool = True,
        lost_tokens: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.service, self.work = service, work
        self._searcher, self._rewrite, self._check, self._log = searcher, rewrite, check, log
        self._most_sub_tasks, self._model_queries = most_sub_tasks, model_queries
        self._lost_tokens = lost_tokens

    async def perform(
        self, agent: str, task: Mapping[str, Any], limit_s: float, slot: int = 0
    ) -> Report:
        """Carry out one task within a time.

        Args:
            agent: "router", "planner", "retrieval", "synthesis", "draft", "validation", "fallback".
            task: Arguments of the agent; `context` is what a simulated model draws by.
            limit_s: Time after which the agent has failed.
            slot: Place among those that are sent out together.
        """
        calls, began_s = _Calls(), time.monotonic()
        failure, message, value = "", "", None
        try:
            async with asyncio.timeout(self._real(limit_s)):
                value = await getattr(self, f"_{agent}")(calls, task)
        except TimeoutError:
            failure, message = "timeout", f"no result within {limit_s:.2f} s"
        except reading.GarbageError as error:
            failure, message = "garbage", str(error)
        except LLMError as error:
            failure = error.outcome if error.outcome == "timeout" else "error"
            message = str(error)
        except (BudgetError, InfraMindError) as error:
            failure, message = "error", str(error)
        except Exception as error:  # of a searcher or a provider that is not ours
            failure, message = "error", f"{type(error).__name__}: {error}"
        return Report(
            agent,
            slot,
            failure,
            shortened(message, 300),
            value,
            calls.input_tokens,
            calls.output_tokens,
            calls.latency_s,
            began_s,
            time.monotonic(),
        )

    def _real(self, limit_s: float) -> float | None:
        """Return a limit of real time; None where time is virtual."""
        return None if self.service.is_simulated else limit_s

    async def _router(self, calls: _Calls, task: Mapping[str, Any]) -> Route:
        prompt = agents.router(self.work.query, self.work.history)
        return reading.read_route(await self._ask(calls, "router", prompt))

    async def _planner(self, calls: _Calls, task: Mapping[str, Any]) -> Plan:
        prompt = agents.planner(self.work.query, self._most_sub_tasks, self.work.history)
        text = await self._ask(calls, "planner", prompt)
        return reading.read_plan(text, self.work.query, self._most_sub_tasks)

    async def _retrieval(self, calls: _Calls, task: Mapping[str, Any]) -> Retrieved:
        """Search for one sub-task, by the words of the model, else of the rules, else its own.

        The first form of a question makes the ranking; of others a few passages come last.
        """
        question, strategy = str(task["sub_task"]), task["strategy"]
        queries = [lexical.in_context(question, self.work.history)]
        if self.work.is_rewritten:
            queries = [*self._rewrite(queries[0]), *queries]
        if self._model_queries:
            earlier = merged(self.work.found)[0] if self.work.is_sequential else ()
            prompt = agents.rewriter(question, self.work.history, earlier)
            text = await self._ask(calls, "retrieval", prompt, question=question)
            queries = in_order(question, queries, reading.read_queries(text))
        queries = list(dict.fromkeys(queries))[:MOST_QUERIES]
        top_k = task["top_k"]
        return await search(self._searcher, question, queries, strategy, top_k, self._log)

    async def _synthesis(self, calls: _Calls, task: Mapping[str, Any]) -> Synthesis:
        """Bring the documents of all sub-tasks into one list, the most useful first."""
        work = self.work
        documents, duplicates = merged(work.found)
        prompt = agents.merger(work.query, work.sub_tasks, documents, work.history)
        text = await self._ask(calls, "synthesis", prompt)
        order, missing = reading.read_merge(text, len(documents), len(work.sub_tasks))
        return Synthesis(
            documents=tuple(documents[i] for i in order),
            synthesis_metadata={
                "sub_results": len(work.found),
                "documents": len(documents),
                "duplicates": duplicates,
                "missing": [work.sub_tasks[i] for i in missing],
            },
        )

    async def _draft(self, calls: _Calls, task: Mapping[str, Any]) -> tuple[str, Any]:
        """Write an answer, or mend one; returns text and sources."""
        work, documents = self.work, tuple(merged(self.work.found)[0])
        complexity = work.route.complexity if work.route is not None else "medium"
        prompt = agents.writer(
            work.query,
            documents,
            work.history,
            sentences=SENTENCES[complexity],
            best=[documents.index(each) for each in work.ranked[:MOST_USEFUL]],
            draft=work.draft if task.get("mend") else "",
            issues=work.validation.issues if work.validation is not None else (),
        )
        return reading.read_answer(await self._ask(calls, "draft", prompt)), documents

    async def _validation(self, calls: _Calls, task: Mapping[str, Any]) -> Validation:
        """Let the model and the rules look for issues; those of high severity reject."""
        work = self.work
        prompt = agents.validator(work.query, work.draft, work.documents, work.history)
        told = reading.read_validation(await self._ask(calls, "validation", prompt))
        if self.service.is_simulated:
            return told
        found = await asyncio.to_thread(self._check, work.query, work.draft, work.documents)
        issues = tuple(dict.fromkeys((*told.issues, *found)))[:20]
        if not any(issue.severity == "high" for issue in found):
            return told.model_copy(update={"issues": issues})
        return Validation(
            valid=False,
            confidence=min(told.confidence, 0.5),
            issues=issues,
            suggested_action="regenerate",
        )

    async def _fallback(self, calls: _Calls, task: Mapping[str, Any]) -> tuple[str, Any]:
        """Answer by basic retrieval; without a model in time by what the passages say.

        Its prompt has no earlier turns, which no cache may hold, but their system messages, and the
        question before if the query refers to it.
        """
        work, began_s = self.work, time.monotonic()
        query = lexical.in_context(work.query, work.history)
        asked = (work.query, [query])
        found = await search(self._searcher, *asked, "vector", FALLBACK_DOCUMENTS, self._log)
        documents = found.documents
        try:
            left_s = task["limit_s"] - _QUOTING_S - (time.monotonic() - began_s)
            async with asyncio.timeout(self._real(left_s)):
                bound = [message for message in work.history if message["role"] == "system"]
                prompt = agents.writer(query, documents, bound, sentences=SENTENCES["simple"])
                text = await self._ask(calls, "fallback", prompt, documents=documents)
            return reading.read_answer(text), documents
        except (TimeoutError, LLMError, BudgetError, reading.GarbageError):
            return extract(documents), documents

    async def _ask(self, calls: _Calls, agent: str, prompt: Prompt, **facts: Any) -> str:
        try:
            reply = await self.service.acall(
                prompt.system,
                prompt.user,
                WAY,
                MOST_TOKENS[agent],
                prompt.schema,
                agent=agent,
                context={"agent": agent, **facts},
            )
        except (LLMError, asyncio.CancelledError) as error:
            if not isinstance(error, LLMError) or error.outcome in ("timeout", "connection"):
                calls.input_tokens += self._lost_tokens(prompt.user)  # it was read, all the same
            raise
        calls.input_tokens += reply.input_tokens
        calls.output_tokens += reply.output_tokens
        calls.latency_s += reply.latency_s
        return reply.content
