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
from typing import Annotated, Any, Final, Literal, Protocol, TypedDict

from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination.contracts import Handoff
from inframind_gym.teams.llm.service import EventLog

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


class Player(Protocol):
    """What the nodes do; a `Session`."""

    async def supervise(self) -> tuple[list[Task], list[dict[str, Any]]]:
        """Take back what came, decide, and return tasks and messages."""
        ...

    async def work(self, task: Task) -> list[dict[str, Any]]:
        """Carry out a task and return messages."""
        ...

    def seen(self, node: str) -> Any:
        """Return what a person sees at a node."""
        ...

    def replace(self, node: str, value: Any) -> None:
        """Put a person's value in place of what there was."""
        ...

    def stop(self) -> None:
        """End without an answer, at a person's word."""
        ...


def has_langgraph() -> bool:
    """Return True where LangGraph is installed."""
    return find_spec("langgraph") is not None


async def play(
    player: Player,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    ask: Ask | None = None,
) -> list[dict[str, Any]]:
    """Play a query to its end and return the messages of the coordination.

    Args:
        player: Does the work of the nodes.
        before, after: Nodes at which a person is asked.
        ask: Asks; without it nobody is asked.
    """
    stops = (frozenset(before), frozenset(after)) if ask is not None else (frozenset(),) * 2
    run = _langgraph if has_langgraph() else _plain_loop
    return await run(player, *stops, ask)


def timed(ask: Ask | None, pause: Callable[[float], None], log: EventLog) -> Ask | None:
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


async def _asked(player: Player, ask: Ask, when: Literal["before", "after"], node: str) -> bool:
    """Ask a person and return whether the query goes on."""
    reply = ask(Pause(when, node, player.seen(node)))
    if isinstance(reply, Awaitable):
        reply = await reply
    if not reply.goes_on:
        player.stop()
    elif reply.value is not None:
        player.replace(node, reply.value)
    return reply.goes_on


async def _langgraph(
    player: Player, before: frozenset[str], after: frozenset[str], ask: Ask | None
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
        assert ask is not None
        if not await _asked(player, ask, "before" if is_before else "after", node):
            break
        state = await app.ainvoke(None, options)
    return list(state["handoffs"])


async def _plain_loop(
    player: Player, before: frozenset[str], after: frozenset[str], ask: Ask | None
) -> list[dict[str, Any]]:
    handoffs: list[dict[str, Any]] = []
    while True:
        tasks, told = await player.supervise()
        handoffs += told
        if not tasks:
            return handoffs
        node = tasks[0]["node"]
        if node in before and not await _asked(player, _there(ask), "before", node):
            return handoffs
        for back in await asyncio.gather(*map(player.work, tasks)):
            handoffs += back
        if node == HUMAN:
            return handoffs
        if node in after and not await _asked(player, _there(ask), "after", node):
            return handoffs


def _there(ask: Ask | None) -> Ask:
    assert ask is not None
    return ask


def message(kind: str, sender: str, receiver: str, iteration: int, content: str) -> dict[str, Any]:
    """Return a message of the coordination as plain data."""
    fields = {"kind": kind, "sender": sender, "receiver": receiver, "iteration": iteration}
    return Handoff.model_validate({**fields, "content": content[:200]}).model_dump()
