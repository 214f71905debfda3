"""The graph of the team: a supervisor, its agents, and the way back; a person where one is wanted.

With LangGraph (extra `teams`) it is a StateGraph whose supervisor sends tasks with `Send`, so that
tasks sent out together run at the same time; without it the same nodes run in a plain loop.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

from inframind_gym.errors import ConfigError
from inframind_gym.teams.llm.service import EventLog

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.session import Session

SUPERVISOR: Final = "supervisor"
HUMAN: Final = "human"  # gives the answer to the user
# Nodes by the agents that work there; the synthesis agent also writes, in a node of its own.
NODES: Final = {
    "router": "router",
    "planner": "planner",
    "retrieval": "retrieval",
    "synthesis": "synthesis",
    "draft": "writer",
    "validation": "validator",
    "fallback": "fallback",
    "tools": "tools",
}
_THREAD: Final = "query"  # name of the one conversation in a checkpoint
# Passes of the graph: a decision is a pass of the supervisor and up to two of agents.
MOST_PASSES: Final = 80

Task = dict[str, Any]  # agent, slot and the arguments of `Workers.perform`; plain data


class GraphState(TypedDict):
    """State that the graph hands on.

    Attributes:
        tasks: What the supervisor sends out next; empty: nothing is left to do.
        handoffs: Messages of the coordination, in order.
    """

    tasks: list[Task]
    handoffs: Annotated[list[dict[str, Any]], operator.add]


@dataclass(frozen=True, slots=True)
class Pause:
    """A point at which a person is asked.

    Attributes:
        when: Before or after the node.
        node: "router", "planner", "validator" or "human".
        value: What there is to see: route, plan, draft or answer.
    """

    when: Literal["before", "after"]
    node: str
    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A person's word at a pause.

    Attributes:
        goes_on: False ends the query without an answer.
        value: In place of what there was, a route, a plan (or their fields) or a text; None keeps
            it. An answer that a person changes is no longer validated.
    """

    goes_on: bool = True
    value: Any = None


Ask = Callable[[Pause], Reply | Awaitable[Reply]]
TimedAsk = Callable[[Pause], Awaitable[Reply]]


def has_langgraph() -> bool:
    """Return True where LangGraph is installed."""
    return find_spec("langgraph") is not None


async def play(
    player: Session,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    ask: TimedAsk | None = None,
) -> list[dict[str, Any]]:
    """Play a query to its end and return the messages of the coordination.

    Args:
        player: Does the work of the nodes.
        before, after: Nodes at which a person is asked.
        ask: Asks; without it nobody is asked.
    """
    run = _langgraph if has_langgraph() else _plain_loop
    if ask is None:
        return await run(player, frozenset(), frozenset(), _nobody)
    return await run(player, frozenset(before), frozenset(after), ask)


async def _nobody(at: Pause) -> Reply:
    return Reply()


def timed(ask: Ask | None, pause: Callable[[float], None], log: EventLog) -> TimedAsk | None:
    """Return `ask` with its seconds told to `pause`: a person's time does not count."""
    if ask is None:
        return None

    async def timing(at: Pause) -> Reply:
        began_s = time.monotonic()
        answer = ask(at)
        reply = await answer if isinstance(answer, Awaitable) else answer
        if not isinstance(reply, Reply):
            raise ConfigError(f"reply at {at.node}: give a Reply, not {reply!r:.80}.")
        took_s = time.monotonic() - began_s
        pause(took_s)
        log.append(
            "pause", {"when": at.when, "node": at.node, "goes_on": reply.goes_on, "s": took_s}
        )
        return reply

    return timing


async def _asked(
    player: Session, ask: TimedAsk, when: Literal["before", "after"], node: str
) -> bool:
    """Ask a person and return whether the query goes on."""
    reply = await ask(Pause(when, node, player.seen(node)))
    if not reply.goes_on:
        player.stop()
    elif reply.value is not None:
        player.replace(node, reply.value)
    return reply.goes_on


async def _langgraph(
    player: Session, before: frozenset[str], after: frozenset[str], ask: TimedAsk
) -> list[dict[str, Any]]:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    async def supervise(_: GraphState) -> dict[str, Any]:
        tasks, handoffs = await player.supervise()
        return {"tasks": tasks, "handoffs": handoffs}

    async def work(task: Task) -> dict[str, Any]:
        return {"handoffs": await player.work(task)}

    def send(state: GraphState) -> Any:
        return [Send(task["node"], task) for task in state["tasks"]] or END

    graph: Any = StateGraph(GraphState)
    graph.add_node(SUPERVISOR, supervise)
    names = (*NODES.values(), HUMAN)
    for name in names:
        graph.add_node(name, work)
        graph.add_edge(name, END if name == HUMAN else SUPERVISOR)
    graph.add_edge(START, SUPERVISOR)
    graph.add_conditional_edges(SUPERVISOR, send, [*names, END])
    options: dict[str, Any] = {"recursion_limit": MOST_PASSES}
    given: Any = GraphState(tasks=[], handoffs=[])
    if not before and not after:
        state = await graph.compile().ainvoke(given, options)
        return list(state["handoffs"])
    app = graph.compile(
        checkpointer=InMemorySaver(), interrupt_before=[*before], interrupt_after=[*after]
    )
    options["configurable"] = {"thread_id": _THREAD}
    state = await app.ainvoke(given, options)
    while (stopped := await app.aget_state(options)).next:
        waits = stopped.next[0]
        is_before = waits != SUPERVISOR
        node = waits if is_before else state["tasks"][-1]["node"]
        if not await _asked(player, ask, "before" if is_before else "after", node):
            break
        state = await app.ainvoke(None, options)
    return list(state["handoffs"])


async def _plain_loop(
    player: Session, before: frozenset[str], after: frozenset[str], ask: TimedAsk
) -> list[dict[str, Any]]:
    handoffs: list[dict[str, Any]] = []
    while True:
        tasks, told = await player.supervise()
        handoffs += told
        if not tasks:
            return handoffs
        node = tasks[0]["node"]
        if node in before and not await _asked(player, ask, "before", node):
            return handoffs
        for back in await asyncio.gather(*map(player.work, tasks)):
            handoffs += back
        if node == HUMAN:
            return handoffs
        if node in after and not await _asked(player, ask, "after", node):
            return handoffs


def message(
    kind: Literal["handoff", "handoff_back", "forward"],
    sender: str,
    receiver: str,
    iteration: int,
    content: str,
) -> dict[str, Any]:
    """Return a message of the coordination as plain data.

    Args:
        kind: "handoff" to an agent, "handoff_back" to the supervisor, or "forward" of an agent's
            message to the user as it is.
        sender, receiver: Who hands over, and to whom.
        iteration: Decision that it belongs to, from 1.
        content: What is handed over; its first 200 characters are kept.
    """
    fields = {"kind": kind, "sender": sender, "receiver": receiver, "iteration": iteration}
    return {**fields, "content": content[:200]}
