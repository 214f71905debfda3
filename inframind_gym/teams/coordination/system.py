"""The coordinator: a query in, an answer with its sources out.

coordinator = MultiAgentCoordinator(backend="simulated")
print(coordinator.process_query("What does chunked prefill change?").content)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.teams.coordination import lexical, supervisor
from inframind_gym.teams.coordination.agents import opening
from inframind_gym.teams.coordination.clock import Clock, WallClock
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.contracts import AgentResponse, Document, Issue
from inframind_gym.teams.coordination.faults import Faulty
from inframind_gym.teams.coordination.graph import Ask, has_langgraph, play, timed
from inframind_gym.teams.coordination.grounding import find_issues
from inframind_gym.teams.coordination.inputs import (
    adapted,
    checked_query,
    messages_of,
    screened,
    settings_of,
    within_context,
)
from inframind_gym.teams.coordination.options import MODEL, QuerySettings
from inframind_gym.teams.coordination.reading import with_ids
from inframind_gym.teams.coordination.response import refusal, respond
from inframind_gym.teams.coordination.retrieval import Corpus, Retriever, rewrite
from inframind_gym.teams.coordination.screen import screen
from inframind_gym.teams.coordination.searching import Searcher
from inframind_gym.teams.coordination.serving import Speed, VllmServer, measure
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.settings import CoordinationSettings, Limits, load_settings
from inframind_gym.teams.coordination.simulated import RuleAnswers, VirtualClock
from inframind_gym.teams.coordination.work import Work
from inframind_gym.teams.coordination.workers import WAY, Workers
from inframind_gym.teams.llm.providers import SIMULATED, open_provider
from inframind_gym.teams.llm.service import EventLog, LLMService, NoLog, Retries
from inframind_gym.teams.llm.types import Provider

VLLM_URL: Final = "http://127.0.0.1:8000/v1"  # unless $VLLM_BASE_URL says otherwise
MOST_CONTEXT: Final = 131_072
ValueT = TypeVar("ValueT")
# Of the answer's metadata, in its event; a query that was refused has none of them.
_TOLD: Final = (
    *("ended_by", "attribution", "validation", "failures", "withheld", "simulated", "calls"),
    *("input_tokens", "output_tokens", "context_tokens", "context_limit", "context_trimmed"),
)
_MOST_READING_S: Final = 300.0  # of a trimmed conversation, between two queries


class MultiAgentCoordinator:
    """Five agents under a supervisor that answers before a deadline.

    Threads may share it, but its blocking methods take turns, and a query's time begins with its
    turn. Queries at the same time are for `aprocess_query`, all in one event loop.

    Args:
        model_path: Model, by its name on the server.
        max_context_length: Tokens of a conversation; the lengths of a trim scale with it.
        backend: "vllm" (a server that runs at $VLLM_BASE_URL), "simulated", "openai", "anthropic",
            or the base URL of an OpenAI-compatible server.
        provider: Way to the model in place of `backend`.
        searcher: Way to documents; None: the `corpus`.
        corpus: Passages; None: those of the package.
        team: Constants of the team.
        server: Options of the team's server, for its estimated speed; None: the design's.
        max_num_seqs: Calls that the server carries out at once; None: the team's.
        log: Where decisions, calls and failures are written; None: nowhere.
        ask: Asks a person where the settings of a query interrupt it.
        fault: What goes wrong on purpose, see `faults.Faulty`.
        seed: Of policies that draw.

    Attributes:
        context: Manager of conversations.

    Raises:
        ConfigError: A length, a number, the backend or the model is wrong, or a key is missing.
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
        server: VllmServer | None = None,
        max_num_seqs: int | None = None,
        log: EventLog | None = None,
        ask: Ask | None = None,
        fault: str | None = None,
        seed: int = 0,
    ) -> None:
        if type(max_context_length) is not int:
            raise ConfigError(f"max_context_length is {max_context_length!r}, no whole number")
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
        self.server = server or VllmServer(model=model_path)
        self.is_simulated = provider is None and backend == SIMULATED
        self.settings = within_context(team or load_settings(), max_context_length)
        self.context = ContextManager(self.settings.context)
        self._corpus = corpus or (Corpus.load() if searcher is None else Corpus("", ()))
        self.searcher: Searcher = searcher or Retriever(self._corpus)
        self._log: EventLog = log or NoLog()
        self._ask, self._fault, self._seed = ask, fault, seed
        self._max_num_seqs = self.settings.server.max_num_seqs
        if max_num_seqs is not None:
            self._max_num_seqs = max_num_seqs
        if self._max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {max_num_seqs}; a server carries out 1 at least")
        self._provider = provider
        if not self.is_simulated and provider is None:
            self._provider = _open(backend, model_path)
        self._runner: asyncio.Runner | None = None
        self._turn = threading.Lock()  # of the runner

    @property
    def vectors(self) -> str:
        """Kind of the embeddings of retrieval: "minilm", or "hashed" where that is missing."""
        found = getattr(self.searcher, "vectors", None)
        return str(getattr(found, "name", "unknown"))

    def warm_up(self) -> None:
        """Load and build what is built once: indexes, word lists, LangGraph."""
        for strategy in ("vector", "graphrag"):
            self.searcher.retrieve("warm up", strategy, 1)
        rewrite("warm up", self._corpus)
        if has_langgraph():
            import_module("langgraph.graph")

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
        return self._run(self.aprocess_query(query, context, settings))

    def _run(self, wanted: Coroutine[Any, Any, ValueT]) -> ValueT:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            wanted.close()
            raise InfraMindError("an event loop runs here: use `await aprocess_query(...)`.")
        with self._turn:
            if self._runner is None:  # it lives on: connections of the provider belong to it
                self._runner = asyncio.Runner()
            return self._runner.run(wanted)

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
            ConfigError: The query, a message, a setting or a person's reply is wrong.
        """
        wall = WallClock()  # it runs from here
        query, said, options = checked_query(query), messages_of(context), settings_of(settings)
        found = screen(query)
        if found.is_attack:
            self._log.append("query_refused", {"reason": found.reason})
            return refusal(found.reason, simulated=self.is_simulated)
        history, withheld = screened(said)
        for turn, reason in withheld:
            self._log.append("turn_withheld", {"turn": turn, "reason": reason})
        session = self._session(Work(query, history, withheld), options, wall)
        asks = (options.interrupt_before, options.interrupt_after)
        handoffs = await play(session, *asks, timed(self._ask, session.pause, self._log))
        seconds = session.clock.now_ms(session.state) / 1000.0
        response = respond(session, handoffs, self.context, seconds)
        told = response.model_dump(include={"content", "validation_score", "processing_time"})
        sources = [document.doc_id for document in response.sources]
        documents = [document.model_dump() for document in response.sources]
        told |= {key: response.metadata[key] for key in _TOLD}
        told |= {"sources": sources, "documents": documents, "handoffs": handoffs}
        self._log.append("answer", told)
        return response

    def read_ahead(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Let the server read a conversation that was trimmed, before the next query.

        After a trim no cache holds what lies behind the cut. Simulated answers assume that it has
        been read.

        Raises:
            LLMError: The call failed.
        """
        if self._provider is not None:
            retries = Retries(1, timeout_s=_MOST_READING_S)
            service = LLMService({WAY: self._provider}, log=self._log, retries=retries)
            prompt = opening(screened(history)[0])
            self._run(service.acall(prompt.system, prompt.user, WAY, 1, agent="read ahead"))

    def limits(self, settings: QuerySettings) -> Limits:
        """Return deadlines and limits of a query."""
        return adapted(self.settings, settings, slow=not self.is_simulated).limits

    @contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Let an agent's calls fail, see `faults.Faulty`."""
        before, self._fault = self._fault, fault
        try:
            yield
        finally:
            self._fault = before

    def rewrite(self, query: str) -> list[str]:
        """Return the forms of a query that retrieval searches for, by rules."""
        return rewrite(query, self._corpus)

    def measure(self) -> Speed:
        """Return the speed of the server, see `serving.measure`.

        Raises:
            ConfigError: Answers are simulated.
            LLMError: A call failed.
        """
        if self._provider is None:
            raise ConfigError("there is no server to measure: answers are simulated.")
        return self._run(measure(LLMService({WAY: self._provider}, log=self._log), WAY))

    def close(self) -> None:
        """Close connections."""
        with self._turn:
            if self._runner is not None:
                self._runner.run(self.aclose())
                self._runner.close()
                self._runner = None

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        if self._provider is not None:
            await self._provider.aclose()

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

    def _session(self, work: Work, options: QuerySettings, wall: WallClock) -> Session:
        settings = adapted(self.settings, options, slow=not self.is_simulated)
        provider = self._provider or RuleAnswers(work, settings, check).provider()
        if self._fault is not None:
            provider = Faulty(provider, self._fault)
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
        workers = Workers(
            service,
            self.searcher,
            work,
            rewrite=self.rewrite,
            check=check,
            log=self._log,
            model_queries=options.rewrite == "model",
        )
        clock: Clock = VirtualClock(settings) if self.is_simulated else wall
        team = (settings, self._max_num_seqs, self._seed)
        decide = supervisor.decider(options.policy, *team, service, work, self._log)
        return Session(
            settings,
            options,
            work,
            workers,
            clock,
            decide,
            self.context,
            hint=lexical.complexity_of(work.query),
            refers=lexical.refers_back(work.query, work.history),
            max_num_seqs=self._max_num_seqs,
            log=self._log,
        )


def check(query: str, response: str, sources: Sequence[Document]) -> list[Issue]:
    """Return the issues of an answer that has the numbers of its sources, see `find_issues`."""
    return find_issues(query, with_ids(response, sources), sources)


def _open(backend: str, model_path: str) -> Provider:
    if backend == "vllm":
        return open_provider(os.environ.get("VLLM_BASE_URL", VLLM_URL), model_path)
    own = None if backend in ("openai", "anthropic") and model_path == MODEL else model_path
    return open_provider(backend, own)


__all__ = ["AgentResponse", "Document", "MultiAgentCoordinator", "QuerySettings"]
