"""Agents at work: each takes a task, calls a model or searches, and hands its result back.

An agent knows its task and the product so far, so those that are sent out together run at the same
time. Whatever goes wrong comes back as its failure. `RuleAnswers` stands in for a model.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice, zip_longest
from textwrap import shorten
from typing import Any, Final

import numpy as np

from inframind_gym.errors import InfraMindError, shortened
from inframind_gym.teams import llm
from inframind_gym.teams.coordination import prompts, retrieval, rules
from inframind_gym.teams.coordination.check import find_issues, is_about, is_abstention, screen
from inframind_gym.teams.coordination.prompts import ContextManager, GarbageError, Trimmed
from inframind_gym.teams.coordination.retrieval import Retriever
from inframind_gym.teams.coordination.rules import Outcome
from inframind_gym.teams.coordination.settings import (
    COMPLEXITIES,
    ISSUES,
    SEVERITIES,
    STRATEGIES,
    CoordinationSettings,
    Document,
    Issue,
    Plan,
    Retrieved,
    Route,
    Strategy,
    Synthesis,
    Validation,
)

WAY: Final = "team"  # name of the provider in the service
AGENT_OF: Final = {"draft": "synthesis"}  # who does a task, where its name is another
FALLBACK_DOCUMENTS: Final = 3
SENTENCES: Final = {"simple": 2, "medium": 2, "complex": 3}  # of an answer
MOST_USEFUL: Final = 5  # sources that the writer is pointed to
MOST_QUERIES: Final = 4  # forms of a question that are searched for
NOTHING_SAID: Final = "The texts say nothing about this."
NO_SOURCE: Final = "The sources do not answer this."
NOT_ABOUT: Final = "no source is about the question: say that the sources do not answer it"
QUOTING_S: Final = 0.05  # of the fallback's limit, to quote passages where the model is late
EXTRACT_CHARS: Final = 300  # of a passage in an answer that no model wrote


@dataclass(slots=True)
class Task:
    """Work of an agent, and its result."""

    agent: str  # a key of `prompts.INSTRUCTIONS`, or a tool
    question: str = ""  # of a search
    strategy: Strategy = "vector"
    top_k: int = 0  # documents of a search
    mend: bool = False  # the draft that there is, and not a new one
    room: int = 0  # tokens that a trim leaves to the conversation
    limit_s: float = 0.0  # it has failed after this
    failure: str = ""  # or one of timeout, garbage, error
    message: str = ""  # what went wrong
    value: Any = None  # result; None after a failure
    input_tokens: int = 0  # of its calls that were answered
    output_tokens: int = 0
    latency_s: float = 0.0  # of its calls; virtual where they are simulated
    began_s: float = 0.0
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
        return retrieval.in_context(self.query, self.history)

    def merged(self) -> tuple[list[Document], int]:
        """Return the documents of searches in turn, each once, ten at most; number of copies."""
        turns = zip_longest(*(result.documents for result in self.found))
        in_turn = [document for document in chain.from_iterable(turns) if document is not None]
        once: dict[str, Document] = {}
        for document in in_turn:
            once.setdefault(document.doc_id, document)
        return list(once.values())[:10], len(in_turn) - len(once)

    def issues(self, searcher: Retriever) -> tuple[Issue, ...]:
        """Return what rules find wrong with the draft, 20 at most, each of high severity."""
        abstains = is_abstention(self.query, self.draft)
        if not abstains and not _is_about(self.asked, self.documents, searcher):
            return (Issue(type="missing_source", severity="high", description=NOT_ABOUT),)
        return tuple(find_issues(self.query, self.draft, self.documents))[:20]

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Store a result, add its facts to the outcome, and drop results that it makes obsolete.

        The score of the outcome is the sum of those of its searches.
        """
        match task.value:
            case None:
                if task.agent == "fallback":
                    self.draft, self.documents = "", ()
            case Route() as route:
                self.route = route
                outcome.strategy[0] = STRATEGIES.index(route.strategy)
                outcome.complexity[0] = COMPLEXITIES.index(route.complexity)
                outcome.needs_planning[0] = route.needs_planning
                outcome.confidence[0] = route.confidence
            case Plan() as plan:
                self.plan, self.pending = plan, list(plan.sub_tasks)
                outcome.subtasks[0] = len(plan.sub_tasks)
            case Retrieved() as result:
                known = {document.doc_id for each in self.found for document in each.documents}
                names = [document.doc_id for document in result.documents]
                outcome.answered[0] += 1
                outcome.score[0] += result.mean_score
                outcome.docs[0] += len(names)
                outcome.duplicates[0] += sum(name in known for name in names)
                outcome.context[0] += _tokens_of(result.documents)
                self.found.append(result)
                if result.sub_task in self.pending:
                    self.pending.remove(result.sub_task)
                self.draft, self.validation, self.ranked = "", None, ()
            case Synthesis() as merged:
                self.ranked = merged.documents
                self.missing = tuple(merged.synthesis_metadata["missing"])
            case Validation() as verdict:
                self.validation = verdict
                outcome.judged[0], outcome.valid[0] = True, verdict.valid
                outcome.verdict[0] = verdict.confidence
                for issue in verdict.issues:
                    outcome.issues[0, ISSUES.index(issue.type)] += 1
                    grade = 1 + SEVERITIES.index(issue.severity)
                    outcome.severity[0] = max(outcome.severity[0], grade)
            case Trimmed() as trimmed:
                self.history = trimmed.messages
                outcome.context[0] += trimmed.tokens_after - trimmed.tokens_before
            case "rewrite":
                self.is_rewritten = True
            case (draft, documents):
                (self.draft, self.documents), self.validation = (draft, documents), None
                is_fallback = task.agent == "fallback"
                outcome.drafted[0] = not is_fallback
                outcome.context[0] += _tokens_of(documents) if is_fallback else 0


