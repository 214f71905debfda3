"""Settings of a run, checked, and what it gets: ways to models and servers, and a log.

Settings come from the network: policies, pools and workloads are those that are built in, and what
a run may reach (`Ways`) is fixed by the command line.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field

from inframind_gym.configs import (
    NonNegativeInt,
    Positive,
    StrictModel,
    list_configs,
    within,
)
from inframind_gym.envs.routing_config import DEFAULT_POOL, DEFAULT_WORKLOAD
from inframind_gym.errors import unknown
from inframind_gym.policies import POLICIES, policy_names
from inframind_gym.teams.assignment.rules import ARRIVALS, Arrivals, Router, Variant
from inframind_gym.teams.coordination.settings import MOST_QUERY_CHARS, check_fault
from inframind_gym.teams.llm import SIMULATED, Provider, open_provider
from inframind_gym.teams.runs import RunLog, RunStore
from inframind_gym.teams.token_budget.app import MODES, Order


def _plain(family: str) -> tuple[str, ...]:
    """Return the policies of a family that play by their name alone."""
    known = (name for name in policy_names(family) if not name.startswith("sb3"))
    return tuple(name for name in known if not POLICIES[family][name].args)


# Names that forms offer and that are accepted, by team and field.
CHOICES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "pool": {
        "policy": (
            *("bid_price", "ppo_lagrangian", "budget_greedy", "lowest_expected_latency"),
            *("least_loaded", "linucb", "q_learning_load_tracker", "round_robin", "random"),
        ),
        "pool": list_configs("pools"),
        "workload": list_configs("workloads"),
    },
    "token-budget": {
        "strategy": tuple(dict.fromkeys((*MODES, *_plain("token_budget")))),
        "profile": ("simulated", "seed-example"),
    },
    "assignment": {"router": get_args(Router), "arrivals": ARRIVALS},
    "coordination": {"policy": _plain("coordination")},
}
# Events after which a run may rest, so that a person can follow what takes milliseconds.
PACED: Final = {"token-budget": "trace", "assignment": "iteration"}


def _one_of(team: str, field: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in CHOICES[team][field]:
            raise ValueError(unknown(field, name, CHOICES[team][field]))
        return name

    return AfterValidator(check)


class AssignmentSettings(StrictModel):
    """A training of the assignment team, see `teams.assignment.app.Options`."""

    iterations: Annotated[int, within(1, 2000)] = 50
    seed: NonNegativeInt = 0
    arrivals: Arrivals = "uniform"
    router: Router = "q_learning"
    variant: Variant = "source"


class CoordinationSettings(StrictModel):
    """A question to the coordination team; `deadline_s` None: the team's own."""

    question: Annotated[str, Field(min_length=1, max_length=MOST_QUERY_CHARS)]
    policy: Annotated[str, _one_of("coordination", "policy")] = "seed_supervisor"
    deadline_s: Annotated[float, within(0.1, 3600.0)] | None = None
    fault: Annotated[str, AfterValidator(check_fault)] | None = None


class PoolSettings(StrictModel):
    """A pool to watch; for live servers `watch_s` and `poll_s` alone matter."""

    source: Literal["simulation", "pool", "gateway"] = "simulation"  # the studio was started with
    pool: Annotated[str, _one_of("pool", "pool")] = DEFAULT_POOL
    workload: Annotated[str, _one_of("pool", "workload")] = DEFAULT_WORKLOAD
    policy: Annotated[str, _one_of("pool", "policy")] = "bid_price"
    arrival_rate_per_min: Annotated[float, within(0.1, 2000.0)] = 100.0
    num_queries: Annotated[int, within(1, 2000)] = 200
    budget_s: Positive | None = None  # None: the workload's tiers
    seed: NonNegativeInt = 0
    speed: Annotated[float, within(0.1, 10_000.0)] | None = 20.0  # None: as fast as it goes
    watch_s: Annotated[float, within(1.0, 86_400.0)] = 3600.0
    poll_s: Annotated[float, within(0.2, 60.0)] = 2.0


SETTINGS: Final[dict[str, type[StrictModel]]] = {
    "pool": PoolSettings,
    "token-budget": Order,
    "assignment": AssignmentSettings,
    "coordination": CoordinationSettings,
}


@dataclass(frozen=True, slots=True)
class Ways:
    """What runs may reach."""

    provider: str = SIMULATED  # name or URL of the models of teams
    model: str | None = None  # of the provider; None: its default
    gateway: str | None = None  # address; None: there is none to watch
    pool: str | None = None  # of live servers, name or file

    def sources(self) -> list[str]:
        """Return the pools that can be watched."""
        return ["simulation", *(name for name in ("pool", "gateway") if getattr(self, name))]

    def open(self) -> Provider | None:
        """Return a new way to the models; None: they are simulated."""
        return None if self.provider == SIMULATED else open_provider(self.provider, self.model)


class Stopped(KeyboardInterrupt):
    """A person has stopped a run; its log counts it as interrupted."""


class PacedLog(RunLog):
    """A run's log that can rest after events of the kind `PACED`, and that can be stopped."""

    def __init__(
        self, store: RunStore, team: str, settings: Mapping[str, Any], delay_s: float = 0.0
    ) -> None:
        super().__init__(store, team, settings)
        self._delay_s, self._paced = delay_s, PACED.get(team)
        self.stopping = threading.Event()

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event and return its number; raise `Stopped` if the run has been stopped."""
        number = super().append(kind, data)
        self.rest(self._delay_s if kind == self._paced else 0.0)
        return number

    def rest(self, seconds: float) -> None:
        """Wait; raise `Stopped` if the run has been stopped."""
        if self.stopping.wait(max(seconds, 0.0)):
            raise Stopped("stopped in the studio")
