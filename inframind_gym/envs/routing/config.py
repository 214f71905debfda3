"""Everything that an environment is made from: its keyword arguments, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, model_validator

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.errors import ConfigError, require_positive, unknown
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, Graph, custom_graph
from inframind_gym.simulator.workload import AgentProfile

DEFAULT_POOL: Final = "b200-2gpu"
DEFAULT_WORKLOAD: Final = "mixed"


class FixedPlan(StrictModel):
    """One plan for every query: one of the six topologies, or a graph of one's own.

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
        """The plan's own graph, or None where it is one of the six topologies."""
        return None if self.edges is None else custom_graph(self.num_agents, self.edges)


class EnvConfig(StrictModel):
    """Keyword arguments of the environments; all of them are JSON types.

    Attributes:
        pool: name or path of a pool (`envs_configs/pools`).
        workload: name or path of a workload (`envs_configs/workloads`).
        tasks: "builtin", or a folder of JSON Lines files.
        split: "train", "val", "test" or "all" of the tasks.
        arrival_rate_per_min: queries a minute.
        budget_s: seconds every query may take; without it each draws one of the workload's tiers.
        num_queries: queries in a stream; without it the workload's.
        arrivals: arrival process (`workload/arrivals.py`).
        scheduler: order of the servers' queues; without it the pool's.
        execution: how a workflow's calls follow one another; without it the workload's.
        planner: a fixed plan; without it plans are drawn from the workload's measured mix.
        agents: rules of the agents beyond their graph; without them the workload's.
        background: who routes the calls that are not the agent's.
        level: which decisions are the agent's.
        observation: "full" (embeddings) or "index".
        system_features: observed telemetry.
        metrics_poll_s: seconds between two polls of it; without it the pool's.
        record_calls: keep a record of every call.
        down_models: aliases of models that are down.
    """

    pool: str = DEFAULT_POOL
    workload: str = DEFAULT_WORKLOAD
    tasks: str = "builtin"
    split: Literal["train", "val", "test", "all"] = "test"
    arrival_rate_per_min: float = 100.0
    budget_s: float | None = None
    num_queries: PositiveInt | None = None
    arrivals: str | dict[str, Any] = "poisson"
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    execution: Literal["parallel", "sequential"] | None = None
    planner: FixedPlan | None = None
    agents: AgentProfile | None = None
    background: Literal["static_mix", "round_robin", "least_loaded", "none"] = "static_mix"
    level: Literal["executor", "planner", "joint"] = "executor"
    observation: Literal["full", "index"] = "full"
    system_features: tuple[Literal["queue", "e2e", "kv", "in_flight"], ...] = ("queue", "e2e")
    metrics_poll_s: float | None = None
    record_calls: bool = False
    down_models: tuple[str, ...] = ()


class PlannerConfig(EnvConfig):
    """Keyword arguments of `InfraMind-Planner-v0`: those of the others, and two more.

    Attributes:
        level: always "planner".
        executor: who routes the calls of the agent's workflows: a built-in router, or a policy's
            name or path (`inframind_gym.policies.resolve_policy`).
        observe: "query", or "infra": with the remaining budget and the `system_features`.
    """

    level: Literal["planner"] = "planner"
    executor: str = "static_mix"
    observe: Literal["query", "infra"] = "query"


ConfigT = TypeVar("ConfigT", bound=EnvConfig)


def env_config(arguments: Mapping[str, Any]) -> EnvConfig:
    """Check an environment's keyword arguments.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value; says what is possible.
    """
    config = checked_config(arguments, EnvConfig)
    if config.level == "planner" and config.background == "none":
        raise ConfigError('level "planner" needs a `background` router that routes the calls')
    return config


def planner_config(arguments: Mapping[str, Any]) -> PlannerConfig:
    """The same for `InfraMind-Planner-v0`; whether there is such an executor shows when it runs."""
    return checked_config(arguments, PlannerConfig)


def checked_config(arguments: Mapping[str, Any], model: type[ConfigT]) -> ConfigT:
    """Check keyword arguments against a model of them.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value; says what is possible.
    """
    given = dict(arguments)
    if given.get("planner") == "mix":
        given["planner"] = None
    config = validate(given, model, source="environment")
    for key in ("arrival_rate_per_min", "budget_s", "metrics_poll_s"):
        if getattr(config, key) is not None:  # as it was given: "100" and True are no rates
            require_positive(key, given.get(key, getattr(config, key)))
    if len(set(config.system_features)) != len(config.system_features):
        raise ConfigError(f"system_features names one twice: {list(config.system_features)}")
    return config