def _tokens_of(documents: Sequence[Document]) -> int:
    return sum(llm.estimate_tokens(document.text) for document in documents)


def _is_about(question: str, documents: Sequence[Document], searcher: Retriever) -> bool:
    """Return True if one of some passages is about a question, see `check.is_about`."""
    corrected = retrieval.rewrite(question, searcher.corpus)[0]
    return is_about(corrected, documents, searcher.nearness(question))


@dataclass
class Agents:
    """The five agents, and the basic retrieval that answers where they fail."""

    service: llm.LLMService  # way to the model, under the name `WAY`
    searcher: Retriever
    work: Work  # product so far; agents read it
    log: llm.EventLog  # where passages that are withheld are written
    context: ContextManager
    model_queries: bool = True  # the retrieval agent lets the model write what it searches for
    lost_tokens: Callable[[str], int] = llm.estimate_tokens  # of a prompt whose answer never came

    async def perform(self, task: Task) -> None:
        """Carry out a task; it has failed after its `limit_s`."""
        task.began_s = time.monotonic()
        try:
            async with asyncio.timeout(None if self.service.is_simulated else task.limit_s):
                task.value = await getattr(self, f"_{task.agent}")(task)
        except TimeoutError:
            task.failure, task.message = "timeout", f"no result within {task.limit_s:.2f} s"
        except GarbageError as error:
            task.failure, task.message = "garbage", str(error)
        except InfraMindError as error:
            late = isinstance(error, llm.LLMError) and error.outcome == "timeout"
            task.failure, task.message = "timeout" if late else "error", str(error)
        except Exception as error:  # of a searcher or a provider that is not ours
            task.failure, task.message = "error", f"{type(error).__name__}: {error}"
        task.message, task.ended_s = shortened(task.message, 300), time.monotonic()

    async def _rewrite(self, task: Task) -> str:
        return "rewrite"  # questions are rewritten from now on

    async def _trim(self, task: Task) -> Trimmed:
        return self.context.trim(self.work.history, task.room)

    async def _router(self, task: Task) -> Route:
        return prompts.read(Route, llm.json_object(await self._ask(task, self.work.query)))

    async def _planner(self, task: Task) -> Plan:
        answer = llm.json_object(await self._ask(task, self.work.query))
        tasks = prompts.texts(answer.get("sub_tasks"))[: prompts.MOST_SUB_TASKS]
        short = [" ".join(each.split())[:400] for each in tasks]
        return prompts.read(Plan, answer | {"original_query": self.work.query, "sub_tasks": short})

    async def _retrieval(self, task: Task) -> Retrieved:
        """Search for one sub-task, by the words of the model, else of the rules, else its own."""
        question, work = task.question, self.work
        queries = [retrieval.in_context(question, work.history)]
        if work.is_rewritten:
            queries = [*retrieval.rewrite(queries[0], self.searcher.corpus), *queries]
        if self.model_queries:
            before = work.merged()[0] if work.is_sequential else ()
            answer = llm.json_object(await self._ask(task, question, before))
            variants = prompts.texts(answer.get("variants"))
            proposals = prompts.texts([answer.get("refined")]) + variants
            if not proposals:
                raise GarbageError(f"no queries in {answer!r:.200}")
            asked, kept = (set(retrieval.terms(each)) for each in (question, proposals[0]))
            # Small models answer, or repeat what they were told: such forms come last.
            keeps = 2 * len(asked & kept) >= len(asked)
            proposals = list(dict.fromkeys(proposals))[:3]
            queries = [*proposals, *queries] if keeps else [*queries, *proposals]
        return await self._search(task, list(dict.fromkeys(queries))[:MOST_QUERIES])

    async def _synthesis(self, task: Task) -> Synthesis:
        """Bring the documents of all sub-tasks into one list, the most useful first."""
        work = self.work
        documents, duplicates = work.merged()
        notes = prompts.marked("note", (f"{n}. {each}" for n, each in enumerate(work.sub_tasks, 1)))
        answer = llm.json_object(await self._ask(task, work.query, documents, notes))
        if not isinstance(answer.get("order"), list):
            raise GarbageError(f"no order in {answer!r:.200}")
        # What the answer leaves out comes last, so that nothing that was found is lost.
        order = [*prompts.places(answer["order"], len(documents)), *range(len(documents))]
        missing = sorted({*prompts.places(answer.get("missing"), len(work.sub_tasks))})
        return Synthesis(
            documents=tuple(documents[i] for i in dict.fromkeys(order)),
            synthesis_metadata={
                "duplicates": duplicates,
                "missing": [work.sub_tasks[i] for i in missing],
            },
        )

    async def _draft(self, task: Task) -> tuple[str, Any]:
        """Write an answer, or mend one; returns text and sources."""
        work, documents = self.work, tuple(self.work.merged()[0])
        useful = ", ".join(str(documents.index(each) + 1) for each in work.ranked[:MOST_USEFUL])
        written = mend = ""
        if task.mend and work.draft:
            issues = work.validation.issues if work.validation is not None else ()
            notes = [f"{issue.type}: {issue.description}" for issue in issues]
            written = prompts.marked("draft", [work.draft]) + prompts.marked("note", notes)
            what = "what the notes say" if issues else "how it says it"
            mend = f" Return the draft with {what} mended."
        extra = (f" Most useful sources: {useful}." if useful else "") + mend
        most = work.sentences
        text = await self._ask(task, work.query, documents, written, sentences=most, extra=extra)
        return text, documents

    async def _validation(self, task: Task) -> Validation:
        """Let the model and the rules look for issues; those of high severity reject."""
        work = self.work
        written = prompts.marked("draft", [work.draft])
        answer = await self._ask(task, work.query, work.documents, written)
        verdict = prompts.read(Validation, llm.json_object(answer))
        if self.service.is_simulated:
            return verdict
        by_rules = await asyncio.to_thread(work.issues, self.searcher)
        issues = tuple(dict.fromkeys((*verdict.issues, *by_rules)))[:20]  # models repeat theirs
        changed: dict[str, Any] = {"issues": issues}
        if by_rules:
            changed |= {"valid": False, "confidence": min(verdict.confidence, 0.5)}
            changed |= {"suggested_action": "regenerate"}
        return verdict.model_copy(update=changed)

    async def _fallback(self, task: Task) -> tuple[str, Any]:
        """Answer by basic retrieval; without a model in time by what the passages say."""
        work = self.work
        task.question, task.top_k = work.query, FALLBACK_DOCUMENTS
        documents = (await self._search(task, [work.asked])).documents
        try:
            left_s = task.limit_s - QUOTING_S - (time.monotonic() - task.began_s)
            async with asyncio.timeout(None if self.service.is_simulated else left_s):
                most = SENTENCES["simple"]
                text = await self._ask(task, work.asked, documents, sentences=most, extra="")
                return text, documents
        except (TimeoutError, llm.LLMError, llm.BudgetError, GarbageError):
            if not _is_about(work.asked, documents, self.searcher):
                return NOTHING_SAID, documents
        quotes = (shorten(document.text, EXTRACT_CHARS, placeholder=" …") for document in documents)
        return "\n".join(f"{quote} [{n}]" for n, quote in enumerate(quotes, 1)), documents

    async def _search(self, task: Task, queries: Sequence[str]) -> Retrieved:
        """Search in a thread of its own; passages that look like an injection are withheld."""
        kept, withheld, options = [], [], (task.strategy, task.top_k)
        for document in await asyncio.to_thread(self.searcher.retrieve, queries, *options):
            if reason := screen(document.text, "document"):
                withheld.append((document.doc_id, reason))
                self.log.append("passage_withheld", {"doc_id": document.doc_id, "reason": reason})
            else:
                kept.append(document)
        # Other strategies than "vector" fuse two rankings: the first of both has the best score.
        best = 1.0 if task.strategy == "vector" else 2.0 / (retrieval.RRF + 1.0)
        mean = sum(document.score for document in kept) / max(len(kept), 1)
        return Retrieved(
            sub_task=task.question,
            strategy=task.strategy,
            queries=tuple(queries),
            documents=tuple(kept),
            mean_score=min(max(mean / best, 0.0), 1.0),
            withheld=tuple(withheld),
        )

    async def _ask(
        self,
        task: Task,
        query: str,
        documents: Sequence[Document] = (),
        written: str = "",
        **details: Any,
    ) -> str:
        """Call the model for an agent, and count the call in its task; see `prompts.ask`."""
        agent, history = task.agent, self.work.history
        if agent == "fallback":  # no earlier turns, which no cache may hold, but what binds it
            history = [message for message in history if message["role"] == "system"]
        prompt = prompts.ask(agent, query, history, documents, written, **details)
        most_tokens = prompts.INSTRUCTIONS[agent].most_tokens
        request = prompt.system, prompt.user, WAY, most_tokens, prompt.schema
        context = {"agent": agent, "question": query, "documents": documents}
        try:
            reply = await self.service.acall(*request, agent=agent, context=context)
        except (llm.LLMError, asyncio.CancelledError) as error:
            if not isinstance(error, llm.LLMError) or error.outcome in ("timeout", "connection"):
                task.input_tokens += self.lost_tokens(prompt.user)  # it was read, all the same
            raise
        task.input_tokens += reply.input_tokens
        task.output_tokens += reply.output_tokens
        task.latency_s += reply.latency_s
        if not reply.content.strip():
            raise GarbageError("the answer is empty")
        return reply.content.strip()


