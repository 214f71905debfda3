"""The coordinator: a query in, an answer with its sources out.

coordinator = MultiAgentCoordinator(backend="simulated")
print(coordinator.process_query("What does chunked prefill change?").content)
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from inframind_gym.configs import validate
from inframind_gym.errors import require, require_within
from inframind_gym.teams.coordination.agents import (
    NO_SOURCE,
    NOT_ABOUT,
    WAY,
    Agents,
    Faulty,
    RuleAnswers,
    Work,
    complexity_of,
)
from inframind_gym.teams.coordination.check import is_about, is_abstention, screen
from inframind_gym.teams.coordination.prompts import ContextManager, cited, messages_of
from inframind_gym.teams.coordination.retrieval import Corpus, Retriever, refers_back, rewrite
from inframind_gym.teams.coordination.rules import REASONS
from inframind_gym.teams.coordination.session import Ask, Session
from inframind_gym.teams.coordination.settings import (
    MODEL,
    MOST_CONTEXT,
    AgentResponse,
    Document,
    Query,
    QuerySettings,
    load_settings,
)
from inframind_gym.teams.llm import (
    SIMULATED,
    Blocking,
    EventLog,
    LLMService,
    NoLog,
    Provider,
    open_provider,
)

VLLM_URL: Final = "http://127.0.0.1:8000/v1"  # unless $VLLM_BASE_URL says otherwise
NO_ANSWER: Final = "No answer could be found in time."
TOO_LONG: Final = "The conversation is longer than the context of the model."
REFUSED: Final = "This query was not processed: it looks like a prompt injection."
WITHHELD: Final = "[withheld]"  # in place of a turn that looks like a prompt injection
UNANSWERED: Final = ("refused", "stopped", "failed", "context")  # endings without an answer
# Of the answer's metadata, in its event.
_IN_EVENT: Final = (
    *("ended_by", "attribution", "validation", "failures", "withheld", "simulated", "calls"),
    *("input_tokens", "output_tokens", "context_tokens", "context_limit", "context_trimmed"),
)


class MultiAgentCoordinator(Blocking):
    """Five agents under a supervisor that answers before a deadline.

    Threads may share it, but its blocking method takes turns, and a query's time begins with its
    turn. Queries at the same time are for `aprocess_query`, all in one event loop.

    Args:
        model_path: Model, by its name on the server.
        max_context_length: Tokens of a conversation; the lengths of a trim scale with it.
        backend: "vllm" (a server that runs at $VLLM_BASE_URL), "simulated", "openai", "anthropic",
            or the base URL of an OpenAI-compatible server.
        provider: Way to the model in place of `backend`.
        searcher: Way to documents; None: the `corpus`.
        corpus: Passages; None: those of the package.
        log: Where decisions, calls and failures are written; None: nowhere.
        ask: Asks a person whether to go on, where the settings of a query interrupt it.

    Attributes:
        context: Manager of conversations.

    Raises:
        ConfigError: A length, the backend or the model is wrong, or a key is missing.
    """

    def __init__(
        self,
        model_path: str = MODEL,
        max_context_length: int = 128_000,
        backend: str = "vllm",
        *,
        provider: Provider | None = None,
        searcher: Retriever | None = None,
        corpus: Corpus | None = None,
        log: EventLog | None = None,
        ask: Ask | None = None,
    ) -> None:
        super().__init__()
        require_within(max_context_length, 1024, MOST_CONTEXT, "max_context_length (tokens)")
        self.is_simulated = provider is None and backend == SIMULATED
        self.settings = load_settings().within_context(max_context_length)
        self.context = ContextManager(self.settings.context)
        self._corpus = corpus or (Corpus.load() if searcher is None else Corpus("", ()))
        self.searcher = searcher or Retriever(self._corpus)
        self._log: EventLog = log or NoLog()
        self._ask, self.provider = ask, provider
        if not self.is_simulated and provider is None:
            vendor = backend in ("openai", "anthropic") and model_path == MODEL
            way = os.environ.get("VLLM_BASE_URL", VLLM_URL) if backend == "vllm" else backend
            self.provider = open_provider(way, None if vendor else model_path)

    def warm_up(self) -> None:
        """Load and build what is built once: indexes, word lists, LangGraph."""
        for strategy in ("vector", "graphrag"):
            self.searcher.retrieve("warm up", strategy, 1)
        self.rewrite("warm up")
        require("langgraph.graph", "the coordination team", "teams")

    def process_query(
        self,
        query: str,
        context: Sequence[Any] | Any = None,
        settings: QuerySettings | Mapping[str, Any] | None = None,
    ) -> AgentResponse:
        """Answer a query and wait for it, see `aprocess_query`; not from inside an event loop."""
        return self.run(self.aprocess_query, query, context, settings)

    async def aprocess_query(
        self,
        query: str,
        context: Sequence[Any] | Any = None,
        settings: QuerySettings | Mapping[str, Any] | None = None,
    ) -> AgentResponse:
        """Answer a query.

        Whatever agents do, an answer comes by the hard deadline: in the worst case what basic
        retrieval finds, or that nothing was found.

        Args:
            query: Question of 1 to 4,096 characters.
            context: Earlier messages (mappings with role and content, messages of LangChain), or a
                chat memory with a method `get`.
            settings: Settings of the query.

        Raises:
            ConfigError: The query, a message or a setting is wrong.
        """
        began_s = time.monotonic()
        query = validate({"query": query}, Query, source="query").query
        messages, options = messages_of(context), settings
        if not isinstance(options, QuerySettings):
            options = validate(options or {}, QuerySettings, source="settings")
        if reason := screen(query):
            self._log.append("query_refused", {"reason": reason})
            refusal = {"ended_by": "refused", "reason": reason, "simulated": self.is_simulated}
            return AgentResponse(
                content=REFUSED,
                sources=(),
                metadata={**refusal, "decisions": [], "failures": []},
                validation_score=0.0,
                processing_time=0.0,
            )
        work = Work(query)
        for number, message in enumerate(messages, 1):
            # Models and tools may pass on what a document said; system messages are instructions.
            role, turn = message["role"], f"turn {number}"
            reason = screen(message["content"], "query" if role == "user" else "document")
            if reason and role != "system":
                work.withheld = (*work.withheld, (turn, reason))
                self._log.append("turn_withheld", {"turn": turn, "reason": reason})
                message = {**message, "content": WITHHELD}
            work.history.append(message)
        constants = self.settings.of_query(options, slow=not self.is_simulated)
        provider = self.provider or RuleAnswers(work, constants, self.is_about)
        if options.fault is not None:
            provider = Faulty(provider, options.fault)
        agents = Agents(
            LLMService(
                {WAY: provider},
                log=self._log,
                max_retries=options.retry.max_retries,
                timeout_s=options.retry.timeout_seconds,
            ),
            self.searcher.retrieve,
            work,
            self.rewrite,
            self.is_about,
            self._log,
            model_queries=options.rewrite == "model",
        )
        hint, refers = complexity_of(query), bool(work.history) and refers_back(query)
        session = Session(constants, options, agents, hint, refers, self._ask)
        session.began_s = began_s
        await session.play()
        response = self._response(session)
        event = response.model_dump(include={"content", "validation_score", "processing_time"})
        event |= {key: response.metadata[key] for key in _IN_EVENT}
        event["sources"] = [document.doc_id for document in response.sources]
        event["documents"] = [document.model_dump() for document in response.sources]
        self._log.append("answer", {**event, "handoffs": session.handoffs})
        return response

    def rewrite(self, query: str) -> list[str]:
        """Return the forms of a query that retrieval searches for, by rules."""
        return rewrite(query, self._corpus)

    def is_about(self, query: str, documents: Sequence[Document]) -> bool:
        """Return True if one of some passages is about a query, see `check.is_about`."""
        return is_about(self.rewrite(query)[0], documents, self.searcher.nearness(query))

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        if self.provider is not None:
            await self.provider.aclose()

    def _response(self, session: Session) -> AgentResponse:
        """Return the answer of a session that has ended."""
        work, state, options = session.work, session.state, session.options
        ended_by = session.ended or REASONS[int(state.reason[0])]
        if not work.draft and ended_by not in UNANSWERED:  # the fallback itself failed
            ended_by = "failed"
        content, verdict = TOO_LONG if ended_by == "context" else NO_ANSWER, work.validation
        sources, attribution = work.documents[:0], "none"
        if verdict is not None and any(i.description == NOT_ABOUT for i in verdict.issues):
            content = NO_SOURCE  # told twice, it still answers
        elif work.draft and ended_by not in UNANSWERED:
            is_empty = is_abstention(work.query, work.draft)
            given = () if is_empty else work.documents  # nothing is said of which one is a source
            content, sources = cited(work.draft, given)
            attribution = "cited" if sources else "none"
            if not sources and given:  # the writer had them and named none
                sources, attribution = given, "given"
        score = 0.0
        if verdict is not None and state.judged[0]:  # how sure it is that the answer is valid
            score = verdict.confidence
            score = score if verdict.valid else min(score, 1.0 - score)
        overheads, cost = session.overheads_ms or [0.0], session.agents.service.get_cost_summary()
        agents = {"route": work.route, "plan": work.plan, "validation": work.validation}
        passages = [pair for result in work.found for pair in result.withheld]
        metadata = {
            "ended_by": ended_by,
            "attribution": attribution,
            **{k: None if v is None else v.model_dump(mode="json") for k, v in agents.items()},
            "decisions": session.decisions,
            "failures": session.failures,
            "queries": [list(result.queries) for result in work.found],
            "withheld": [list(pair) for pair in (*work.withheld, *passages)],
            "missing": list(work.missing),
            "simulated": session.agents.service.is_simulated,
            "iterations": int(state.iteration[0]),
            **{k: cost[k] for k in ("calls", "input_tokens", "output_tokens", "cost_usd")},
            "overhead_ms_median": median(overheads),
            "overhead_ms_max": max(overheads),
            "model_ms": int(state.model_ms[0]),
            "parallel": int(state.widest[0]),
            "context_tokens": int(state.context[0]),
            "context_limit": self.context.limits.max_tokens,
            "context_trimmed": bool(state.trimmed[0]),
            "history_messages": len(work.history),
            "history_tokens": self.context.estimate_tokens(work.history),
            "handoffs": len(session.handoffs),
        }
        if options.output_mode == "full_history":
            metadata["messages"] = session.handoffs
        elif options.output_mode == "structured":
            seen = {
                "output_mode": "structured",
                "response": content,
                "messages": [*work.history, {"role": "user", "content": work.query}],
                "context_trimmed": bool(state.trimmed[0]),
                "parallel_tool_calls": int(state.widest[0]) > 1,
            }
            metadata["structured"] = self.context.post_model_hook(seen)
        return AgentResponse(
            content=content,
            sources=sources,
            metadata=metadata,
            validation_score=score,
            processing_time=session.now_ms / 1000.0,
            history=tuple(map(dict, work.history)),
        )


__all__ = ["AgentResponse", "Document", "MultiAgentCoordinator", "QuerySettings"]
