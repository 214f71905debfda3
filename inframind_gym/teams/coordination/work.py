"""Product of the team so far: how results of agents get into it, and what is done next.

The tasks of a wave are sent out together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.contracts import Document, Plan, Retrieved, Route, Validation
from inframind_gym.teams.coordination.graph import NODES, Task
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.reports import Report
from inframind_gym.teams.coordination.settings import STRATEGIES, CoordinationSettings


@dataclass(slots=True)
class Work:
    """Product of the team so far.

    Attributes:
        query: Of the user.
        history: Earlier turns, as far as they are kept.
        withheld: Those of them that the screen kept back, with the reason.
        route, plan, validation: Of the agents; None before.
        found: Results of retrieval, one a search.
        is_rewritten: Searches ask for rewritten forms of their questions as well.
        ranked: Documents by the synthesis agent, the most useful first.
        documents: Sources of the draft, in the order of their numbers.
        draft: Answer; "" before there is one.
        missing: Sub-tasks without documents, by the synthesis agent.
        pending: Sub-tasks that wait for a search.
    """

    query: str
    history: list[Mapping[str, Any]] = field(default_factory=list)
    withheld: tuple[tuple[str, str], ...] = ()
    route: Route | None = None
    plan: Plan | None = None
    found: list[Retrieved] = field(default_factory=list)
    is_rewritten: bool = False
    ranked: tuple[Document, ...] = ()
    documents: tuple[Document, ...] = ()
    draft: str = ""
    validation: Validation | None = None
    missing: tuple[str, ...] = ()
    pending: list[str] = field(default_factory=list)

    @property
    def sub_tasks(self) -> tuple[str, ...]:
        """Sub-tasks of the plan; without one the query itself."""
        return self.plan.sub_tasks if self.plan is not None else (self.query,)

    @property
    def is_sequential(self) -> bool:
        """True if a sub-task of the plan needs what an earlier one finds."""
        return self.plan is not None and self.plan.execution_order == "sequential"

    def keep(self, report: Report) -> None:
        """Put a result in its place; what rests on older ones goes."""
        value = report.value
        if report.failure:
            if report.agent == "fallback":
                self.draft, self.documents = "", ()
        elif report.agent == "router":
            self.route = value
        elif report.agent == "planner":
            self.plan, self.pending = value, list(value.sub_tasks)
        elif report.agent == "retrieval":
            self.found.append(value)
            if value.sub_task in self.pending:
                self.pending.remove(value.sub_task)
            self.draft, self.validation, self.ranked = "", None, ()
        elif report.agent == "synthesis":
            self.ranked = value.documents
            self.missing = tuple(value.synthesis_metadata["missing"])
        elif report.agent in ("draft", "fallback"):
            (self.draft, self.documents), self.validation = value, None
        elif report.agent == "validation":
            self.validation = value
        elif value == "rewrite":
            self.is_rewritten = True
        else:
            self.history = value.messages


def merged(found: Sequence[Retrieved]) -> tuple[list[Document], int]:
    """Return the documents of searches in turn, each once, ten at most; the number of others."""
    lists = [result.documents for result in found]
    longest = max(map(len, lists), default=0)
    in_turn = [each[i] for i in range(longest) for each in lists if i < len(each)]
    once = {document.doc_id: document for document in reversed(in_turn)}
    order = list(dict.fromkeys(document.doc_id for document in in_turn))
    return [once[doc_id] for doc_id in order][:10], len(in_turn) - len(order)


def waves_of(
    action: int,
    work: Work,
    is_drafted: bool,
    options: QuerySettings,
    settings: CoordinationSettings,
) -> list[list[Task]]:
    """Return the tasks of an action, in waves that follow one another.

    Args:
        action: 0-14, or NOTHING.
        work: Product so far.
        is_drafted: There is an answer.
        options: Settings of the query.
        settings: Constants of the team.
    """
    if rules.is_retrieval(action):
        return _searches(action, work, options, settings)
    write = [task_of("draft", mend=action == rules.REGENERATE)]
    if action == rules.ANSWER and is_drafted and not options.create_forward_message_tool:
        return [[task_of("draft", mend=True)]]
    waves: dict[int, list[list[Task]]] = {
        rules.ROUTE: [[task_of("router")]],
        rules.PLAN: [[task_of("planner")]],
        rules.REWRITE: [[task_of("tools", tool="rewrite")]],
        rules.SYNTHESIZE: [[task_of("synthesis")]],
        rules.VALIDATE: [*([] if is_drafted else [write]), [task_of("validation")]],
        rules.TRIM: [[task_of("tools", tool="trim")]],
        rules.ANSWER: [] if is_drafted else [write],
        rules.REGENERATE: [write],
        rules.FALLBACK: [[task_of("fallback")]],
    }
    return waves.get(action, [])


def _searches(
    action: int, work: Work, options: QuerySettings, settings: CoordinationSettings
) -> list[list[Task]]:
    """Return searches for the sub-tasks that wait; for the whole question if none does."""
    strategy, passages = STRATEGIES[int(rules.strategy_of(action))], settings.passages
    is_wave = action >= rules.PARALLEL and not work.is_sequential
    width = settings.limits.parallel_calls if is_wave else 1
    top_k = passages.subtask if work.pending else passages.whole
    tasks = [
        task_of("retrieval", slot, sub_task=question, strategy=strategy, top_k=top_k)
        for slot, question in enumerate(work.pending[:width] or [work.query])
    ]
    return [tasks] if options.parallel_tool_calls else [[task] for task in tasks]


def task_of(agent: str, slot: int = 0, **arguments: Any) -> Task:
    """Return a task as plain data.

    Args:
        agent: Who works.
        slot: Place among those that are sent out together.
        arguments: Of the agent.
    """
    place = {"agent": agent, "node": NODES[agent], "slot": slot}
    return {**place, **arguments, "context": {"slot": slot}}
