"""The coordinator: a query in, an answer with its sources out.

coordinator = MultiAgentCoordinator(backend="simulated")
print(coordinator.process_query("What does chunked prefill change?").content)

A `Session` is one query under the supervisor. It keeps the same `CoordinationState` as the
environment, and asks any coordination policy. What an agent hands back becomes an `Outcome`;
nothing else changes the state. The engine is LangGraph: the supervisor of a StateGraph sends tasks
with `Send`; those of a wave run at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from statistics import median
from typing import Any, Final

import numpy as np

from inframind_gym.configs import validate
from inframind_gym.envs.coordination import observe
from inframind_gym.errors import require, require_within
from inframind_gym.policies import resolve_policy
from inframind_gym.teams import llm
from inframind_gym.teams.coordination import agents, rules
from inframind_gym.teams.coordination.agents import Agents, Faulty, RuleAnswers, Task, Work
from inframind_gym.teams.coordination.check import is_abstention, screen
from inframind_gym.teams.coordination.prompts import ContextManager, cited, messages_of
from inframind_gym.teams.coordination.retrieval import Corpus, Retriever, refers_back, rewrite
from inframind_gym.teams.coordination.rules import REASONS, CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    MODEL,
    MOST_CONTEXT,
    STRATEGIES,
    AgentResponse,
    Document,
    Query,
    QuerySettings,
    load_settings,
)

VLLM_URL: Final = "http://127.0.0.1:8000/v1"  # unless $VLLM_BASE_URL says otherwise
NO_ANSWER: Final = "No answer could be found in time."
TOO_LONG: Final = "The conversation is longer than the context of the model."
REFUSED: Final = "This query was not processed: it looks like a prompt injection."
WITHHELD: Final = "[withheld]"  # in place of a turn that looks like a prompt injection
UNANSWERED: Final = ("refused", "stopped", "failed", "context")  # endings without an answer
_NOT_IN_ANSWER: Final = ("decisions", "messages", "structured")  # left out of its event
SUPERVISOR: Final = "supervisor"
HUMAN: Final = "human"  # gives the answer to the user
# Nodes by the tasks that are done there; the synthesis agent also writes, in a node of its own.
NODES: Final = {
    **{name: name for name in ("router", "planner", "retrieval", "synthesis", "fallback")},
    **{"draft": "writer", "validation": "validator"},
    **{"rewrite": "tools", "trim": "tools"},
}
MOST_PASSES: Final = 80  # of the graph: a decision passes the supervisor, and agents up to twice
_ROW: Final = np.zeros(1, np.int64)
_HANDING_OVER_S: Final = 0.05  # between the end of the fallback and the hard deadline
_LEAST_FALLBACK_S: Final = 0.3  # that the fallback gets even if a policy has used up all the time

# Asks a person: "before" or "after", the node, and the route, plan or answer there is to see.
# Returns whether to go on; it may be a coroutine function.
Ask = Callable[[str, str, Any], Any]


class MultiAgentCoordinator(llm.Blocking):
    """Five agents under a supervisor that answers before a deadline.

    Threads may share it, but its blocking method runs one query at a time, whose time begins then.
    For several at once use `aprocess_query`, all in one event loop.

    Args:
        model_path: Model, by its name on the server.
        max_context_length: Tokens of a conversation; the lengths of a trim scale with it.
        backend: "vllm" (a server that runs at $VLLM_BASE_URL), "simulated", "openai", "anthropic",
            or the base URL of an OpenAI-compatible server.
        provider: Provider of the model in place of `backend`.
        searcher: Retriever of documents; None: of the passages of the package.
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
        provider: llm.Provider | None = None,
        searcher: Retriever | None = None,
        log: llm.EventLog | None = None,
        ask: Ask | None = None,
    ) -> None:
        super().__init__()
        require_within(max_context_length, 1024, MOST_CONTEXT, "max_context_length (tokens)")
        self.is_simulated = provider is None and backend == llm.SIMULATED
        self.settings = load_settings().within_context(max_context_length)
        self.context = ContextManager(self.settings.context)
        self.searcher = searcher or Retriever(Corpus.load())
        self.log: llm.EventLog = log or llm.NoLog()
        self.ask, self.provider = ask, provider
        if not self.is_simulated and provider is None:
            vendor = backend in ("openai", "anthropic") and model_path == MODEL
            name = os.environ.get("VLLM_BASE_URL", VLLM_URL) if backend == "vllm" else backend
            self.provider = llm.open_provider(name, None if vendor else model_path)

    def warm_up(self) -> None:
        """Load and build what is built once: indexes, word lists, LangGraph."""
        for strategy in ("vector", "graphrag"):
            self.searcher.retrieve("warm up", strategy, 1)
        rewrite("warm up", self.searcher.corpus)
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
            self.log.append("query_refused", {"reason": reason})
            refusal = {"ended_by": "refused", "reason": reason, "simulated": self.is_simulated}
            return AgentResponse(
                content=REFUSED, metadata={**refusal, "decisions": [], "failures": []}
            )
        work = Work(query)
        for number, message in enumerate(messages, 1):
            # Models and tools may pass on what a document said; system messages are instructions.
            role, turn = message["role"], f"turn {number}"
            reason = screen(message["content"], "query" if role == "user" else "document")
            if reason and role != "system":
                work.withheld = (*work.withheld, (turn, reason))
                self.log.append("turn_withheld", {"turn": turn, "reason": reason})
                message = {**message, "content": WITHHELD}
            work.history.append(message)
        session = Session(self, work, options, began_s)
        await session.play()
        response = session.response()
        event = response.model_dump(mode="json")
        documents, metadata = event.pop("sources"), event.pop("metadata")
        figures = {k: v for k, v in metadata.items() if k not in _NOT_IN_ANSWER}
        names = {"sources": [each["doc_id"] for each in documents], "documents": documents}
        self.log.append("answer", {**figures, **event, **names, "handoffs": session.handoffs})
        return response

    async def aclose(self) -> None:
        """Close connections, from inside of an event loop."""
        if self.provider is not None:
            await self.provider.aclose()


