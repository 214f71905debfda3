"""One query under the supervisor: a graph of agents, and the state by the shared rules.

The supervisor keeps the same `CoordinationState` as the environment, and asks any coordination
policy, or a model. What an agent hands back becomes an `Outcome`; nothing else changes the state.
LangGraph (extra `teams`) is the engine: a StateGraph whose supervisor sends tasks with `Send`, so
that tasks sent out together run at the same time.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict

import numpy as np

from inframind_gym.envs.coordination import CoordinationSpec, coordination_contexts, observe
from inframind_gym.errors import require
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import prompts, rules
from inframind_gym.teams.coordination.agents import AGENT_OF, WAY, Agents, Report, Work
from inframind_gym.teams.coordination.context import ContextManager, Trimmed
from inframind_gym.teams.coordination.rules import REASONS, CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    COMPLEXITIES,
    ISSUES,
    SEVERITIES,
    STRATEGIES,
    CoordinationSettings,
    Plan,
    QuerySettings,
    Retrieved,
    Route,
    Validation,
)
from inframind_gym.teams.llm import BudgetError, EventLog, LLMError, estimate_tokens
from inframind_gym.teams.token_budget.agents import json_object

SUPERVISOR: Final = "supervisor"
HUMAN: Final = "human"  # gives the answer to the user
# Nodes by the tasks that are done there; the synthesis agent also writes, in a node of its own.
NODES: Final = {
    **{name: name for name in ("router", "planner", "retrieval", "synthesis", "fallback", "tools")},
    **{"draft": "writer", "validation": "validator", HUMAN: HUMAN},
}
MOST_PASSES: Final = 80  # of the graph: a decision passes the supervisor, and agents up to twice
LLM_SUPERVISOR: Final = "llm_supervisor"
_ROW: Final = np.zeros(1, np.int64)
_HANDING_OVER_S: Final = 0.05  # between the end of the fallback and the hard deadline
_LEAST_FALLBACK_S: Final = 0.3  # that the fallback gets even if a policy has used up all the time
_MOST_STEP_TOKENS: Final = 48  # of a model that names a step

Task = dict[str, Any]  # agent, slot, limit_s and the arguments of the agent: plain data
# Asks a person: "before" or "after", the node, and the route, plan or answer there is to see.
# Returns whether to go on; it may be a coroutine function.
Ask = Callable[[str, str, Any], Any]


class WallClock:
    """Time of a query as it passes; a person's time does not count."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.paused_s = 0.0

    def now_ms(self, state: CoordinationState) -> int:
        """Return the milliseconds since the query came."""
        return round(1000.0 * (time.monotonic() - self._began_s - self.paused_s))

    def begin(self, action: int, state: CoordinationState) -> None:
        """Note that an action begins."""

    def action_ms(self, action: int, reports: Sequence[Report], state: CoordinationState) -> int:
        """Return the milliseconds that an action took."""
        return max(self.now_ms(state) - int(state.elapsed_ms[0]) - int(state.setup_ms[0]), 0)

    async def wait(self, seconds: float) -> None:
        """Wait before a retry."""
        await asyncio.sleep(seconds)


class VirtualClock(WallClock):
    """Time by the rules of the team: what the calls of an action take on its server."""

    def now_ms(self, state: CoordinationState) -> int:
        """See `WallClock`."""
        return int(state.elapsed_ms[0])

    def action_ms(self, action: int, reports: Sequence[Report], state: CoordinationState) -> int:
        """See `WallClock`."""
        settings = state.settings
        alone = {
            rules.FALLBACK: settings.fallback_s,
            rules.TRIM: settings.trim_s,
            rules.REWRITE: settings.search_s.rewrite,
        }
        seconds = alone.get(action, sum(report.latency_s for report in reports))
        if rules.is_retrieval(action) and reports:
            read = np.array([[report.input_tokens for report in reports]])
            wrote = np.array([[report.output_tokens for report in reports]])
            wave_s = float(rules.wave_s(read, wrote, settings.server, state.max_num_seqs)[0])
            strategy = STRATEGIES[int(rules.strategy_of(action))]
            seconds = wave_s + float(getattr(settings.search_s, strategy))
        late = action != rules.FALLBACK and any(r.failure == "timeout" for r in reports)
        return int(rules.milliseconds(settings.limits.call_timeout_s if late else seconds))

    async def wait(self, seconds: float) -> None:
        """See `WallClock`: the state counts the wait."""


