"""The coordinator: a query in, an answer with its sources out.

    coordinator = MultiAgentCoordinator(backend="simulated")
    print(coordinator.process_query("What does chunked prefill change?").content)
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from inframind_gym.configs import validate
from inframind_gym.envs.coordination.context import CoordinationSpec, contexts
from inframind_gym.envs.coordination.observation import observe
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.policies.coordination import registry
from inframind_gym.teams.coordination import lexical
from inframind_gym.teams.coordination.agents import cited
from inframind_gym.teams.coordination.context import ContextLimits, ContextManager, role_of
from inframind_gym.teams.coordination.contracts import AgentResponse, Document
from inframind_gym.teams.coordination.graph import Ask, play
from inframind_gym.teams.coordination.grounding import find_issues
from inframind_gym.teams.coordination.options import MODEL, MOST_QUERY_CHARS, QuerySettings
from inframind_gym.teams.coordination.retrieval import Corpus, Retriever, rewrite
from inframind_gym.teams.coordination.screen import screen
from inframind_gym.teams.coordination.session import Session, WallClock
from inframind_gym.teams.coordination.settings import CoordinationSettings, load_settings
from inframind_gym.teams.coordination.simulated import RuleAnswers, VirtualClock
from inframind_gym.teams.coordination.state import REASONS, CoordinationState
from inframind_gym.teams.coordination.workers import WAY, Searcher, Work, Workers
from inframind_gym.teams.llm.providers import SIMULATED, open_provider
from inframind_gym.teams.llm.service import EventLog, LLMService, Retries
from inframind_gym.teams.llm.types import Provider

VLLM_URL: Final = "http://127.0.0.1:8000/v1"  # unless $VLLM_BASE_URL says otherwise
MOST_CONTEXT: Final = 131_072
NO_ANSWER: Final = "No answer could be found in time."
REFUSED: Final = "This query was not processed: it looks like a prompt injection."
_ROW: Final = np.zeros(1, np.int64)
_ENDINGS: Final = {"": "stopped", "context": "context overflow"}


class _NoLog:
    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        return 0


class MultiAgentCoordinator:
    """Five agents under a supervisor that answers before a deadline.

    Args:
        model_path: Model, by its name on the server.
        max_context_length: Tokens of a conversation; the lengths of a trim scale with it.
        backend: "vllm" (a server that runs at $VLLM_BASE_URL), "simulated", "openai", "anthropic",
            or the base URL of an OpenAI-compatible server.
        provider: Way to the model in place of `backend`.
        searcher: Way to documents; None: the `corpus`.
        corpus: Passages; None: those of the package.
        team: Constants of the team.
        max_num_seqs: Calls that the server carries out at once; None: the team's.
        log: Where decisions, calls and failures are written; None: nowhere.
        ask: Asks a person where the settings of a query interrupt it.
        seed: Of policies that draw.

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
        searcher: Searcher | None = None,
        corpus: Corpus | None = None,
        team: CoordinationSettings | None = None,
        max_num_seqs: int | None = None,
        log: EventLog | None = None,
        ask: Ask | None = None,
        seed: int = 0,
    ) -> None:
        if not 1024 <= max_context_length <= MOST_CONTEXT:
            raise ConfigError(
                f"max_context_length is {max_context_length:,}; the model takes 1,024 to "
                f"{MOST_CONTEXT:,} tokens"
            )
        self.model_path, self.max_context_length, self.backend = (
            model_path,
            max_context_length,
            backend,
        )
        self.is_simulated = provider is None and backend == SIMULATED
        self.settings = _within_context(team or load_settings(), max_context_length)
        self.context = ContextManager(self.settings.context)
        self._corpus = corpus or (Corpus.load() if searcher is None else Corpus("", ()))
        self.searcher: Searcher = searcher or Retriever(self._corpus)
        self._log: EventLog = log or _NoLog()
        self._ask, self._seed = ask, seed
        self._max_num_seqs = max_num_seqs or self.settings.server.max_num_seqs
        self._provider = provider
        if not self.is_simulated and provider is None:
            self._provider = _open(backend, model_path)
        self._services: list[LLMService] = []
        self._runner: asyncio.Runner | None = None

    def warm_up(self) -> None:
        """Build the indexes of retrieval, which is none of a query's business."""
        for strategy in ("vector", "graphrag"):
            self.searcher.retrieve("warm up", strategy, 1)

    def process_query(
        self,
        query: str,
        context: Sequence[Any] | Any = None,
        settings: QuerySettings | Mapping[str, Any] | None = None,
    ) -> AgentResponse:
        """Answer a query and wait for it, see `aprocess_query`.

        Raises:
            InfraMindError: An event loop runs in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InfraMindError("an event loop runs here: use `await aprocess_query(...)`.")
        if self._runner is None:  # it lives on: connections of the provider belong to it
            self._runner = asyncio.Runner()
        return self._runner.run(self.aprocess_query(query, context, settings))

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
        query, history, options = _query(query), _messages(context), _options(settings)
        found = screen(query)
        if found.is_attack:
            self._log.append("query_refused", {"reason": found.reason})
            return AgentResponse(
                content=REFUSED,
                sources=(),
                metadata={"ended_by": "refused", "reason": found.reason},
                validation_score=0.0,
                processing_time=0.0,
            )
        began_s = time.monotonic()
        session = self._session(query, history, options)
        asks = (options.interrupt_before, options.interrupt_after)
        handoffs = await play(session, *asks, self._pausing(session))
        response = self._response(session, options, handoffs, time.monotonic() - began_s)
        self._log.append(
            "answer",
            {
                "content": response.content,
                "sources": [document.doc_id for document in response.sources],
                "validation_score": response.validation_score,
                "processing_time_s": response.processing_time,
                "handoffs": handoffs,
            },
        )
        return response

    def close(self) -> None:
        """Close connections."""
        if self._runner is not None:
            self._runner.run(self.aclose())
            self._runner.close()
            self._runner = None

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        for service in self._services[:1]:
            await service.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # One query

    def _session(self, query: str, history: list[Any], options: QuerySettings) -> Session:
        settings = _adapted(self.settings, options)
        work = Work(query, history)
        rules_of_answers = RuleAnswers(work, settings, find_issues)
        provider = self._provider or rules_of_answers.provider()
        retry = options.retry
        service = LLMService(
            {WAY: provider},
            log=self._log,
            retries=Retries(
                retry.max_retries + 1,
                settings.limits.backoff_s,
                timeout_s=retry.timeout_seconds,
                factor=retry.backoff_factor,
            ),
        )
        self._services = [service]
        workers = Workers(
            service,
            self.searcher,
            work,
            rewrite=partial(rewrite, corpus=self._corpus),
            check=find_issues,
            log=self._log,
            model_queries=options.rewrite == "model",
        )
        clock = VirtualClock(settings) if self.is_simulated else WallClock()
        decide = _Decider(options.policy, settings, self._max_num_seqs, self._seed)
        return Session(
            settings,
            options,
            work,
            workers,
            clock,
            decide,
            self.context,
            hint=lexical.complexity_of(query),
            refers=lexical.refers_back(query, history),
            max_num_seqs=self._max_num_seqs,
            log=self._log,
        )

    def _pausing(self, session: Session) -> Ask | None:
        """Return `ask`, with the clock stopped while a person thinks."""
        ask = self._ask
        if ask is None:
            return None

        async def pausing(pause: Any) -> Any:
            began_s = time.monotonic()
            reply = ask(pause)
            reply = await reply if asyncio.iscoroutine(reply) else reply
            took_s = time.monotonic() - began_s
            session.pause(took_s)
            self._log.append(
                "pause",
                {"when": pause.when, "node": pause.node, "goes_on": reply.goes_on, "s": took_s},
            )
            return reply

        return pausing

    def _response(
        self,
        session: Session,
        options: QuerySettings,
        handoffs: list[dict[str, Any]],
        wall_s: float,
    ) -> AgentResponse:
        state, work = session.state, session.product
        reason = REASONS[int(state.reason[0])]
        ended_by = "failed" if session.is_refused else _ENDINGS.get(reason, reason)
        if session.was_stopped:
            ended_by = "stopped"
        has_answer = bool(work.draft) and ended_by not in ("failed", "stopped")
        content, sources = cited(work.draft, work.documents) if has_answer else (NO_ANSWER, ())
        attribution = "cited" if sources else "none"
        if has_answer and not sources and work.documents:
            sources, attribution = work.documents, "given"  # the writer had them, and named none
        seconds = int(state.elapsed_ms[0]) / 1000.0 if self.is_simulated else wall_s
        metadata = {
            "ended_by": ended_by,
            "attribution": attribution,
            **self._agents_said(session),
            **self._measured(session),
            "handoffs": len(handoffs),
        }
        if options.output_mode == "structured":
            metadata["structured"] = self._structured(session, content)
        if options.output_mode == "full_history":
            metadata["messages"] = handoffs
        return AgentResponse(
            content=content,
            sources=sources,
            metadata=metadata,
            validation_score=_score(session),
            processing_time=seconds,
        )

    def _agents_said(self, session: Session) -> dict[str, Any]:
        work = session.product
        told = {"route": work.route, "plan": work.plan, "validation": work.validation}
        withheld = [pair for result in work.found for pair in result.withheld]
        return {
            **{key: None if v is None else v.model_dump() for key, v in told.items()},
            "decisions": session.decisions,
            "failures": session.failures,
            "queries": [list(result.queries) for result in work.found],
            "withheld": [list(pair) for pair in withheld],
            "missing": list(work.missing),
        }

    def _measured(self, session: Session) -> dict[str, Any]:
        state = session.state
        overheads = session.overheads_ms or [0.0]
        cost = self._services[0].get_cost_summary()
        tokens = int(state.context[0])
        return {
            "simulated": self.is_simulated,
            "iterations": int(state.iteration[0]),
            "calls": cost["calls"],
            "input_tokens": cost["input_tokens"],
            "output_tokens": cost["output_tokens"],
            "cost_usd": cost["cost_usd"],
            "overhead_ms_mean": sum(overheads) / len(overheads),
            "overhead_ms_max": max(overheads),
            "model_ms": int(state.model_ms[0]),
            "parallel": int(state.widest[0]),
            "context_tokens": tokens,
            "context_limit": self.max_context_length,
            "context_trimmed": bool(state.trimmed[0]),
        }

    def _structured(self, session: Session, content: str) -> dict[str, Any]:
        messages = [*session.product.history, {"role": "user", "content": session.product.query}]
        return self.context.post_model_hook(
            {
                "output_mode": "structured",
                "response": content,
                "messages": messages,
                "context_trimmed": bool(session.state.trimmed[0]),
                "parallel_tool_calls": int(session.state.widest[0]) > 1,
            }
        )


class _Decider:
    """A coordination policy for one query."""

    def __init__(
        self, name: str, settings: CoordinationSettings, max_num_seqs: int, seed: int
    ) -> None:
        self._policy = registry.resolve(name)
        self._policy.reset(CoordinationSpec(settings, max_num_seqs), [seed])

    def __call__(self, state: CoordinationState) -> int:
        seen = contexts(state, _ROW)
        return int(self._policy.act_batch(observe(state, _ROW), seen, _ROW)[0])


def _score(session: Session) -> float:
    """Return how sure it is that the answer is valid; 0 where nobody checked."""
    found = session.product.validation
    if found is None or not session.state.judged[0]:
        return 0.0
    return found.confidence if found.valid else min(found.confidence, 1.0 - found.confidence)


def _open(backend: str, model_path: str) -> Provider:
    if backend == "vllm":
        return open_provider(os.environ.get("VLLM_BASE_URL", VLLM_URL), model_path)
    own = None if backend in ("openai", "anthropic") and model_path == MODEL else model_path
    return open_provider(backend, own)


def _within_context(settings: CoordinationSettings, length: int) -> CoordinationSettings:
    """Return the team's constants for another length of the context."""
    limits = settings.context
    share = min(length / 128_000, 1.0)
    context = ContextLimits(
        max_tokens=min(limits.max_tokens, length) if length < 128_000 else limits.max_tokens,
        trim_above_tokens=int(limits.trim_above_tokens * share),
        trim_to_tokens=int(limits.trim_to_tokens * share),
        oldest_share=limits.oldest_share,
    )
    return settings.model_copy(update={"context": context})