class Faulty(llm.Provider):
    """A provider whose calls for one task go wrong on purpose, such as "planner:timeout"."""

    def __init__(self, inner: llm.Provider, fault: str) -> None:
        self._agent, _, self._kind = fault.partition(":")
        self.model, self.is_simulated, self._inner = inner.model, inner.is_simulated, inner

    async def complete(self, request: llm.LLMRequest) -> llm.LLMResponse:
        """See `Provider`."""
        if request.context.get("agent") != self._agent:
            return await self._inner.complete(request)
        if self._kind == "timeout":
            if not self.is_simulated:  # where time is virtual the clock knows the limit
                await asyncio.sleep(3600.0)
            raise llm.LLMError("timeout", "no answer", "unknown")
        if self._kind == "error":
            raise llm.LLMError("http_500", "internal error")
        return replace(await self._inner.complete(request), content="{\x00")


# Answers without a model: router and planner go by the words of the question, the writer quotes the
# sentences that share most words with it, the validator checks by rules.

_COMPARE: Final = re.compile(
    r"\b(?:compar\w+|contrast|versus|vs\.?|differ\w*|trade-?offs?|pros and cons)\b", re.I
)
_RELATION: Final = re.compile(
    r"\b(?:relat\w+|connect\w*|depend\w*|affects?|influence\w*|interact\w*|leads? to|between|"
    r"consequences?)\b",
    re.I,
)
_WHY: Final = re.compile(r"\b(?:why|how|explain|describe|reasons?|steps)\b", re.I)
_EXACT: Final = re.compile(r"\"[^\"]+\"|`[^`]+`|\b\w*[_\d]\w*\b|(?<!\w)--\w+")
# Where a question goes on with another one.
_CLAUSE: Final = re.compile(
    r"\?\s+|;\s*|,?\s+and\s+(?=(?:explain|describe|say|tell|how|why|what|when|which|who|where|give|"
    r"name|list|compare)\b)|,\s+(?:then|also)\s+",
    re.I,
)
_PAIR: Final = re.compile(
    r"^(?:please\s+)?(?:(?:compare|contrast)\s+|what (?:is|are) the differences? between\s+|"
    r"(?:what )?differences? between\s+|how do(?:es)?\s+)?(?P<head>.*?\b(?:of|for|in|between)\s+)?"
    r"(?P<one>[\w./-]+(?:\s[\w./-]+){0,3}?)\s+(?:vs\.?|versus|with|and|to|or|from)\s+"
    r"(?P<two>[\w./-]+(?:\s[\w./-]+){0,3}?)(?P<tail>\s[\w\s./-]*)?$",
    re.I,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(])")