class _GraphState(TypedDict):
    tasks: list[Task]  # what the supervisor sends out next; empty: nothing is left to do
    handoffs: Annotated[list[dict[str, Any]], operator.add]


@dataclass
class Session:
    """One query."""

    settings: CoordinationSettings  # constants of the team, with the limits of the query
    options: QuerySettings
    agents: Agents  # their work has the query and the history
    clock: WallClock
    decide: Callable[[CoordinationState], int]  # the policy; behind a model, where that decides
    context: ContextManager
    hint: int  # complexity by the query's words, a place in COMPLEXITIES
    refers: bool  # the query refers to an earlier turn
    log: EventLog
    ask: Ask | None = None  # asks a person at the points that the options name
    # What happened, in order, as plain data.
    decisions: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    handoffs: list[dict[str, Any]] = field(default_factory=list)
    overheads_ms: list[float] = field(default_factory=list)  # of decisions, less calls and waits
    ended: str = ""  # "stopped" (by a person) or "failed" (basic retrieval may not answer)

    def __post_init__(self) -> None:
        self.work: Work = self.agents.work
        self.state = CoordinationState(self.settings, 1, self.settings.server.max_num_seqs)
        history = self.context.estimate_tokens(self.work.history)
        self.state.begin(_ROW, self.hint, self.refers, history, model=False)
        self._action: int | None = None  # under way
        self._waves: list[list[Task]] = []  # of the action, that are still to be sent out
        self._reports: list[Report] = []  # of the action
        self._thought = (0, 0)  # tokens of the supervisor's turn, if it is a model
        self._is_wave_begun = False
        self._idle_since_s = time.monotonic()  # the last agent came back; waits move it on

    async def play(self) -> None:
        """Play the query to its end.

        Raises:
            ConfigError: LangGraph is not installed.
        """
        graphs = require("langgraph.graph", "the coordination team", "teams")
        send_to = require("langgraph.types", "the coordination team", "teams").Send

        async def supervise(_: _GraphState) -> dict[str, Any]:
            tasks = await self._supervise()
            return {"tasks": tasks, "handoffs": self._handed_over(tasks)}

        async def work(task: Task) -> dict[str, Any]:
            return {"handoffs": await self._work(task)}

        def send(state: _GraphState) -> Any:
            return [send_to(NODES[task["agent"]], task) for task in state["tasks"]] or graphs.END

        graph: Any = graphs.StateGraph(_GraphState)
        graph.add_node(SUPERVISOR, supervise)
        for name in NODES.values():
            graph.add_node(name, work)
            graph.add_edge(name, graphs.END if name == HUMAN else SUPERVISOR)
        graph.add_edge(graphs.START, SUPERVISOR)
        graph.add_conditional_edges(SUPERVISOR, send, [*NODES.values(), graphs.END])
        begun, limit = _GraphState(tasks=[], handoffs=[]), {"recursion_limit": MOST_PASSES}
        self.handoffs = list((await graph.compile().ainvoke(begun, limit))["handoffs"])

    # The supervisor

    async def _supervise(self) -> list[Task]:
        """Take back what came, decide until there is work to send out, and return it."""
        is_fine = not any(report.failure for report in self._reports)
        if self._waves and is_fine and self._left_s > 0.0 and not self.ended:
            for report in self._reports:
                if report.agent == "draft":  # what comes next reads it
                    self.work.draft, self.work.documents = report.value
            return self._waves.pop(0)
        while not self.ended:
            if self._action is not None:
                self._join(self._action)
            if self.state.over[0]:
                return [_task(HUMAN)]
            self._action = await self._next_action()
            self.clock.begin(self._action, self.state)
            if self._action == rules.FALLBACK and not self.options.fallback_to_basic_rag:
                self.ended = "failed"
                break
            self._waves = self._waves_of(self._action)
            if self._waves:
                return self._waves.pop(0)
        return []

    async def _next_action(self) -> int:
        """Ask the policy, unless the fallback is forced; returns what is carried out."""
        state, options = self.state, self.options
        if len(state.forced(_ROW)):
            self._decided(rules.FALLBACK, forced=REASONS[int(state.reason[0])])
            return int(rules.FALLBACK)
        action, thought_ms = int(rules.FALLBACK), 0
        if options.enable_multi_agent and options.policy == LLM_SUPERVISOR:
            began_s = time.monotonic()
            with suppress(TimeoutError):  # a model has what is left for agents
                async with asyncio.timeout(self._left_s):
                    action = await self._named_by_model()
            self._idle_since_s += time.monotonic() - began_s  # no overhead of the graph
            thought_ms = round(1000.0 * (time.monotonic() - began_s))
        elif options.enable_multi_agent:
            action = self.decide(state)
        retries = int(state.retries[0])
        done = int(state.decide(_ROW, np.array([action]))[0])
        state.setup_ms[0] += thought_ms
        state.overhead_ms[0] += thought_ms
        if done != rules.FALLBACK and self._left_s <= 0.0:
            done = rules.NOTHING
        self._decided(action, refused=done != action)
        if int(state.retries[0]) > retries:
            backoff_s = float(rules.backoff_s(state.retries[:1], self.settings)[0])
            wait_s = min(backoff_s, self._left_s)
            await self.clock.wait(wait_s)
            self._idle_since_s += wait_s
        return done

    async def _named_by_model(self) -> int:
        """Ask the model for the next step; the policy decides where it names none that is open."""
        state, self._thought = self.state, (0, 0)

        def name(names: Sequence[str], place: Any) -> str:
            return names[int(place)] if place >= 0 else "unknown"

        failed = [agent for agent, has in zip(AGENTS, state.failed[0], strict=True) if has]
        facts: dict[str, Any] = {
            "complexity": name(COMPLEXITIES, state.complexity[0]),
            "strategy": name(STRATEGIES, state.strategy[0]),
            "needs planning": bool(state.needs_planning[0]),
            "searches that wait": int(state.pending[0]),
            "passages": int(state.docs[0]),
            "merged": bool(state.merged[0]),
            "answer written": bool(state.drafted[0]),
            "answer validated": bool(state.judged[0]),
            "answer valid": bool(state.valid[0]),
            "failed agents": ", ".join(failed) or "none",
            "seconds": int(state.elapsed_ms[0]) / 1000.0,
            "seconds at most": self.settings.limits.hard_s,
        }
        names = self._open_names()
        system, user, schema = prompts.ask_supervisor(self.work.query, facts, names)
        try:
            reply = await self.agents.service.acall(
                system, user, WAY, _MOST_STEP_TOKENS, schema, agent=SUPERVISOR
            )
        except (LLMError, BudgetError) as error:
            reason = str(error)
        else:
            self._thought = (reply.input_tokens, reply.output_tokens)
            step = (json_object(reply.content) or {}).get("step")
            if step in names:
                return rules.NAMES.index(str(step))
            reason = f"no open step: {reply.content[:100]}"
        self.log.append("supervisor_failed", {"reason": reason})
        return self.decide(state)

    def _open_names(self) -> list[str]:
        return [rules.NAMES[i] for i in np.flatnonzero(self.state.mask[0])]

    def _decided(self, action: int, **more: Any) -> None:
        """Write a decision and what it was based on."""
        state = self.state
        step = {
            "iteration": int(state.iteration[0]),
            "action": rules.NAMES[action],
            "elapsed_ms": int(state.elapsed_ms[0]),
            "context_tokens": int(state.context[0]),
            "docs": int(state.docs[0]),
            "pending": int(state.pending[0]),
            **{key: value for key, value in more.items() if value},
        }
        self.decisions.append(step)
        self.log.append("decision", {**step, "open": self._open_names()})

    def _waves_of(self, action: int) -> list[list[Task]]:
        """Return the tasks of an action, in waves that follow one another."""
        work, drafted = self.work, bool(self.state.drafted[0])
        if rules.is_retrieval(action):  # for sub-tasks that wait; for all if none does
            passages = self.settings.passages
            is_wave = action >= rules.PARALLEL and not work.is_sequential
            width = self.settings.limits.parallel_calls if is_wave else 1
            strategy = STRATEGIES[int(rules.strategy_of(action))]
            top_k = passages.subtask if work.pending else passages.whole
            tasks = [
                _task("retrieval", slot, sub_task=question, strategy=strategy, top_k=top_k)
                for slot, question in enumerate(work.pending[:width] or [work.query])
            ]
            return [tasks] if self.options.parallel_tool_calls else [[task] for task in tasks]
        forwards = self.options.create_forward_message_tool
        writes = not drafted or action == rules.REGENERATE
        writes |= action == rules.ANSWER and not forwards
        mends = drafted and action in (rules.ANSWER, rules.REGENERATE)
        draft = [[_task("draft", mend=mends)]] if writes else []
        return {
            rules.ROUTE: [[_task("router")]],
            rules.PLAN: [[_task("planner")]],
            rules.REWRITE: [[_task("tools", tool="rewrite")]],
            rules.SYNTHESIZE: [[_task("synthesis")]],
            rules.VALIDATE: [*draft, [_task("validation")]],
            rules.TRIM: [[_task("tools", tool="trim")]],
            rules.ANSWER: draft,
            rules.REGENERATE: draft,
            rules.FALLBACK: [[_task("fallback")]],
        }.get(action, [])

    @property
    def _left_s(self) -> float:
        """Seconds from now until the fallback must begin; 0 where it must have."""
        now_ms = np.array([self.clock.now_ms(self.state)])
        return int(rules.left_ms(now_ms, self.settings)[0]) / 1000.0

    def _handed_over(self, tasks: list[Task]) -> list[dict[str, Any]]:
        """Give tasks their limits, and return a message for each; all end by the one deadline."""
        limits, messages = self.settings.limits, []
        self._is_wave_begun = False
        for task in tasks:
            task["limit_s"] = min(limits.call_timeout_s, self._left_s)
            if task["agent"] == "fallback":
                left_s = limits.hard_s - self.clock.now_ms(self.state) / 1000.0
                task["limit_s"] = max(left_s - _HANDING_OVER_S, _LEAST_FALLBACK_S)
            if task["agent"] == HUMAN:
                is_answer = REASONS[int(self.state.reason[0])] == "answer"
                author = "synthesis" if is_answer else "fallback"
                messages.append(self._message("forward", author, "user", self.work.draft))
            else:
                said = task.get("sub_task", self.work.query)
                messages.append(self._message("handoff", SUPERVISOR, NODES[task["agent"]], said))
        return messages

    def _message(self, kind: str, sender: str, receiver: str, content: str) -> dict[str, Any]:
        """Return a message of the coordination; the first 200 characters of it are kept."""
        fields = {"kind": kind, "sender": sender, "receiver": receiver}
        return {**fields, "iteration": int(self.state.iteration[0]), "content": content[:200]}

    # The agents

    async def _work(self, task: Task) -> list[dict[str, Any]]:
        """Carry out a task; its report waits for the supervisor."""
        agent, node = task["agent"], NODES[task["agent"]]
        if node in self.options.interrupt_before:
            await self._pause("before", node, self.work.draft)
        if agent == HUMAN or self.ended:
            return []
        if not self._is_wave_begun:  # what passed since the last agent: supervisor and graph
            self._is_wave_begun = True
            took_ms = 1000.0 * (time.monotonic() - self._idle_since_s)
            limit_ms = self.options.agent_decision_timeout_ms
            self.overheads_ms.append(took_ms)
            if took_ms > limit_ms:
                self.log.append("slow_decision", {"overhead_ms": took_ms, "limit_ms": limit_ms})
        report = await self.agents.perform(task) if agent != "tools" else self._use(task["tool"])
        self._reports.append(report)
        self._idle_since_s = max(self._idle_since_s, report.ended_s)
        if report.failure:
            event = {
                "agent": AGENT_OF.get(agent, agent),
                "task": agent,
                "iteration": int(self.state.iteration[0]),
                "failure": report.failure,
                "message": report.message,
                "after_s": round(report.ended_s - report.began_s, 3),
            }
            self.failures.append(event)
            self.log.append("agent_failed", event)
        elif node in self.options.interrupt_after:
            await self._pause("after", node, report.value)
        if not self.options.add_handoff_back_messages:
            return []
        said = report.failure or type(report.value).__name__
        return [self._message("handoff_back", node, SUPERVISOR, said)]

    def _use(self, tool: str) -> Report:
        """Note that questions are rewritten from now on, or trim the conversation."""
        report = Report("tools", value=tool)
        if tool == "trim":
            history = self.work.history
            others = int(self.state.context[0]) - self.context.estimate_tokens(history)
            target = self.settings.context.trim_to_tokens - others
            report.value = self.context.trim(history, target)
        report.ended_s = time.monotonic()
        return report

    async def _pause(self, when: str, node: str, value: Any) -> None:
        """Ask a person whether to go on; their time does not count."""
        if self.ask is None:
            return
        began_s = time.monotonic()
        goes_on = self.ask(when, node, value)
        goes_on = await goes_on if isinstance(goes_on, Awaitable) else goes_on
        took_s = time.monotonic() - began_s
        self._idle_since_s += took_s
        self.clock.paused_s += took_s
        event = {"when": when, "node": node, "goes_on": bool(goes_on), "s": took_s}
        self.log.append("pause", event)
        if not goes_on:
            self.ended = "stopped"

    def _join(self, action: int) -> None:
        """Record the outcome of the action under way, and put its results into the product."""
        reports, state = sorted(self._reports, key=lambda report: report.slot), self.state
        self._action, self._reports = None, []
        known = {doc.doc_id for result in self.work.found for doc in result.documents}
        handoff = self.settings.tokens.handoff if self.options.add_handoff_back_messages else 0
        outcome = outcome_of(action, reports, known, handoff)
        outcome.prompt[0] += self._thought[0]
        outcome.completion[0] += self._thought[1]
        self._thought = (0, 0)
        outcome.ms[0] = self.clock.action_ms(action, reports, state)
        left_ms = int(rules.left_ms(state.elapsed_ms, self.settings)[0])
        needed_ms = int(state.setup_ms[0]) + int(outcome.ms[0])
        is_lost = action != rules.FALLBACK and needed_ms >= left_ms
        state.take(_ROW, np.array([action]), outcome)
        if is_lost and reports:
            late = [report.agent for report in reports if not report.failure]
            self.log.append("late", {"agents": late, "needed_ms": needed_ms, "left_ms": left_ms})
        for report in () if is_lost else reports:
            self.work.keep(report)


