"""Agents at work: each takes a task, calls a model or searches, and hands its result back.

An agent knows its task and the product so far, and nothing of the others, so those that are sent
out together run at the same time. Whatever goes wrong comes back as a failure of the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from inframind_gym.errors import InfraMindError, shortened
from inframind_gym.teams.coordination import prompts
from inframind_gym.teams.coordination.check import find_issues, is_abstention, screen
from inframind_gym.teams.coordination.context import Trimmed
from inframind_gym.teams.coordination.retrieval import RRF, in_context, terms
from inframind_gym.teams.coordination.settings import (
    Document,
    Issue,
    Plan,
    Retrieved,
    Route,
    Strategy,
    Synthesis,
    Validation,
)
from inframind_gym.teams.llm import (
    AttemptError,
    BudgetError,
    Completion,
    EventLog,
    LLMError,
    LLMRequest,
    LLMService,
    Provider,
    estimate_tokens,
)
from inframind_gym.teams.token_budget.agents import Prompt

WAY: Final = "team"  # name of the provider in the service
AGENT_OF: Final = {"draft": "synthesis"}  # who does a task, where its name is another
FALLBACK_DOCUMENTS: Final = 3
SENTENCES: Final = {"simple": 2, "medium": 2, "complex": 3}  # of an answer
MOST_USEFUL: Final = 5  # sources that the writer is pointed to
MOST_QUERIES: Final = 4  # forms of a question that are searched for
NOTHING_SAID: Final = "The texts say nothing about this."
NO_SOURCE: Final = "The sources do not answer this."
NOT_ABOUT: Final = "no source is about the question: say that the sources do not answer it"
_QUOTING_S: Final = 0.05  # of the fallback's limit, to quote passages where the model is late
_EXTRACT_CHARS: Final = 300  # of a passage in an answer that no model wrote
_FOREVER_S: Final = 3600.0

IsAbout = Callable[[str, Sequence[Document]], bool]  # question, passages


class Searcher(Protocol):
    """A way to documents; see `retrieval.Retriever`."""

    def retrieve(
        self, query: str | Sequence[str], strategy: str = "hybrid", top_k: int = 10
    ) -> list[Document]:
        """Return the best documents, best first."""
        ...


@dataclass(slots=True)
class Report:
    """Report of an agent."""

    agent: str
    slot: int = 0  # place among those that were sent out together
    failure: str = ""  # or one of timeout, garbage, error
    message: str = ""  # what went wrong
    value: Any = None  # result; None after a failure
    input_tokens: int = 0  # of its calls that were answered
    output_tokens: int = 0
    latency_s: float = 0.0  # of its calls; virtual where they are simulated
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0


@dataclass(slots=True)
class Work:
    """Product of the team so far."""

    query: str  # of the user
    history: list[Mapping[str, Any]] = field(default_factory=list)  # earlier turns that are kept
    withheld: tuple[tuple[str, str], ...] = ()  # turns that the screen kept back, with the reason
    route: Route | None = None
    plan: Plan | None = None
    found: list[Retrieved] = field(default_factory=list)  # results of retrieval, one a search
    is_rewritten: bool = False  # searches ask for rewritten forms of their questions as well
    ranked: tuple[Document, ...] = ()  # by the synthesis agent, the most useful first
    documents: tuple[Document, ...] = ()  # sources of the draft, in the order of their numbers
    draft: str = ""  # answer; "" before there is one
    validation: Validation | None = None
    missing: tuple[str, ...] = ()  # sub-tasks without documents, by the synthesis agent
    pending: list[str] = field(default_factory=list)  # sub-tasks that wait for a search

    @property
    def sub_tasks(self) -> tuple[str, ...]:
        """Sub-tasks of the plan; without one the query itself."""
        return self.plan.sub_tasks if self.plan is not None else (self.query,)

    @property
    def is_sequential(self) -> bool:
        """True if a sub-task of the plan needs what an earlier one finds."""
        return self.plan is not None and self.plan.execution_order == "sequential"

    @property
    def sentences(self) -> int:
        """Most sentences of the answer."""
        return SENTENCES[self.route.complexity if self.route is not None else "medium"]

    @property
    def asked(self) -> str:
        """The query, after the question before where it refers to that."""
        return in_context(self.query, self.history)

    def merged(self) -> tuple[list[Document], int]:
        """Return the documents of searches in turn, each once, ten at most; number of copies."""
        lists = [result.documents for result in self.found]
        longest = max(map(len, lists), default=0)
        in_turn = [each[i] for i in range(longest) for each in lists if i < len(each)]
        once: dict[str, Document] = {}
        for document in in_turn:
            once.setdefault(document.doc_id, document)
        return list(once.values())[:10], len(in_turn) - len(once)

    def issues(self, is_about: IsAbout) -> list[Issue]:
        """Return what rules find wrong with the draft; each issue is of high severity."""
        abstains = is_abstention(self.query, prompts.cited(self.draft, ())[0])
        if not abstains and not is_about(self.asked, self.documents):
            return [Issue(type="missing_source", severity="high", description=NOT_ABOUT)]
        draft = prompts.with_ids(self.draft, self.documents)
        return find_issues(self.query, draft, self.documents)

    def keep(self, report: Report) -> None:
        """Put a result in its place; what rests on older ones goes."""
        match report.value:
            case None:
                if report.agent == "fallback":
                    self.draft, self.documents = "", ()
            case Route() as route:
                self.route = route
            case Plan() as plan:
                self.plan, self.pending = plan, list(plan.sub_tasks)
            case Retrieved() as result:
                self.found.append(result)
                if result.sub_task in self.pending:
                    self.pending.remove(result.sub_task)
                self.draft, self.validation, self.ranked = "", None, ()
            case Synthesis() as merged:
                self.ranked = merged.documents
                self.missing = tuple(merged.synthesis_metadata["missing"])
            case Validation() as verdict:
                self.validation = verdict
            case Trimmed() as trimmed:
                self.history = trimmed.messages
            case "rewrite":
                self.is_rewritten = True
            case (draft, documents):
                (self.draft, self.documents), self.validation = (draft, documents), None


class Agents:
    """The five agents, and the basic retrieval that answers where they fail.

    Args:
        service: Way to the model, under the name `WAY`.
        searcher: Way to documents.
        work: Product so far; agents read it.
        rewrite, is_about: Rules: forms of a question for retrieval; whether a passage is about it.
        log: Where passages that are withheld are written.
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
        is_about: IsAbout,
        log: EventLog,
        model_queries: bool = True,
        lost_tokens: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.service, self.work = service, work
        self._searcher, self._rewrite, self._is_about, self._log = searcher, rewrite, is_about, log
        self._model_queries, self._lost_tokens = model_queries, lost_tokens

    async def perform(self, task: Mapping[str, Any]) -> Report:
        """Carry out one task.

        Args:
            task: `agent` (a task of `settings.TASKS`), `slot` (place among those that are sent out
                together), `limit_s` (time after which it has failed), and the agent's arguments.
        """
        report = Report(str(task["agent"]), int(task["slot"]))
        try:
            async with asyncio.timeout(self._real(task["limit_s"])):
                report.value = await getattr(self, f"_{report.agent}")(report, task)
        except TimeoutError:
            report.failure = "timeout"
            report.message = f"no result within {task['limit_s']:.2f} s"
        except prompts.GarbageError as error:
            report.failure, report.message = "garbage", str(error)
        except InfraMindError as error:
            late = isinstance(error, LLMError) and error.outcome == "timeout"
            report.failure, report.message = "timeout" if late else "error", str(error)
        except Exception as error:  # of a searcher or a provider that is not ours
            report.failure, report.message = "error", f"{type(error).__name__}: {error}"
        report.message, report.ended_s = shortened(report.message, 300), time.monotonic()
        return report

    def _real(self, limit_s: float) -> float | None:
        """Return a limit of real time; None where time is virtual."""
        return None if self.service.is_simulated else limit_s

    async def _router(self, report: Report, task: Mapping[str, Any]) -> Route:
        prompt = prompts.ask("router", self.work.query, self.work.history)
        return prompts.read(Route, await self._ask(report, prompt))

    async def _planner(self, report: Report, task: Mapping[str, Any]) -> Plan:
        prompt = prompts.ask("planner", self.work.query, self.work.history)
        return prompts.read_plan(await self._ask(report, prompt), self.work.query)

    async def _retrieval(self, report: Report, task: Mapping[str, Any]) -> Retrieved:
        """Search for one sub-task, by the words of the model, else of the rules, else its own.

        The first form of a question makes the ranking; of others a few passages come last.
        """
        question, work = str(task["sub_task"]), self.work
        queries = [in_context(question, work.history)]
        if work.is_rewritten:
            queries = [*self._rewrite(queries[0]), *queries]
        if self._model_queries:
            before = work.merged()[0] if work.is_sequential else ()
            prompt = prompts.ask("retrieval", question, work.history, before)
            text = await self._ask(report, prompt, question=question)
            queries = in_order(question, queries, prompts.read_queries(text))
        queries = list(dict.fromkeys(queries))[:MOST_QUERIES]
        return await self._search(question, queries, task["strategy"], task["top_k"])

    async def _synthesis(self, report: Report, task: Mapping[str, Any]) -> Synthesis:
        """Bring the documents of all sub-tasks into one list, the most useful first."""
        work = self.work
        documents, duplicates = work.merged()
        notes = [f"{number}. {each}" for number, each in enumerate(work.sub_tasks, 1)]
        written = prompts.marked("note", notes)
        prompt = prompts.ask("synthesis", work.query, work.history, documents, written)
        text = await self._ask(report, prompt)
        order, missing = prompts.read_merge(text, len(documents), len(work.sub_tasks))
        return Synthesis(
            documents=tuple(documents[i] for i in order),
            synthesis_metadata={
                "sub_results": len(work.found),
                "documents": len(documents),
                "duplicates": duplicates,
                "missing": [work.sub_tasks[i] for i in missing],
            },
        )

    async def _draft(self, report: Report, task: Mapping[str, Any]) -> tuple[str, Any]:
        """Write an answer, or mend one; returns text and sources."""
        work, documents = self.work, tuple(self.work.merged()[0])
        useful = ", ".join(str(documents.index(each) + 1) for each in work.ranked[:MOST_USEFUL])
        written = mend = ""
        if task.get("mend") and work.draft:
            issues = work.validation.issues if work.validation is not None else ()
            notes = [f"{issue.type}: {issue.description}" for issue in issues]
            written = prompts.marked("draft", [work.draft]) + prompts.marked("note", notes)
            what = "what the notes say" if issues else "how it says it"
            mend = f" Return the draft with {what} mended."
        hint = f" Most useful sources: {useful}." if useful else ""
        details: dict[str, Any] = {"sentences": work.sentences, "hint": hint, "mend": mend}
        prompt = prompts.ask("draft", work.query, work.history, documents, written, **details)
        return _text(await self._ask(report, prompt)), documents

    async def _validation(self, report: Report, task: Mapping[str, Any]) -> Validation:
        """Let the model and the rules look for issues; those of high severity reject."""
        work = self.work
        written = prompts.marked("draft", [work.draft])
        prompt = prompts.ask("validation", work.query, work.history, work.documents, written)
        verdict = prompts.read(Validation, await self._ask(report, prompt))
        if self.service.is_simulated:
            return verdict
        by_rules = await asyncio.to_thread(work.issues, self._is_about)
        issues = tuple(dict.fromkeys((*verdict.issues, *by_rules)))[:20]
        if not by_rules:
            return verdict.model_copy(update={"issues": issues})
        confidence = min(verdict.confidence, 0.5)
        return Validation(
            valid=False, confidence=confidence, issues=issues, suggested_action="regenerate"
        )

    async def _fallback(self, report: Report, task: Mapping[str, Any]) -> tuple[str, Any]:
        """Answer by basic retrieval; without a model in time by what the passages say.

        Its prompt has no earlier turns, which no cache may hold, but their system messages, and the
        question before if the query refers to it.
        """
        work = self.work
        result = await self._search(work.query, [work.asked], "vector", FALLBACK_DOCUMENTS)
        documents = result.documents
        try:
            left_s = task["limit_s"] - _QUOTING_S - (time.monotonic() - report.began_s)
            async with asyncio.timeout(self._real(left_s)):
                bound = [message for message in work.history if message["role"] == "system"]
                details: dict[str, Any] = {"sentences": SENTENCES["simple"], "hint": "", "mend": ""}
                prompt = prompts.ask("fallback", work.asked, bound, documents, **details)
                return _text(await self._ask(report, prompt, documents=documents)), documents
        except (TimeoutError, LLMError, BudgetError, prompts.GarbageError):
            if not self._is_about(work.asked, documents):
                return NOTHING_SAID, documents
        quotes = []
        for number, document in enumerate(documents, 1):
            text = document.text
            if len(text) > _EXTRACT_CHARS:
                text = text[:_EXTRACT_CHARS].rsplit(" ", 1)[0] + " …"
            quotes.append(f"{text} [{number}]")
        return "\n".join(quotes), documents

    async def _search(
        self, question: str, queries: Sequence[str], strategy: Strategy, top_k: int
    ) -> Retrieved:
        """Search in a thread of its own; passages that look like an injection are withheld."""
        kept, withheld = [], []
        for document in await asyncio.to_thread(self._searcher.retrieve, queries, strategy, top_k):
            if reason := screen(document.text, "document"):
                withheld.append((document.doc_id, reason))
                event = {"doc_id": document.doc_id, "reason": reason}
                self._log.append("passage_withheld", event)
            else:
                kept.append(document)
        # All but the vector search fuse two rankings: who leads both has 1/61 twice.
        best = 1.0 if strategy == "vector" else 2.0 / (RRF + 1.0)
        mean = sum(document.score for document in kept) / max(len(kept), 1)
        return Retrieved(
            sub_task=question,
            strategy=strategy,
            queries=tuple(queries),
            documents=tuple(kept),
            mean_score=min(max(mean / best, 0.0), 1.0),
            withheld=tuple(withheld),
        )

    async def _ask(self, report: Report, prompt: Prompt, **facts: Any) -> str:
        """Call the model for an agent, and count the call in its report."""
        agent = report.agent
        most, context = prompts.TASKS[agent].most_tokens, {"agent": agent, **facts}
        try:
            reply = await self.service.acall(
                prompt.system, prompt.user, WAY, most, prompt.schema, agent=agent, context=context
            )
        except (LLMError, asyncio.CancelledError) as error:
            if not isinstance(error, LLMError) or error.outcome in ("timeout", "connection"):
                report.input_tokens += self._lost_tokens(prompt.user)  # it was read, all the same
            raise
        report.input_tokens += reply.input_tokens
        report.output_tokens += reply.output_tokens
        report.latency_s += reply.latency_s
        return reply.content


def _text(answer: str) -> str:
    if not answer.strip():
        raise prompts.GarbageError("the answer is empty")
    return answer.strip()


def in_order(question: str, queries: list[str], proposals: list[str]) -> list[str]:
    """Return forms of a question, by rules and by a model, the best first.

    A model's come last if the first lacks more than half of the question's words: small models
    answer, or repeat what they were told.
    """
    asked = set(terms(question))
    keeps = proposals and 2 * len(asked & set(terms(proposals[0]))) >= len(asked)
    return [*proposals, *queries] if keeps else [*queries, *proposals]


class Faulty:
    """A provider whose calls for one task go wrong on purpose (`settings.check_fault`)."""

    def __init__(self, inner: Provider, fault: str) -> None:
        self._agent, _, self._kind = fault.partition(":")
        self.model, self.is_simulated, self._inner = inner.model, inner.is_simulated, inner

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
        answer = await self._inner.complete(request)
        return Completion("{\x00", answer.input_tokens, answer.output_tokens)

    async def aclose(self) -> None:
        """See `Provider`."""
        await self._inner.aclose()
