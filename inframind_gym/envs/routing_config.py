"""Keyword arguments of the routing environments, and the tasks of their queries."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from inframind_gym.configs import StrictModel, within
from inframind_gym.envs.core import Floats, Ints
from inframind_gym.envs.layout import SystemFeature
from inframind_gym.errors import ConfigError, require_within, unknown
from inframind_gym.simulator.server.faults import Fault
from inframind_gym.simulator.server.pool import Scheduler
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, Graph, custom_graph
from inframind_gym.simulator.workload import AgentProfile, Drift, load_profiles, load_workload
from inframind_gym.tasks import DOMAINS, TaskSet, load_tasks

DEFAULT_POOL: Final = "b200-2gpu"
DEFAULT_WORKLOAD: Final = "mixed"
# Allowed numbers, both ends included. Beyond them a step could take minutes.
RANGES: Final = {
    "arrival_rate_per_min": (0.01, 100_000.0),
    "budget_s": (0.001, 1e6),  # what an observation can show
    "num_queries": (1, 1_000_000),
}
Seconds = Annotated[float, within(0.001, 1e6)]


def _budget(value: Any) -> float | tuple[float, ...]:
    """Check one budget, or a list of those that queries draw from."""
    limits = RANGES["budget_s"]
    if not isinstance(value, list | tuple):
        return require_within(value, *limits)
    if not value:
        raise ValueError("is an empty list; null draws from the workload's tiers")
    return tuple(require_within(one, *limits) for one in value)


class FixedPlan(StrictModel):
    """One plan for every query: one of the six topologies, or a custom graph.

    Attributes:
        topology: name of a topology; None where `edges` are given.
        num_agents: number of agents.
        edges: pairs [i, j] with i < j: agent j reads the answer of agent i.
    """

    topology: str | None = None
    num_agents: Annotated[int, Field(ge=1, le=MAX_AGENTS)]
    edges: tuple[tuple[int, int], ...] | None = None

    @model_validator(mode="after")
    def _one_graph(self) -> FixedPlan:
        if (self.topology is None) == (self.edges is None):
            raise ValueError("give either a topology or edges")
        if self.topology is not None and self.topology not in TOPOLOGIES:
            raise ValueError(unknown("topology", self.topology, TOPOLOGIES))
        for first, second in self.edges or ():
            if not 0 <= first < second < self.num_agents:
                raise ValueError(
                    f"edge [{first}, {second}] must go from an agent to a later one of the "
                    f"{self.num_agents} (0 to {self.num_agents - 1})"
                )
        return self

    def graph(self) -> Graph | None:
        """Return the plan's custom graph; None if it is one of the six topologies."""
        return None if self.edges is None else custom_graph(self.num_agents, self.edges)


class EnvConfig(StrictModel):
    """Keyword arguments of the environments (the table of `ExecutorEnv`), all JSON types."""

    pool: str = DEFAULT_POOL
    workload: str = DEFAULT_WORKLOAD
    tasks: str = "builtin"
    split: Literal["train", "val", "test", "all"] = "test"
    arrival_rate_per_min: Annotated[float, within(*RANGES["arrival_rate_per_min"])] = 100.0
    budget_s: Annotated[float | tuple[float, ...], BeforeValidator(_budget)] | None = None
    num_queries: Annotated[int, within(*RANGES["num_queries"])] | None = None
    arrivals: str | dict[str, Any] = "poisson"
    scheduler: Scheduler | None = None
    execution: Literal["parallel", "sequential"] | None = None
    # None, or "mix": plans are drawn from the workload's measured mix.
    planner: Annotated[
        FixedPlan | None, BeforeValidator(lambda plan: None if plan == "mix" else plan)
    ] = None
    agents: AgentProfile | None = None
    background: Literal["static_mix", "round_robin", "least_loaded", "none"] = "static_mix"
    level: Literal["executor", "planner", "joint"] = "executor"
    reward: Literal["solved", "goodput"] = "solved"
    truncate_overrun_s: Seconds | None = None
    observation: Literal["full", "index", "compact", "dict"] = "full"
    credit: bool = False
    system_features: tuple[SystemFeature, ...] = ("queue", "e2e")
    metrics_poll_s: Seconds | None = None
    call_timeout_s: Seconds | None = None
    call_attempts: Annotated[int, within(1, 1000)] = 3
    record_calls: bool = False
    down_models: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _distinct_features(self) -> EnvConfig:
        if len(set(self.system_features)) != len(self.system_features):
            raise ValueError(f"system_features names one twice: {list(self.system_features)}")
        return self

    @property
    def embedding(self) -> Literal["full", "index", "compact"]:
        """Form of query and role among the numbers of an observation."""
        return "full" if self.observation == "dict" else self.observation


def tasks_of(config: EnvConfig, datasets: list[str]) -> tuple[TaskSet, NDArray[np.int32]]:
    """Return the tasks of each dataset, or for "builtin" the built-in tasks of its domain.

    Returns:
        The tasks, dataset after dataset, and (T,) which dataset each belongs to.
    """
    if config.tasks == "builtin":
        tasks = load_tasks("builtin", split=config.split)
        profiles = load_profiles(load_workload(config.workload))
        domains = [DOMAINS.index(profiles[name].profile.domain) for name in datasets]
        groups = [np.flatnonzero(tasks.domain == domain) for domain in domains]
    else:
        tasks = load_tasks(config.tasks, datasets=datasets, split=config.split)
        groups = [np.flatnonzero(np.asarray(tasks.datasets) == name) for name in datasets]
    for name, group in zip(datasets, groups, strict=True):
        if not len(group):
            raise ConfigError(
                f"{config.tasks}: no task of dataset {name!r} in split {config.split!r}; "
                'use another split (split="all" takes every task) or another folder'
            )
    owner = np.repeat(np.arange(len(datasets), dtype=np.int32), [len(g) for g in groups])
    return tasks.select(np.concatenate(groups)), owner


def draw_tasks(
    members: list[Ints], weights: Floats, drift: Drift | None, count: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Draw tasks, (count,): datasets by weight, tasks of one without repetition until all came.

    Args:
        members: for each dataset, indices of its tasks.
        weights: weights of the datasets, sum 1.
        drift: drift of the weights; None: they are constant.
        count: number of tasks.
        rng: source of randomness.
    """
    out = np.empty(count, np.int32)
    if drift is None:
        which = rng.choice(len(members), count, p=weights)
    else:
        shares = np.cumsum(drift.weights(np.arange(count)), axis=1)
        which = (rng.random(count)[:, None] > shares[:, :-1]).sum(axis=1)
    for p, group in enumerate(members):
        wanted = int((which == p).sum())
        order = [rng.permutation(group) for _ in range(-(-wanted // len(group)))]
        if order:
            out[which == p] = np.concatenate(order)[:wanted]
    return out
