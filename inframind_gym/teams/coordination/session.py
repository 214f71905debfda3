"""One query under the supervisor: state by the shared rules, tasks for agents, their results.

The supervisor keeps the same `CoordinationState` as the environment, and asks any coordination
policy. What an agent hands back becomes an `Outcome`; nothing else changes the state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.audit import Audit
from inframind_gym.teams.coordination.clock import Clock, WallClock
from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.graph import HUMAN, SUPERVISOR, Task, message
from inframind_gym.teams.coordination.inputs import checked_reply
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.reports import Report, outcome_of
from inframind_gym.teams.coordination.settings import CoordinationSettings
from inframind_gym.teams.coordination.state import REASONS, CoordinationState
from inframind_gym.teams.coordination.work import Work, waves_of
from inframind_gym.teams.coordination.workers import Workers
from inframind_gym.teams.llm.service import EventLog, LLMService

_ROW: Final = np.zeros(1, np.int64)
_HANDING_OVER_S: Final = 0.05  # between the end of the fallback and the hard deadline
_LEAST_FALLBACK_S: Final = 0.3  # that the fallback gets even if a policy has used up all the time

Decider = Callable[[CoordinationState], int | Awaitable[int]]  # a policy that was reset


class Session:
    """One query. Its methods `supervise`, `work`, `seen`, `replace` and `stop` are the graph's.

    Args:
        settings: Constants of the team.
        options: Settings of the query.
        work: Product; has the query and the history.
        workers: The agents.
        clock: Time of the query.
        decide: The policy.
        context: Manager of the conversation.
        hint: Complexity by the query's words, a place in COMPLEXITIES.
        refers: The query refers to an earlier turn.
        max_num_seqs: Calls that the server carries out together.
        log: Where decisions and failures are written.
    """

    def __init__(
        self,
        settings: CoordinationSettings,
        options: QuerySettings,
        work: Work,
        workers: Workers,
        clock: Clock,
        decide: Decider,
        context: ContextManager,
        *,
        hint: int,
        refers: bool,
        max_num_seqs: int,
        log: EventLog,
    ) -> None:
        self.settings, self.options, self.product, self.clock = settings, options, work, clock
        self.state = CoordinationState(settings, 1, max_num_seqs)
        history = context.estimate_tokens(work.history)
        self.state.begin(_ROW, hint, refers, history, model=False)
        self.audit = Audit(log)
        self.was_stopped = self.is_refused = False
        self._workers, self._decide, self._context, self._log = workers, decide, context, log
        self._action: int | None = None  # under way
        self._waves: list[list[Task]] = []  # of the action, that are still to be sent out
        self._reports: list[Report] = []  # of the action
        self._thought = (0, 0)  # tokens of the supervisor's turn, if it is a model
        self._is_wave_begun = False

    # The supervisor

    async def supervise(self) -> tuple[list[Task], list[dict[str, Any]]]:
        """Take back what came, decide until there is work to send out, and return it."""
        is_fine = not any(report.failure for report in self._reports)
        if self._waves and is_fine and self._left_s > 0.0:
            for report in self._reports:
                if report.agent == "draft":  # what comes next reads it
                    self.product.draft, self.product.documents = report.value
            return self._sent(self._waves.pop(0))
        while True:
            if self._action is not None:
                self._join()
            if self.was_stopped or self.is_refused:
                return [], []
            if self.state.over[0]:
                return self._sent([{"agent": HUMAN, "node": HUMAN, "slot": 0}])
            self._action = await self._next_action()
            self.clock.begin(self._action, self.state)
            if self._action == rules.FALLBACK and not self.options.fallback_to_basic_rag:
                self.is_refused = True
                continue
            drafted = bool(self.state.drafted[0])
            given = (self.product, drafted, self.options, self.settings)
            self._waves = waves_of(self._action, *given)
            if self._waves:
                return self._sent(self._waves.pop(0))

    async def _next_action(self) -> int:
        """Ask the policy, unless the fallback is forced; returns what is carried out."""
        state = self.state
        if len(state.forced(_ROW)):
            self.audit.decided(state, rules.FALLBACK, forced=REASONS[int(state.reason[0])])
            return int(rules.FALLBACK)
        on = self.options.enable_multi_agent
        action, thought_ms = await self._chosen() if on else (int(rules.FALLBACK), 0)
        retries = int(state.retries[0])
        done = int(state.decide(_ROW, np.array([action]))[0])
        state.setup_ms[0] += thought_ms
        state.overhead_ms[0] += thought_ms
        if done != rules.FALLBACK and self._left_s <= 0.0:
            done = rules.NOTHING
        self.audit.decided(state, action, refused=done != action)
        if int(state.retries[0]) > retries:
            backoff_s = float(rules.backoff_s(state.retries[:1], self.settings)[0])
            wait_s = min(backoff_s, self._left_s)
            await self.clock.wait(wait_s)
            self.audit.idle_since_s += wait_s
        return done

    async def _chosen(self) -> tuple[int, int]:
        """Ask the policy; returns its action, and the milliseconds that a model thought about it.

        A model has what is left for agents; an action that comes later is the fallback.
        """
        chosen = self._decide(self.state)
        if not isinstance(chosen, Awaitable):
            return int(chosen), 0
        began_s, action = time.monotonic(), int(rules.FALLBACK)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_s):
                action = int(await chosen)
        took_s = time.monotonic() - began_s
        self.audit.idle_since_s += took_s  # no overhead of the graph
        self._thought = getattr(self._decide, "tokens", (0, 0))
        return action, round(1000.0 * took_s)

    @property
    def _left_s(self) -> float:
        """Seconds from now until the fallback must begin; 0 where it must have."""
        now_ms = np.array([self.clock.now_ms(self.state)])
        return int(rules.left_ms(now_ms, self.settings)[0]) / 1000.0

    def _limit_s(self, agent: str) -> float:
        """Return the seconds that an agent has from now on: all end by the one deadline."""
        limits = self.settings.limits
        if agent != "fallback":
            return min(limits.call_timeout_s, self._left_s)
        left_s = limits.hard_s - self.clock.now_ms(self.state) / 1000.0
        return max(left_s - _HANDING_OVER_S, _LEAST_FALLBACK_S)

    def _sent(self, tasks: list[Task]) -> tuple[list[Task], list[dict[str, Any]]]:
        """Return tasks, and a message for each that goes to an agent."""
        told, self._is_wave_begun = [], False
        for task in tasks:
            task["limit_s"] = self._limit_s(task["agent"])
            if task["node"] == HUMAN:
                told.append(self._message("forward", self._author, "user", self.product.draft))
            else:
                said = task.get("sub_task", self.product.query)
                told.append(self._message("handoff", SUPERVISOR, task["node"], said))
        return tasks, told

    @property
    def _author(self) -> str:
        """Who wrote the answer."""
        return "fallback" if REASONS[int(self.state.reason[0])] != "answer" else "synthesis"

    def _message(
        self,
        kind: Literal["handoff", "handoff_back", "forward"],
        sender: str,
        receiver: str,
        content: str,
    ) -> dict[str, Any]:
        return message(kind, sender, receiver, int(self.state.iteration[0]), content)

    # The agents

    async def work(self, task: Task) -> list[dict[str, Any]]:
        """Carry out a task; its report waits for the supervisor."""
        agent = task["agent"]
        if agent == HUMAN:
            return []
        if not self._is_wave_begun:
            self._is_wave_begun = True
            self.audit.resumed(self.options.agent_decision_timeout_ms)
        if agent == "tools":
            report = self._use_tool(task["tool"])
        else:
            report = await self._workers.perform(agent, task, task["limit_s"], task["slot"])
        self._reports.append(report)
        self.audit.came_back(report, int(self.state.iteration[0]))
        if not self.options.add_handoff_back_messages:
            return []
        said = report.failure or type(report.value).__name__
        return [self._message("handoff_back", task["node"], SUPERVISOR, said)]

    def _use_tool(self, tool: str) -> Report:
        began_s = time.monotonic()
        value: Any = tool
        if tool == "trim":
            history = self.product.history
            others = int(self.state.context[0]) - self._context.estimate_tokens(history)
            target = self.settings.context.trim_to_tokens - others
            value = self._context.trim(history, target)
        return Report("tools", 0, "", "", value, 0, 0, 0.0, began_s, time.monotonic())

    # Results

    def _join(self) -> None:
        """Record the outcome of the action under way, and put its results into the product."""
        assert self._action is not None
        action, reports, state = self._action, sorted(self._reports, key=_slot), self.state
        self._action, self._reports = None, []
        if self.is_refused:
            return
        known = {doc.doc_id for result in self.product.found for doc in result.documents}
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
            self._log.append("late", {"agents": late, "needed_ms": needed_ms, "left_ms": left_ms})
        if not is_lost:
            for report in reports:
                self.product.keep(report)

    # A person

    def seen(self, node: str) -> Any:
        """Return what a person sees at a node: the last result, or the draft."""
        if node in ("validator", HUMAN):
            return self.product.draft
        return self._reports[-1].value if self._reports else None

    def replace(self, node: str, value: Any) -> None:
        """Put a person's value in place of what there was; a new answer is not validated.

        Args:
            node: Where the person was asked.
            value: Answer (str), `Route` or `Plan`, or a mapping of their fields.

        Raises:
            ConfigError: The value is none of the node.
        """
        value = checked_reply(node, value, self.product.query)
        if isinstance(value, str):
            if value == self.product.draft:
                return
            self.product.draft, self.product.validation = value, None
            self.state.judged[0] = self.state.valid[0] = False
            value = (value, self.product.documents)
        if self._reports and not self._reports[-1].failure:
            self._reports[-1] = replace(self._reports[-1], value=value)

    def pause(self, took_s: float) -> None:
        """Take a person's time off the clock."""
        self.audit.idle_since_s += took_s
        if isinstance(self.clock, WallClock):
            self.clock.paused_s += took_s

    @property
    def service(self) -> LLMService:
        """Way to the model of this query alone."""
        return self._workers.service

    def stop(self) -> None:
        """End without an answer, at a person's word."""
        self.was_stopped = True


def _slot(report: Report) -> int:
    return report.slot