def _adapted(settings: CoordinationSettings, options: QuerySettings) -> CoordinationSettings:
    """Return the team's constants with the limits of a query."""
    limits, server = settings.limits, settings.server
    times = (options.deadline_s or limits.hard_s) / limits.hard_s
    seconds = ("simple_s", "target_s", "hard_s", "call_timeout_s")
    return settings.model_copy(
        update={
            "limits": limits.model_copy(
                update={
                    **{name: getattr(limits, name) * times for name in seconds},
                    "max_iterations": min(limits.max_iterations, options.max_iterations),
                    "max_retries": min(limits.max_retries, options.retry.max_retries),
                    "backoff_factor": options.retry.backoff_factor,
                    "parallel_calls": min(limits.parallel_calls, options.max_parallel_calls),
                }
            ),
            "server": server.model_copy(
                update={
                    "decode_tokens_per_s": server.decode_tokens_per_s / times,
                    "prefill_tokens_per_s": server.prefill_tokens_per_s / times,
                }
            ),
        }
    )


def _query(query: str) -> str:
    if not isinstance(query, str) or not query.strip():
        raise ConfigError("the query is empty.")
    if len(query) > MOST_QUERY_CHARS:
        raise ConfigError(
            f"the query has {len(query):,} characters, {MOST_QUERY_CHARS:,} at most."
        )
    return query.strip()


def _messages(context: Any) -> list[dict[str, Any]]:
    """Return earlier messages as mappings with role and content."""
    if context is None:
        return []
    listed = context.get() if hasattr(context, "get") and not isinstance(context, Mapping) else context
    if isinstance(listed, Mapping | str) or not isinstance(listed, Sequence):
        raise ConfigError("context: give a list of messages, or a chat memory with a method `get`.")
    found = []
    for message in listed:
        is_mapping = isinstance(message, Mapping)
        content = message.get("content") if is_mapping else getattr(message, "content", None)
        if content is None:
            raise ConfigError(f"context: {message!r:.80} is no message with role and content.")
        found.append({"role": role_of(message), "content": str(content)})
    return found


def _options(settings: QuerySettings | Mapping[str, Any] | None) -> QuerySettings:
    if isinstance(settings, QuerySettings):
        return settings
    return validate(dict(settings or {}), QuerySettings, source="settings")


__all__ = ["AgentResponse", "Document", "MultiAgentCoordinator", "QuerySettings"]
