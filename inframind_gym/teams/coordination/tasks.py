"""Tasks of an action: who is called, with what; those of a wave are sent out together."""

from __future__ import annotations

from typing import Any

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.graph import NODES, Task
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.settings import STRATEGIES, CoordinationSettings
from inframind_gym.teams.coordination.work import Work


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
