"""The state of an environment as plain numbers and words, read from its simulation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.server.telemetry import E2E, LOG_SCALE, QUEUE
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import PLAN, EnvState
from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workflow.workflow import remaining_budget_s
from inframind_gym.tasks import DOMAINS


class DecisionLog:
    """The last decisions of an episode, and its sums so far.

    Args:
        size: how many decisions to keep.
    """

    def __init__(self, size: int) -> None:
        self.entries: deque[tuple[np.void, NDArray[np.int64]]] = deque(maxlen=size)
        self.clear()

    def clear(self) -> None:
        """A new episode begins."""
        self.entries.clear()
        self.steps = 0
        self.reward = 0.0
        self.cost = 0.0

    def add(self, context: np.void, action: NDArray[np.int64], reward: float, cost: float) -> None:
        """Keep a decision.

        Args:
            context: its CONTEXT record.
            action: (a,) what was done.
            reward: of its step.
            cost: of its step.
        """
        self.entries.append((context.copy(), action.copy()))
        self.steps += 1
        self.reward += reward
        self.cost += cost


@dataclass(frozen=True)
class ServerView:
    """One server, now and as the router knows it from the last poll."""

    model: str  # alias
    gpu: str
    up: bool
    slots: int
    running: int
    waiting: int
    kv_frac: float  # share of the KV cache in use, 0..1
    polled_depth_req: float  # running + waiting at the last poll
    polled_e2e_s: float  # mean latency between polls; 0 before the first call was done


@dataclass(frozen=True)
class DecisionView:
    """One decision that was taken."""

    time_s: float
    query: int  # from 1
    role: str  # "planner" for a plan
    choice: str  # model, or topology
    detail: str  # strategy, or number of agents


@dataclass(frozen=True)
class WaitingView:
    """The decision that waits."""

    query: int  # from 1
    domain: str
    workflow: str  # topology and agents, or that a plan is due
    progress: str  # which call of which wave; empty for a plan
    role: str
    budget_s: float
    remaining_s: float  # of the budget, negative when late


@dataclass(frozen=True)
class View:
    """Everything that is shown."""

    title: str
    setting: tuple[str, ...]  # pool, workload, rate, scheduler, protocol
    time_s: float
    num_queries: int  # of the stream
    arrived: int
    in_flight: int
    polls: int
    telemetry_age_s: float
    waiting: WaitingView | None  # None: no decision waits, the episode is over or has not begun
    servers: tuple[ServerView, ...]
    decisions: tuple[DecisionView, ...]  # newest first
    steps: int  # of the episode, with its reward and cost so far
    reward: float
    cost: float
    completed: int  # the agent's queries that ended in the stream
    solved: int
    on_time: int  # within their own budget
    last: str  # what became of the last one; empty if there is none


@jit
def _remaining_s(params: EnvParams, state: EnvState) -> float:
    """Seconds that the query whose decision waits has left of its budget; 0 if none does."""
    stream = state.stream[0]
    if stream.live:
        return float(remaining_budget_s(params, state, 0, stream.slot, stream.node))
    return 0.0


def snapshot(
    simulation: Simulation, context: np.void, log: DecisionLog, rate_per_min: float
) -> View:
    """Read what there is to see of a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        context: CONTEXT of the decision that waits.
        log: what was decided before.
        rate_per_min: arrival rate of the stream.
    """
    stream = simulation.state.stream[0]
    remaining_s = _remaining_s(simulation.params, simulation.state)
    ended = simulation.state.completed[0, : stream["finished"]]
    ended = ended[ended["is_controlled"] == 1]
    return View(
        title=simulation.title,
        setting=(
            simulation.pool.name,
            simulation.workload.name,
            f"{rate_per_min:g} queries/min",
            simulation.scheduler,
            simulation.execution,
        ),
        time_s=float(stream["now_s"]),
        num_queries=int(stream["num_queries"]),
        arrived=int(stream["arrived"]),
        in_flight=int(stream["arrived"] - stream["finished"]),
        polls=int(stream["polls"]),
        telemetry_age_s=float(stream["now_s"] - stream["last_poll_s"]),
        waiting=_waiting(context, remaining_s) if stream["live"] else None,
        servers=_servers(simulation),
        decisions=tuple(_decision(simulation, *entry) for entry in reversed(log.entries)),
        steps=log.steps,
        reward=log.reward,
        cost=log.cost,
        completed=len(ended),
        solved=int(ended["solved"].sum()),
        on_time=int((ended["latency_s"] <= ended["budget_s"]).sum()),
        last=_outcome(ended[-1]) if len(ended) else "",
    )


def _servers(simulation: Simulation) -> tuple[ServerView, ...]:
    seen = simulation.seen(0)
    stream = simulation.state.stream[0]
    up = int(stream["models_up"]) if stream["num_queries"] else simulation.models_up
    return tuple(
        ServerView(
            model=model.alias,
            gpu=model.gpu,
            up=bool(up >> m & 1),
            slots=model.server.max_num_seqs,
            running=load.running,
            waiting=load.waiting,
            kv_frac=load.kv_frac,
            polled_depth_req=float(seen[QUEUE, m]) * simulation.pool.queue_norm,
            polled_e2e_s=float(np.expm1(seen[E2E, m] * LOG_SCALE)),
        )
        for m, (model, load) in enumerate(
            zip(simulation.pool.models, simulation.loads(0), strict=True)
        )
    )


def _waiting(context: np.void, remaining_s: float) -> WaitingView:
    plan = context["kind"] == PLAN
    agents = int(context["num_agents"])
    topology = (*TOPOLOGIES, CUSTOM)[context["topology"]]
    return WaitingView(
        query=int(context["query"]) + 1,
        domain=DOMAINS[context["domain"]],
        workflow="needs a plan"
        if plan
        else f"{topology}, {agents} agent{'s' if agents > 1 else ''}",
        progress=""
        if plan
        else f"call {context['node'] + 1} of {context['num_nodes']}, "
        f"wave {context['wave'] + 1} of {context['num_waves']}",
        role="planner" if plan else ROLES[context["role"]].name,
        budget_s=float(context["budget_s"]),
        remaining_s=remaining_s,
    )


def _decision(simulation: Simulation, context: np.void, action: NDArray[np.int64]) -> DecisionView:
    query, time_s = int(context["query"]) + 1, float(context["time_s"])
    if context["kind"] == PLAN:
        agents = int(action[1]) + 1
        return DecisionView(
            time_s,
            query,
            "planner",
            TOPOLOGIES[action[0]],
            f"{agents} agent{'s' if agents > 1 else ''}",
        )
    route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
    model, strategy = divmod(route, len(STRATEGIES))
    return DecisionView(
        time_s,
        query,
        ROLES[context["role"]].name,
        simulation.pool.models[model].alias,
        STRATEGIES[strategy],
    )


def _outcome(record: Any) -> str:
    solved = "solved" if record["solved"] else "not solved"
    return (
        f"query {record['query'] + 1} {solved} in {record['latency_s']:.1f} s "
        f"of {record['budget_s']:g} s"
    )
