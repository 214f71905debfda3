"""Track files: scenarios in which policies meet steady load, and the limits of each.

A track is a YAML file of `envs_configs/tracks`, written by hand. What a linear program finds for
its scenarios, their capacities and bounds, is a file of the same name in the folder `limits` beside
it, written by ``inframind bench limits``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from inframind_gym.benchmark.cells import content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    within,
)
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.faults import Fault, Faults
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_profiles, load_workload

FOLDER: Final = "limits"  # beside the tracks
MOST_GROUPS: Final = 10  # budgets of a scenario
_PARTS: Final = 20  # shares of tenants are multiples of 1 / 20

Load = Annotated[float, within(0.01, 10.0)]


class Tenant(StrictModel):
    """A tenant: the sender of queries with one budget.

    Attributes:
        budget_s: Its SLO. No two tenants have the same: a router tells them apart by it.
        share: Of the queries; a multiple of 0.05.
        weight: Of a query that is solved in time, over that of others.
    """

    budget_s: Positive
    share: Fraction
    weight: Positive = 1.0


class Scenario(StrictModel):
    """A stream of queries at a pool.

    Attributes:
        workload: Name or path.
        pool: Name or path.
        arrivals: Arrival process; its mean rate is the load's.
        budgets_s: Budgets that queries draw from; null takes the workload's tiers.
        tenants: Senders in place of budgets.
        work_cap: Cap on the GPU-seconds of a query, as a share of what the informed optimum spends
            at capacity; null: none.
        faults: Of the servers, as the environments' argument; the limits are of healthy servers.
        fit_on: Workloads on which policies are fitted for this scenario; empty: on its own.
    """

    workload: str
    pool: str = "b200-2gpu"
    arrivals: str | dict[str, Any] = "poisson"
    budgets_s: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    tenants: dict[Name, Tenant] = Field(default_factory=dict)
    work_cap: Positive | None = None
    faults: tuple[Fault, ...] = ()
    fit_on: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        if not self.tenants:
            return self
        if self.budgets_s is not None:
            raise ValueError("budgets_s: tenants have their own; give one of both")
        parts = [tenant.share * _PARTS for tenant in self.tenants.values()]
        if any(abs(part - round(part)) > 1e-9 for part in parts) or round(sum(parts)) != _PARTS:
            raise ValueError("tenants: the shares must be multiples of 0.05 that sum to 1")
        if len({tenant.budget_s for tenant in self.tenants.values()}) < len(self.tenants):
            raise ValueError("tenants: two have the same budget_s, which tells them apart")
        return self

    @property
    def drawn_s(self) -> tuple[float, ...]:
        """Budgets that queries draw from, each as often as it stands here."""
        if self.tenants:
            tenants = self.tenants.values()
            return tuple(t.budget_s for t in tenants for _ in range(round(t.share * _PARTS)))
        return self.budgets_s or load_workload(self.workload).budget_tiers_s

    @property
    def groups_s(self) -> tuple[float, ...]:
        """Different budgets, ascending."""
        return tuple(sorted(set(self.drawn_s)))

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of a query with each of `groups_s`."""
        of = {tenant.budget_s: tenant.weight for tenant in self.tenants.values()}
        return tuple(of.get(budget_s, 1.0) for budget_s in self.groups_s)

    @property
    def longest_s(self) -> float:
        """The longest budget: warm-up and patience."""
        return self.groups_s[-1]

    def base_rate_per_min(self, mean_rate_per_min: float) -> float:
        """Return the base rate of the arrivals at a mean rate."""
        return mean_rate_per_min / make_arrivals(self.arrivals).mean_rate_factor()

    def constants(self) -> str:
        """Hash what limits follow from: pool, workload, budgets, to nine figures.

        The last figures of estimated constants differ between processors.
        """
        profiles = load_profiles(load_workload(self.workload))
        parts = {of: [p.weight, p.profile.model_dump(mode="json")] for of, p in profiles.items()}
        pool = load_pool(self.pool).model_dump(mode="json")
        return content_hash(_rounded([pool, parts, list(self.drawn_s)]))


def _rounded(content: Any) -> Any:
    """Return JSON content with nine figures of every float."""
    if isinstance(content, dict):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_rounded(value) for value in content]
    return float(f"{content:.9g}") if isinstance(content, float) else content


class Limits(StrictModel):
    """Limits of a scenario, by linear programming (`inframind_gym.benchmark.bounds.steady`).

    Attributes:
        constants: `Scenario.constants` for which they were computed.
        capacity_per_min: Rate at which the informed bound has fallen to 90 % of that on idle
            servers.
        work_s: GPU-seconds a query that the optimum spends at capacity.
        reach: Share of the queries with each budget that the optimum solves on idle servers.
        informed: Informed bound on the track's score, by load.
    """

    constants: str
    capacity_per_min: Positive
    work_s: Positive
    reach: tuple[NonNegative, ...]
    informed: dict[float, Fraction]


class TrackLimits(StrictModel):
    """Content of a file of limits."""

    scenarios: dict[str, Limits]


class TrackConfig(StrictModel):
    """A track.

    Attributes:
        name: Its name.
        description: One or two sentences.
        version: Of the track: results of different versions are not compared.
        counts: What a cell scores: "mean", the (weighted) goodput; "worst", the smallest over its
            budgets of goodput over what is possible on idle servers.
        loads: Shares of the capacity at which every scenario is played.
        scenarios: By name.
    """

    name: Name
    description: str = ""
    version: PositiveInt = 1
    counts: Literal["mean", "worst"] = "mean"
    loads: Annotated[tuple[Load, ...], Field(min_length=1)]
    scenarios: Annotated[dict[Name, Scenario], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> TrackConfig:
        if len(set(self.loads)) < len(self.loads):
            raise ValueError("loads: names one twice")
        for name, scenario in self.scenarios.items():
            if len(set(scenario.budgets_s or ())) > MOST_GROUPS:
                raise ValueError(f"scenarios.{name}: has more than {MOST_GROUPS} budgets")
        return self


def load_track(name_or_path: str | Path) -> TrackConfig:
    """Read a track.

    Raises:
        ConfigError: There is none of that name, or its file, a pool, a workload, an arrival
            process or a fault in it is wrong.
    """
    path = find_config("tracks", name_or_path)
    track = load_yaml_model(path, TrackConfig)
    for scenario in track.scenarios.values():
        pool = load_pool(scenario.pool)
        aliases = pool.aliases
        Faults(scenario.faults, pool, (1 << len(aliases)) - 1)
        for part in load_profiles(load_workload(scenario.workload)).values():
            part.profile.require_models(aliases)
        make_arrivals(scenario.arrivals)
    return track


def limits_path(name_or_path: str | Path) -> Path:
    """Return the file with the limits of a track, which need not exist."""
    path = find_config("tracks", name_or_path)
    return path.parent / FOLDER / path.name


def load_limits(name_or_path: str) -> dict[str, Limits]:
    """Read the limits of a track's scenarios.

    Raises:
        BenchmarkError: They have not been computed for every scenario.
        ConfigError: The file is malformed.
    """
    track, path = load_track(name_or_path), limits_path(name_or_path)
    found = load_yaml_model(path, TrackLimits).scenarios if path.is_file() else {}
    missing = [name for name in track.scenarios if name not in found]
    if missing:
        raise BenchmarkError(
            f"{path}: the capacity of {', '.join(missing)} is not known. Compute it (minutes; "
            f"extra `bounds`): inframind bench limits {name_or_path}"
        )
    return found