_GOES_ON: Final = ("That ", "This ", "It ", "They ", "Such ", "So ")  # from the sentence before


def complexity_of(query: str) -> int:
    """Return a place in COMPLEXITIES: comparisons and several questions are complex."""
    words = len(query.split())
    if _COMPARE.search(query) or len(_clauses(query)) > 1 or words > 35:
        return 2
    return 1 if _WHY.search(query) or _RELATION.search(query) or words > 14 else 0


def _parts(query: str) -> list[str]:
    """Return the parts of a query: one for each question, two for a comparison."""
    tasks: list[str] = []
    for clause in _clauses(query):
        pair = _PAIR.match(clause.rstrip("?. ")) if _COMPARE.search(clause) else None
        if pair is None:
            named = f"{clause.rstrip('?. ')}: {', '.join(tasks)}" if tasks else clause
            tasks.append(named if retrieval.refers_back(clause) else clause)
            continue
        head, tail = (pair["head"] or "").strip(), (pair["tail"] or "").strip()
        for side in pair.group("one", "two"):
            ends = "" if side.lower().endswith(tail.lower()) else tail
            tasks.append(" ".join(filter(None, (head, side, ends))))
    return list(dict.fromkeys(tasks))[: prompts.MOST_SUB_TASKS]


def _clauses(query: str) -> list[str]:
    return [part.strip() for part in _CLAUSE.split(query) if part.strip(" ?.")] or [query]