class Session:
    """One query of a team under its supervisor.

    Where answers are simulated, its time is by the rules of the team: what the calls of an action
    take on the team's server. Else it is real, less the time that a person takes who is asked.
    """

    def __init__(
        self, team: MultiAgentCoordinator, work: Work, options: QuerySettings, began_s: float
    ) -> None:
        self.work, self.options, self.log, self.ask = work, options, team.log, team.ask
        self.settings = settings = team.settings.of_query(options, slow=not team.is_simulated)
        provider = team.provider or RuleAnswers(work, settings, team.searcher)
        if options.fault is not None:
            provider = Faulty(provider, options.fault)
        limits: Any = {
            "max_retries": options.retry.max_retries,
            "timeout_s": options.retry.timeout_seconds,
        }
        service = llm.LLMService({agents.WAY: provider}, log=team.log, **limits)
        self.context, self.state = team.context, CoordinationState(settings, 1)
        is_by_model = options.rewrite == "model"
        self.agents = Agents(service, team.searcher, work, team.log, team.context, is_by_model)
        refers = bool(work.history) and refers_back(work.query)
        begun = agents.complexity_of(work.query), refers, team.context.estimate_tokens(work.history)
        self.state.begin(_ROW, *begun, model=False)
        self.policy = resolve_policy(options.policy, family="coordination")
        self.policy.reset(settings, [0])
        # What happened, in order, as plain data.
        self.decisions: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.handoffs: list[dict[str, Any]] = []
        self.overheads_ms: list[float] = []  # of decisions, less calls and waits
        self.ended = ""  # "stopped" (by a person) or "failed" (basic retrieval may not answer)
        self.began_s = began_s  # a pause moves it on
        self._is_wave_begun = False
        self._idle_since_s = time.monotonic()  # the last agent came back; waits move it on

    async def play(self) -> None:
        """Play the query to its end: a supervisor sends tasks to agents, a wave at a time."""
        graphs = require("langgraph.graph", "the coordination team", "teams")
        types = require("langgraph.types", "the coordination team", "teams")
        waves, nodes = self._waves(), list(dict.fromkeys(NODES.values()))

        async def supervise(_: dict[str, Any]) -> Any:
            wave: list[Task] = await anext(waves, [])
            sent = [types.Send(NODES[task.agent], task) for task in wave]
            return types.Command(goto=sent or graphs.END)

        graph: Any = graphs.StateGraph(dict)
        graph.add_node(SUPERVISOR, supervise, destinations=(*nodes, graphs.END))
        graph.add_edge(graphs.START, SUPERVISOR)
        for name in nodes:
            graph.add_node(name, self._work)
            graph.add_edge(name, SUPERVISOR)
        async with aclosing(waves):
            await graph.compile().ainvoke({}, {"recursion_limit": MOST_PASSES})
        if not self.ended:
            is_answer = REASONS[int(self.state.reason[0])] == "answer"
            author = "synthesis" if is_answer else "fallback"
            self._hand_over("forward", author, "user", self.work.draft)
            if HUMAN in self.options.interrupt_before:
                await self._pause("before", HUMAN, self.work.draft)

    # Time

    @property
    def now_ms(self) -> int:
        """Milliseconds since the query came."""
        if self.agents.service.is_simulated:
            return int(self.state.elapsed_ms[0])
        return round(1000.0 * (time.monotonic() - self.began_s))

    @property
    def _left_s(self) -> float:
        """Seconds from now until the fallback must begin; 0 where it must have."""
        return int(rules.left_ms(np.array([self.now_ms]), self.settings)[0]) / 1000.0

    def action_ms(self, action: int, tasks: Sequence[Task]) -> int:
        """Return the milliseconds that an action took."""
        settings, state = self.settings, self.state
        if not self.agents.service.is_simulated:
            return max(self.now_ms - int(state.elapsed_ms[0]) - int(state.setup_ms[0]), 0)
        alone = {rules.TRIM: settings.trim_s, rules.REWRITE: settings.search_s["rewrite"]}
        alone[rules.FALLBACK] = settings.fallback_s
        seconds = alone.get(action, sum(task.latency_s for task in tasks))
        if any(task.failure == "timeout" for task in tasks) and action not in alone:
            seconds = settings.limits.call_timeout_s
        elif rules.is_retrieval(action) and tasks:
            read = np.array([[task.input_tokens for task in tasks]])
            wrote = np.array([[task.output_tokens for task in tasks]])
            wave_s = float(rules.wave_s(read, wrote, settings.server)[0])
            seconds = wave_s + settings.search_s[STRATEGIES[int(rules.strategy_of(action))]]
        return int(rules.milliseconds(seconds))

    # The supervisor

    async def _waves(self) -> AsyncGenerator[list[Task], None]:
        """Decide until the query has ended; yield the tasks of one wave after the other."""
        options, limits = self.options, self.settings.limits
        while not self.state.over[0]:
            action, done = await self._next_action(), list[Task]()
            if action == rules.FALLBACK and not options.fallback_to_basic_rag:
                self.ended = "failed"
                return
            for wave in self.waves_of(action):
                if any(task.failure for task in done) or (done and self._left_s <= 0.0):
                    break
                for task in done:
                    if task.agent == "draft":  # what comes next reads it
                        self.work.draft, self.work.documents = task.value
                for task in wave:  # all end by the one deadline
                    task.limit_s = min(limits.call_timeout_s, self._left_s)
                    if task.agent == "fallback":
                        left_s = limits.hard_s - self.now_ms / 1000.0
                        task.limit_s = max(left_s - _HANDING_OVER_S, _LEAST_FALLBACK_S)
                    said = task.question or self.work.query
                    self._hand_over("handoff", SUPERVISOR, NODES[task.agent], said)
                self._is_wave_begun = False
                yield wave
                for task in wave:
                    said = task.failure or type(task.value).__name__
                    if options.add_handoff_back_messages and task.ended_s > 0.0:
                        self._hand_over("handoff_back", NODES[task.agent], SUPERVISOR, said)
                if self.ended:
                    return
                done += wave
            self._join(action, done)

    async def _next_action(self) -> int:
        """Ask the policy, unless the fallback is forced; returns what is carried out."""
        state, retries = self.state, int(self.state.retries[0])
        if len(state.forced(_ROW)):
            self._decided(rules.FALLBACK, forced=REASONS[int(state.reason[0])])
            return int(rules.FALLBACK)
        action = int(rules.FALLBACK)
        if self.options.enable_multi_agent:
            seen = observe(state, _ROW), state.rows(_ROW)
            action = int(self.policy.act_batch(*seen, _ROW)[0])
        done = int(state.decide(_ROW, np.array([action]))[0])
        if done != rules.FALLBACK and self._left_s <= 0.0:
            done = rules.NOTHING
        self._decided(action, refused=done != action)
        if int(state.retries[0]) > retries and not self.agents.service.is_simulated:
            backoff_s = float(rules.backoff_s(state.retries[:1], self.settings)[0])
            wait_s = min(backoff_s, self._left_s)
            await asyncio.sleep(wait_s)
            self._idle_since_s += wait_s
        return done

    def _decided(self, action: int, **more: Any) -> None:
        """Write a decision and what it was based on."""
        names = ("iteration", "elapsed_ms", "docs", "pending")
        step = {
            "action": rules.NAMES[action],
            **{name: int(getattr(self.state, name)[0]) for name in names},
            "context_tokens": int(self.state.context[0]),
            **{key: value for key, value in more.items() if value},
        }
        self.decisions.append(step)
        open_ = [rules.NAMES[i] for i in np.flatnonzero(self.state.mask[0])]
        self.log.append("decision", {**step, "open": open_})

    def waves_of(self, action: int) -> list[list[Task]]:
        """Return the tasks of an action, in waves that follow one another."""
        work, drafted = self.work, bool(self.state.drafted[0])
        if rules.is_retrieval(action):  # for sub-tasks that wait; for all if none does
            passages = self.settings.passages
            is_wave = action >= rules.PARALLEL and not work.is_sequential
            width = self.settings.limits.parallel_calls if is_wave else 1
            strategy = STRATEGIES[int(rules.strategy_of(action))]
            top_k = passages.subtask if work.pending else passages.whole
            tasks = [
                Task("retrieval", question, strategy, top_k)
                for question in work.pending[:width] or [work.query]
            ]
            return [tasks] if self.options.parallel_tool_calls else [[task] for task in tasks]
        if action == rules.TRIM:  # it leaves room for what is no history
            others = int(self.state.context[0]) - self.context.estimate_tokens(work.history)
            return [[Task("trim", room=self.settings.context.trim_to_tokens - others)]]
        writes = not drafted or action == rules.REGENERATE
        writes |= action == rules.ANSWER and not self.options.create_forward_message_tool
        draft = [Task("draft", mend=drafted and action != rules.VALIDATE)] if writes else []
        waves = {
            rules.ROUTE: [[Task("router")]],
            rules.PLAN: [[Task("planner")]],
            rules.REWRITE: [[Task("rewrite")]],
            rules.SYNTHESIZE: [[Task("synthesis")]],
            rules.VALIDATE: [draft, [Task("validation")]],
            rules.ANSWER: [draft],
            rules.REGENERATE: [draft],
            rules.FALLBACK: [[Task("fallback")]],
        }
        return list(filter(None, waves.get(action, [])))

    def _hand_over(self, kind: str, sender: str, receiver: str, content: str) -> None:
        """Write down who hands over to whom."""
        message = {"kind": kind, "sender": sender, "receiver": receiver}
        place = {"iteration": int(self.state.iteration[0]), "content": content[:200]}
        self.handoffs.append({**message, **place})

    # The agents

    async def _work(self, task: Any) -> None:
        """Carry out a task, which then waits for the supervisor."""
        agent, node = task.agent, NODES[task.agent]
        if node in self.options.interrupt_before:
            await self._pause("before", node, self.work.draft)
        if self.ended:
            return
        if not self._is_wave_begun:  # what passed since the last agent: supervisor and graph
            self._is_wave_begun = True
            took_ms = 1000.0 * (time.monotonic() - self._idle_since_s)
            limit_ms = self.options.agent_decision_timeout_ms
            self.overheads_ms.append(took_ms)
            if took_ms > limit_ms:
                self.log.append("slow_decision", {"overhead_ms": took_ms, "limit_ms": limit_ms})
        await self.agents.perform(task)
        self._idle_since_s = max(self._idle_since_s, task.ended_s)
        if task.failure:
            event = {
                "agent": agents.AGENT_OF.get(agent, agent),
                "task": agent,
                "iteration": int(self.state.iteration[0]),
                "failure": task.failure,
                "message": task.message,
                "after_s": round(task.ended_s - task.began_s, 3),
            }
            self.failures.append(event)
            self.log.append("agent_failed", event)
        elif node in self.options.interrupt_after:
            await self._pause("after", node, task.value)

    async def _pause(self, when: str, node: str, value: Any) -> None:
        """Ask a person whether to go on; their time does not count."""
        if self.ask is None:
            return
        asked_s = time.monotonic()
        goes_on = self.ask(when, node, value)
        goes_on = await goes_on if isinstance(goes_on, Awaitable) else goes_on
        took_s = time.monotonic() - asked_s
        self._idle_since_s += took_s
        self.began_s += took_s
        self.log.append(
            "pause", {"when": when, "node": node, "goes_on": bool(goes_on), "s": took_s}
        )
        self.ended = self.ended if goes_on else "stopped"

    def _join(self, action: int, tasks: Sequence[Task]) -> None:
        """Record the outcome of an action, and put its results into the product."""
        state = self.state
        outcome, is_fallback = Outcome.empty(1), action == rules.FALLBACK
        outcome.ms[0] = self.action_ms(action, tasks)
        outcome.prompt[0] = sum(task.input_tokens for task in tasks)
        outcome.completion[0] = outcome.context[0] = sum(task.output_tokens for task in tasks)
        left_ms = int(rules.left_ms(state.elapsed_ms, self.settings)[0])
        needed_ms = int(state.setup_ms[0]) + int(outcome.ms[0])
        is_lost = not is_fallback and needed_ms >= left_ms
        handoff = self.settings.tokens.handoff * self.options.add_handoff_back_messages
        for task in tasks:
            if NODES[task.agent] != "tools" and not is_fallback:  # the fallback ends the query
                outcome.context[0] += handoff
            if task.failure and not is_fallback:
                outcome.failed[0] = AGENTS.index(agents.AGENT_OF.get(task.agent, task.agent))
                outcome.failure[0] = max(outcome.failure[0], rules.FAILURES.index(task.failure))
            if not is_lost:
                self.work.keep(task, outcome)
        outcome.score[:] /= np.maximum(outcome.answered, 1)
        state.take(_ROW, np.array([action]), outcome)
        if is_lost and tasks:
            late = [task.agent for task in tasks if not task.failure]
            self.log.append("late", {"agents": late, "needed_ms": needed_ms, "left_ms": left_ms})

    # The answer

    def response(self) -> AgentResponse:
        """Return the answer of the query, which has ended."""
        work, state, options = self.work, self.state, self.options
        ended_by = self.ended or REASONS[int(state.reason[0])]
        if not work.draft and ended_by not in UNANSWERED:  # the fallback itself failed
            ended_by = "failed"
        content, verdict = TOO_LONG if ended_by == "context" else NO_ANSWER, work.validation
        sources, attribution = work.documents[:0], "none"
        if verdict is not None and any(i.description == agents.NOT_ABOUT for i in verdict.issues):
            content = agents.NO_SOURCE  # the writer answers although no source is about it
        elif work.draft and ended_by not in UNANSWERED:
            is_empty = is_abstention(work.query, work.draft)
            documents = () if is_empty else work.documents  # an abstention has no sources
            content, sources = cited(work.draft, documents)
            attribution = "cited" if sources else "none"
            if not sources and documents:  # the writer had them and cited none
                sources, attribution = documents, "given"
        score = 0.0
        if verdict is not None and state.judged[0]:  # how sure it is that the answer is valid
            score = verdict.confidence
            score = score if verdict.valid else min(score, 1.0 - score)
        overheads, cost = self.overheads_ms or [0.0], self.agents.service.get_cost_summary()
        handed = {"route": work.route, "plan": work.plan, "validation": work.validation}
        passages = [pair for result in work.found for pair in result.withheld]
        metadata = {
            "ended_by": ended_by,
            "attribution": attribution,
            **{k: None if v is None else v.model_dump(mode="json") for k, v in handed.items()},
            "decisions": self.decisions,
            "failures": self.failures,
            "queries": [list(result.queries) for result in work.found],
            "withheld": [list(pair) for pair in (*work.withheld, *passages)],
            "missing": list(work.missing),
            "simulated": self.agents.service.is_simulated,
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
            "handoffs": len(self.handoffs),
        }
        if options.output_mode == "full_history":
            metadata["messages"] = self.handoffs
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
            processing_time=self.now_ms / 1000.0,
            history=tuple(map(dict, work.history)),
        )


__all__ = ["AgentResponse", "Document", "MultiAgentCoordinator", "QuerySettings"]
