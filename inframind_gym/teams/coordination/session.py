"""One query under the supervisor: a graph of agents, and the state by the shared rules.

The supervisor keeps the same `CoordinationState` as the environment, and asks any coordination
policy. What an agent hands back becomes an `Outcome`; nothing else changes the state. The engine is
LangGraph: the supervisor of a StateGraph sends tasks with `Send`; those of a wave run at once.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, TypedDict

import numpy as np

from inframind_gym.envs.coordination import observe
from inframind_gym.errors import require
from inframind_gym.policies import resolve_policy
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.agents import AGENT_OF, Agents, Report
from inframind_gym.teams.coordination.prompts import ContextManager
from inframind_gym.teams.coordination.rules import REASONS, CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    STRATEGIES,
    CoordinationSettings,
    QuerySettings,
)

SUPERVISOR: Final = "supervisor"
HUMAN: Final = "human"  # gives the answer to the user
# Nodes by the tasks that are done there; the synthesis agent also writes, in a node of its own.
NODES: Final = {
    **{name: name for name in ("router", "planner", "retrieval", "synthesis", "fallback", "tools")},
    **{"draft": "writer", "validation": "validator", HUMAN: HUMAN},
}
MOST_PASSES: Final = 80  # of the graph: a decision passes the supervisor, and agents up to twice
_ROW: Final = np.zeros(1, np.int64)
_HANDING_OVER_S: Final = 0.05  # between the end of the fallback and the hard deadline
_LEAST_FALLBACK_S: Final = 0.3  # that the fallback gets even if a policy has used up all the time

Task = dict[str, Any]  # agent, slot, limit_s and the arguments of the agent: plain data
# Asks a person: "before" or "after", the node, and the route, plan or answer there is to see.
# Returns whether to go on; it may be a coroutine function.
Ask = Callable[[str, str, Any], Any]


class _GraphState(TypedDict):
    tasks: list[Task]  # what the supervisor sends out next; empty: nothing is left to do
    handoffs: Annotated[list[dict[str, Any]], operator.add]


class Session:
    """One query under the supervisor, whose `agents` have its work.

    Where answers are simulated, its time is by the rules of the team: what the calls of an action
    take on the team's server. Else it is real, less the time that a person takes who is asked.
    """

    def __init__(
        self,
        settings: CoordinationSettings,
        options: QuerySettings,
        agents: Agents,
        hint: int,
        refers: bool,
        ask: Ask | None = None,
    ) -> None:
        self.settings, self.options, self.agents, self.ask = settings, options, agents, ask
        self.log, self.work = agents.log, agents.work
        self.context = ContextManager(settings.context)
        self.state = CoordinationState(settings, 1)
        history = self.context.estimate_tokens(self.work.history)
        self.state.begin(_ROW, hint, refers, history, model=False)
        self.policy = resolve_policy(options.policy, family="coordination")
        self.policy.reset(settings, [0])
        # What happened, in order, as plain data.
        self.decisions: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.handoffs: list[dict[str, Any]] = []
        self.overheads_ms: list[float] = []  # of decisions, less calls and waits
        self.ended = ""  # "stopped" (by a person) or "failed" (basic retrieval may not answer)
        self.began_s = time.monotonic()  # a pause moves it on
        self._action: int | None = None  # under way
        self._waves: list[list[Task]] = []  # of the action, that are still to be sent out
        self._reports: list[Report] = []  # of the action
        self._is_wave_begun = False
        self._idle_since_s = self.began_s  # the last agent came back; waits move it on

    async def play(self) -> None:
        """Play the query to its end."""
        graphs = require("langgraph.graph", "the coordination team", "teams")
        send_to = require("langgraph.types", "the coordination team", "teams").Send

        def send(state: _GraphState) -> Any:
            return [send_to(NODES[task["agent"]], task) for task in state["tasks"]] or graphs.END

        graph: Any = graphs.StateGraph(_GraphState)
        graph.add_node(SUPERVISOR, self._supervise)
        for name in NODES.values():
            graph.add_node(name, self._work)
            graph.add_edge(name, graphs.END if name == HUMAN else SUPERVISOR)
        graph.add_edge(graphs.START, SUPERVISOR)
        graph.add_conditional_edges(SUPERVISOR, send, [*NODES.values(), graphs.END])
        begun, limit = _GraphState(tasks=[], handoffs=[]), {"recursion_limit": MOST_PASSES}
        self.handoffs = list((await graph.compile().ainvoke(begun, limit))["handoffs"])

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

    def action_ms(self, action: int, reports: Sequence[Report]) -> int:
        """Return the milliseconds that an action took."""
        settings, state = self.settings, self.state
        if not self.agents.service.is_simulated:
            return max(self.now_ms - int(state.elapsed_ms[0]) - int(state.setup_ms[0]), 0)
        seconds = sum(report.latency_s for report in reports)
        if rules.is_retrieval(action) and reports:
            read = np.array([[report.input_tokens for report in reports]])
            wrote = np.array([[report.output_tokens for report in reports]])
            wave_s = float(rules.wave_s(read, wrote, settings.server)[0])
            seconds = wave_s + settings.search_s[STRATEGIES[int(rules.strategy_of(action))]]
        if any(report.failure == "timeout" for report in reports):
            seconds = settings.limits.call_timeout_s
        alone = {rules.TRIM: settings.trim_s, rules.REWRITE: settings.search_s["rewrite"]}
        alone[rules.FALLBACK] = settings.fallback_s
        return int(rules.milliseconds(alone.get(action, seconds)))

    # The supervisor

    def decide(self) -> int:
        """Return the policy's action."""
        seen = observe(self.state, _ROW), self.state.rows(_ROW)
        return int(self.policy.act_batch(*seen, _ROW)[0])

    async def _supervise(self, _: _GraphState) -> dict[str, Any]:
        """Send out the tasks of the next wave, all with limits that end by the one deadline."""
        limits, tasks, messages = self.settings.limits, await self._next_wave(), []
        self._is_wave_begun = False
        for task in tasks:
            task["limit_s"] = min(limits.call_timeout_s, self._left_s)
            if task["agent"] == "fallback":
                left_s = limits.hard_s - self.now_ms / 1000.0
                task["limit_s"] = max(left_s - _HANDING_OVER_S, _LEAST_FALLBACK_S)
            if task["agent"] == HUMAN:
                is_answer = REASONS[int(self.state.reason[0])] == "answer"
                author = "synthesis" if is_answer else "fallback"
                messages.append(self._message("forward", author, "user", self.work.draft))
            else:
                said = task.get("sub_task", self.work.query)
                messages.append(self._message("handoff", SUPERVISOR, NODES[task["agent"]], said))
        return {"tasks": tasks, "handoffs": messages}

    async def _next_wave(self) -> list[Task]:
        """Take back what came, and decide until there is work to send out."""
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
            self._action = action = await self._next_action()
            if action == rules.FALLBACK and not self.options.fallback_to_basic_rag:
                self.ended = "failed"
                break
            self._waves = self.waves_of(action)
            if self._waves:
                return self._waves.pop(0)
        return []

    async def _next_action(self) -> int:
        """Ask the policy, unless the fallback is forced; returns what is carried out."""
        state, retries = self.state, int(self.state.retries[0])
        if len(state.forced(_ROW)):
            self._decided(rules.FALLBACK, forced=REASONS[int(state.reason[0])])
            return int(rules.FALLBACK)
        action = self.decide() if self.options.enable_multi_agent else int(rules.FALLBACK)
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

    def _message(self, kind: str, sender: str, receiver: str, content: str) -> dict[str, Any]:
        fields = {"kind": kind, "sender": sender, "receiver": receiver}
        return {**fields, "iteration": int(self.state.iteration[0]), "content": content[:200]}

    # The agents

    async def _work(self, task: Task) -> dict[str, Any]:
        """Carry out a task; its report waits for the supervisor."""
        agent, node = task["agent"], NODES[task["agent"]]
        if node in self.options.interrupt_before:
            await self._pause("before", node, self.work.draft)
        if agent == HUMAN or self.ended:
            return {"handoffs": []}
        if not self._is_wave_begun:  # what passed since the last agent: supervisor and graph
            self._is_wave_begun = True
            took_ms = 1000.0 * (time.monotonic() - self._idle_since_s)
            limit_ms = self.options.agent_decision_timeout_ms
            self.overheads_ms.append(took_ms)
            if took_ms > limit_ms:
                self.log.append("slow_decision", {"overhead_ms": took_ms, "limit_ms": limit_ms})
        if agent == "tools":  # questions are rewritten from now on, or the conversation is trimmed
            report = Report("tools", value=task["tool"], ended_s=time.monotonic())
            if task["tool"] == "trim":
                history = self.work.history
                others = int(self.state.context[0]) - self.context.estimate_tokens(history)
                target = self.settings.context.trim_to_tokens - others
                report.value = self.context.trim(history, target)
        else:
            report = await self.agents.perform(task)
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
        said = report.failure or type(report.value).__name__
        back = [self._message("handoff_back", node, SUPERVISOR, said)]
        return {"handoffs": back if self.options.add_handoff_back_messages else []}

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

    def _join(self, action: int) -> None:
        """Record the outcome of the action under way, and put its results into the product."""
        reports, state = sorted(self._reports, key=lambda report: report.slot), self.state
        self._action, self._reports = None, []
        outcome, is_fallback = Outcome.empty(1), action == rules.FALLBACK
        outcome.ms[0] = self.action_ms(action, reports)
        outcome.prompt[0] = sum(report.input_tokens for report in reports)
        outcome.completion[0] = outcome.context[0] = sum(r.output_tokens for r in reports)
        left_ms = int(rules.left_ms(state.elapsed_ms, self.settings)[0])
        needed_ms = int(state.setup_ms[0]) + int(outcome.ms[0])
        is_lost = not is_fallback and needed_ms >= left_ms
        handoff = self.settings.tokens.handoff * self.options.add_handoff_back_messages
        for report in reports:
            if report.agent != "tools" and not is_fallback:  # the fallback ends the query
                outcome.context[0] += handoff
            if report.failure and not is_fallback:
                outcome.failed[0] = AGENTS.index(AGENT_OF.get(report.agent, report.agent))
                failure = rules.FAILURES.index(report.failure)
                outcome.failure[0] = max(outcome.failure[0], failure)
            if not is_lost:
                self.work.keep(report, outcome)
        outcome.score[:] /= np.maximum(outcome.answered, 1)
        state.take(_ROW, np.array([action]), outcome)
        if is_lost and reports:
            late = [report.agent for report in reports if not report.failure]
            self.log.append("late", {"agents": late, "needed_ms": needed_ms, "left_ms": left_ms})


def _task(agent: str, slot: int = 0, **arguments: Any) -> Task:
    return {"agent": agent, "slot": slot, **arguments}
