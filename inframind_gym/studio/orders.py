"""Orders: what the page may start. They come from the network, so names are those of built-ins."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from inframind_gym.configs import (
    Fraction,
    NonNegativeInt,
    Positive,
    StrictModel,
    list_configs,
    within,
)
from inframind_gym.envs.routing.config import DEFAULT_POOL, DEFAULT_WORKLOAD
from inframind_gym.errors import unknown
from inframind_gym.policies.coordination import registry as coordination
from inframind_gym.policies.token_budget import registry as token_budget
from inframind_gym.teams.assignment.names import (
    ARRIVALS,
    ROUTERS,
    TIES,
    VARIANTS,
    Arrivals,
    Ties,
    Variant,
)
from inframind_gym.teams.coordination.faults import parse_fault
from inframind_gym.teams.coordination.options import MOST_QUERY_CHARS
from inframind_gym.teams.token_budget.order import MODES, Order

Source = Literal["simulation", "pool", "gateway"]
# Policies that play any workload by their name alone, without fitting, folder or arguments.
ROUTING: Final = (
    *("bid_price", "ppo_lagrangian", "budget_greedy", "lowest_expected_latency"),
    *("least_loaded", "linucb", "q_learning_load_tracker", "round_robin", "random"),
)
SUPERVISORS: Final = tuple(
    entry.name
    for entry in coordination.POLICIES.entries()
    if entry.name in coordination.names() and not entry.name.startswith("sb3")
)


def one_of(kind: str, known: tuple[str, ...]) -> AfterValidator:
    """Return a check that a name is among those that are known."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
        return name

    return AfterValidator(check)


def _fault(text: str) -> str:
    parse_fault(text)
    return text


class AssignmentOrder(StrictModel):
    """A training of the assignment team, see `teams.assignment.training.Options`."""

    iterations: Annotated[int, within(1, 2000)] = 50
    seed: NonNegativeInt = 0
    arrivals: Arrivals = "uniform"
    router: Annotated[str, one_of("router", ROUTERS)] = "q_learning"
    variant: Variant = "source"
    ties: Ties = "first"
    epsilon: Fraction = 1.0


class CoordinationOrder(StrictModel):
    """A question to the coordination team.

    Attributes:
        question: in words.
        policy: built-in supervisor.
        deadline_s: latest answer; None: the team's.
        fault: AGENT:KIND, calls that fail.
    """

    question: Annotated[str, Field(min_length=1, max_length=MOST_QUERY_CHARS)]
    policy: Annotated[str, one_of("policy", SUPERVISORS)] = "seed_supervisor"
    deadline_s: Annotated[float, within(0.1, 3600.0)] | None = None
    fault: Annotated[str, AfterValidator(_fault)] | None = None


class PoolOrder(StrictModel):
    """A pool to watch.

    Attributes:
        source: "simulation", or what the studio was started with: "pool" or "gateway".
        pool, workload: shipped ones, of a simulation.
        policy: built-in router.
        arrival_rate_per_min: queries.
        num_queries: of the stream.
        budget_s: latency budget; None: the workload's tiers.
        seed: of the stream.
        speed: simulated seconds a second; None: as fast as it goes.
        watch_s: how long live servers are watched.
        poll_s: between two looks at them.
    """

    source: Source = "simulation"
    pool: Annotated[str, one_of("pool", list_configs("pools"))] = DEFAULT_POOL
    workload: Annotated[str, one_of("workload", list_configs("workloads"))] = DEFAULT_WORKLOAD
    policy: Annotated[str, one_of("policy", ROUTING)] = "bid_price"
    arrival_rate_per_min: Annotated[float, within(0.1, 2000.0)] = 100.0
    num_queries: Annotated[int, within(1, 2000)] = 200
    budget_s: Positive | None = None
    seed: NonNegativeInt = 0
    speed: Annotated[float, within(0.1, 10_000.0)] | None = 20.0
    watch_s: Annotated[float, within(1.0, 86_400.0)] = 3600.0
    poll_s: Annotated[float, within(0.2, 60.0)] = 2.0


ORDERS: Final[dict[str, type[StrictModel]]] = {
    "pool": PoolOrder,
    "token-budget": Order,
    "assignment": AssignmentOrder,
    "coordination": CoordinationOrder,
}


def choices() -> dict[str, dict[str, list[str]]]:
    """Return the names that forms offer, by team and field."""
    budget = [
        entry.name
        for entry in token_budget.POLICIES.entries()
        if entry.name in token_budget.names() and not entry.args
    ]
    return {
        "pool": {
            "pool": list(list_configs("pools")),
            "workload": list(list_configs("workloads")),
            "policy": list(ROUTING),
        },
        "token-budget": {"strategy": list(dict.fromkeys((*MODES, *budget)))},
        "assignment": {
            "router": list(ROUTERS),
            "arrivals": list(ARRIVALS),
            "variant": list(VARIANTS),
            "ties": list(TIES),
        },
        "coordination": {"policy": list(SUPERVISORS)},
    }


def defaults() -> dict[str, dict[str, Any]]:
    """Return what a form begins with, by team and field."""
    return {
        team: {
            name: field.default
            for name, field in order.model_fields.items()
            if not field.is_required()
        }
        for team, order in ORDERS.items()
    }