class RuleAnswers(llm.Provider):
    """Answers to one query by rules, from the product of the team, at the rates of its server."""

    model = "simulated-team"
    is_simulated = True

    def __init__(self, work: Work, settings: CoordinationSettings, searcher: Retriever) -> None:
        self._work, self._settings, self._searcher = work, settings, searcher
        # Prompts whose prefixes the server keeps; it has read the conversation before.
        self._read = [prompts.earlier(work.history)]

    async def complete(self, request: llm.LLMRequest) -> llm.LLMResponse:
        """See `Provider`."""
        text, user = self._answer(request.context), request.user

        def is_new(length: int) -> bool:  # a beginning that the server has not read
            return not any(old.startswith(user[:length]) for old in self._read)

        cached = bisect_left(range(1, len(user) + 1), True, key=is_new)
        self._read.append(user)
        prompt, made = llm.estimate_tokens(user[cached:]), llm.estimate_tokens(text)
        seconds = float(rules.call_s(prompt, made, self._settings.server))
        return llm.LLMResponse(text, prompt, made, "stop", seconds)

    def _answer(self, context: Mapping[str, Any]) -> str:
        """Return the answer of the agent that asks."""
        work, complexity = self._work, complexity_of(self._work.query)
        match context["agent"]:
            case "router":
                strategy: Strategy = "hybrid" if complexity == 2 else "vector"
                if _RELATION.search(work.query) and complexity > 0:
                    strategy = "graphrag"
                elif _EXACT.search(work.query):
                    strategy = "hybrid"
                return Route(
                    strategy=strategy,
                    complexity=COMPLEXITIES[complexity],
                    needs_planning=complexity == 2,
                    confidence=0.8 if complexity != 1 else 0.6,
                ).model_dump_json()
            case "planner":
                return Plan(
                    original_query=work.query,
                    sub_tasks=tuple(task[:400] for task in _parts(work.query)),
                    execution_order="parallel",
                    estimated_complexity=("low", "medium", "high")[complexity],
                ).model_dump_json(exclude={"original_query"})
            case "retrieval":
                return json.dumps({"refined": str(context["question"]), "variants": []})
            case "synthesis":
                asked, documents = set(retrieval.terms(work.asked)), work.merged()[0]
                shared = [asked & set(retrieval.terms(each.text)) for each in documents]
                order = sorted(range(len(documents)), key=lambda i: (-len(shared[i]), i))
                empty = [i for i, result in enumerate(work.found, 1) if not result.documents]
                return json.dumps({"order": [i + 1 for i in order], "missing": empty})
            case "draft":
                questions = [retrieval.in_context(task, work.history) for task in work.sub_tasks]
                return self._quote(questions, work.merged()[0], work.sentences)
            case "fallback":
                return self._quote([work.asked], context["documents"], SENTENCES["simple"])
        issues = work.issues(self._searcher)
        return Validation(
            valid=not issues,
            confidence=0.9 - 0.1 * min(len(issues), 5),
            issues=issues,
            suggested_action="regenerate" if issues else "accept",
        ).model_dump_json()

    def _quote(self, questions: Sequence[str], documents: Sequence[Document], most: int) -> str:
        """Return sentences that share most words with the questions, of each in turn, numbered."""
        if not _is_about(self._work.asked, documents, self._searcher):
            return NO_SOURCE
        pool = [
            (number, sentence, set(retrieval.terms(sentence)))
            for number, document in enumerate(documents, 1)
            for sentence in _SENTENCE.split(document.text)
            if len(sentence.split()) > 3 and not sentence.startswith(_GOES_ON)
        ]
        quoted: list[str] = []
        asked = [set(retrieval.terms(question)) for question in questions]
        for wanted in islice(cycle(asked), most):
            # Long sentences and later documents are worth less.
            worth = [len(wanted & own) / (4 + len(own)) ** 0.5 - 0.02 * n for n, _, own in pool]
            if not worth or not pool[best := int(np.argmax(worth))][2] & wanted:
                continue
            number, sentence, _ = pool.pop(best)
            text, end = (sentence[:-1], sentence[-1]) if sentence[-1] in ".!?" else (sentence, ".")
            quoted.append(f"{text} [{number}]{end}")
        return " ".join(quoted) or NO_SOURCE