def _task(agent: str, slot: int = 0, **arguments: Any) -> Task:
    return {"agent": agent, "slot": slot, **arguments}


def outcome_of(
    action: int, reports: Sequence[Report], known: set[str], handoff_tokens: int
) -> Outcome:
    """Return what the reports of an action amount to; its time is left at 0.

    Args:
        action: 0-14, or NOTHING.
        reports: In the order of their slots.
        known: Documents that were found before; those of the reports are added.
        handoff_tokens: Of the message that each agent returns with.
    """
    outcome, searches = Outcome.empty(1), []
    outcome.prompt[0] = sum(report.input_tokens for report in reports)
    outcome.completion[0] = outcome.context[0] = sum(report.output_tokens for report in reports)
    for report in reports:
        if action == rules.FALLBACK:  # it ends the query, whatever came of it
            for document in () if report.failure else report.value[1]:
                outcome.context[0] += estimate_tokens(document.text)
            continue
        if report.agent != "tools":
            outcome.context[0] += handoff_tokens
        if report.failure:
            outcome.failed[0] = AGENTS.index(AGENT_OF.get(report.agent, report.agent))
            failure = rules.FAILURES.index(report.failure)
            outcome.failure[0] = max(outcome.failure[0], failure)
        outcome.drafted[0] |= report.agent == "draft" and not report.failure
        match report.value:
            case Route() as route:
                outcome.strategy[0] = STRATEGIES.index(route.strategy)
                outcome.complexity[0] = COMPLEXITIES.index(route.complexity)
                outcome.needs_planning[0] = route.needs_planning
                outcome.confidence[0] = route.confidence
            case Plan() as plan:
                outcome.subtasks[0] = len(plan.sub_tasks)
            case Retrieved() as result:
                searches.append(result)
                outcome.docs[0] += len(result.documents)
                for document in result.documents:
                    outcome.context[0] += estimate_tokens(document.text)
                    outcome.duplicates[0] += document.doc_id in known
                    known.add(document.doc_id)
            case Validation() as verdict:
                outcome.judged[0], outcome.valid[0] = True, verdict.valid
                outcome.verdict[0] = verdict.confidence
                for issue in verdict.issues:
                    outcome.issues[0, ISSUES.index(issue.type)] += 1
                    grade = 1 + SEVERITIES.index(issue.severity)
                    outcome.severity[0] = max(outcome.severity[0], grade)
            case Trimmed() as trimmed:
                outcome.context[0] = trimmed.tokens_after - trimmed.tokens_before
    if searches:
        outcome.answered[0] = len(searches)
        outcome.score[0] = sum(result.mean_score for result in searches) / len(searches)
    return outcome


def decider(
    options: QuerySettings, settings: CoordinationSettings
) -> Callable[[CoordinationState], int]:
    """Return the policy of a query as a function of the state; the model has one behind it.

    Raises:
        ConfigError: The policy is not known.
    """
    name = QuerySettings().policy if options.policy == LLM_SUPERVISOR else options.policy
    policy = resolve_policy(name, family="coordination")
    policy.reset(CoordinationSpec(settings, settings.server.max_num_seqs), [0])

    def decide(state: CoordinationState) -> int:
        context = coordination_contexts(state, _ROW)
        return int(policy.act_batch(observe(state, _ROW), context, _ROW)[0])

    return decide
