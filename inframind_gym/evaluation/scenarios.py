"""Files of tracks: scenarios in steady load, the limits of each, and what was fitted for them.

A track is a YAML file of `envs_configs/tracks`, written by hand. The capacities and bounds of its
scenarios, which follow from linear programs, are in a file of the same name in the folder `limits`
beside it, written by ``inframind bench limits``.

A file of refits names, for a policy and a place, the same policy with arguments: a recipe, or the
folder of a checkpoint. ``python -m benchmarks refit`` writes it. All fits of a file have the same
budget: the simulated queries that each could use for one scenario. If a policy was trained with
several seeds, its fit names every training: each plays every episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, model_validator

from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    validate,
    within,
)
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.cells import content_hash, rounded
from inframind_gym.files import replace_text
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.server.faults import Fault, Faults
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_profiles, load_workload

FOLDER: Final = "limits"  # beside the tracks
MOST_GROUPS: Final = 10  # budgets of a scenario
_PARTS: Final = 20  # shares of tenants are multiples of 1 / 20

Load = Annotated[float, within(0.01, 10.0)]


class Tenant(StrictModel):
    """A tenant: the sender of queries with one budget."""

    budget_s: Positive  # its SLO. No two tenants have the same: a router tells them apart by it
    share: Fraction  # of the queries; a multiple of 0.05
    weight: Positive = 1.0  # of a query that is solved in time, relative to other tenants'


class Scenario(StrictModel):
    """A stream of queries at a pool."""

    workload: str  # name or path
    pool: str = "b200-2gpu"  # name or path
    arrivals: str | dict[str, Any] = "poisson"  # arrival process; its mean rate is the load's
    # Budgets that queries draw from; null takes the workload's tiers
    budgets_s: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    tenants: dict[Name, Tenant] = Field(default_factory=dict)  # senders in place of budgets
    # Cap on the GPU-seconds of a query, as a share of what the informed optimum spends at capacity;
    # null: none
    work_cap: Positive | None = None
    # Faults of the servers, as in the environments' argument; limits assume healthy servers
    faults: tuple[Fault, ...] = ()
    # Workloads on which policies are fitted for this scenario; empty: on its own
    fit_on: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
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
        """Budgets that queries draw from, with repetitions for larger shares."""
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
        by_budget = {tenant.budget_s: tenant.weight for tenant in self.tenants.values()}
        return tuple(by_budget.get(budget_s, 1.0) for budget_s in self.groups_s)

    def constants(self) -> str:
        """Hash what limits follow from: pool, workload and budgets, to nine figures.

        The last figures of estimated constants differ between processors.
        """
        profiles = load_profiles(load_workload(self.workload)).items()
        parts = {name: [p.weight, p.profile.model_dump(mode="json")] for name, p in profiles}
        pool = load_pool(self.pool).model_dump(mode="json")
        return content_hash(rounded([pool, parts, list(self.drawn_s)], 9))


class Limits(StrictModel):
    """Limits of a scenario, by linear programming (`inframind_gym.evaluation.bounds`)."""

    constants: str  # `Scenario.constants` for which they were computed
    # Rate at which the informed bound has fallen to 90 % of that on idle servers
    capacity_per_min: Positive
    work_s: Positive  # GPU-seconds a query that the optimum spends at capacity
    # Share of the queries with each budget that the optimum solves on idle servers
    reach: tuple[NonNegative, ...]
    informed: dict[float, Fraction]  # informed bound on the track's score, by load


class TrackLimits(StrictModel):
    """Content of a file of limits."""

    scenarios: dict[str, Limits]


class TrackConfig(StrictModel):
    """A track."""

    name: Name  # its name
    description: str = ""  # one or two sentences
    version: PositiveInt = 1  # of the track: results of different versions are not compared
    # What a cell scores: "mean", the (weighted) goodput; "worst", the smallest over its budgets of
    # goodput over what is possible on idle servers
    counts: Literal["mean", "worst"] = "mean"
    # Shares of the capacity at which every scenario is played
    loads: Annotated[tuple[Load, ...], Field(min_length=1)]
    scenarios: Annotated[dict[Name, Scenario], Field(min_length=1)]  # by name

    @model_validator(mode="after")
    def _check(self) -> Self:
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
    track = load_yaml_model(find_config("tracks", name_or_path), TrackConfig)
    for scenario in track.scenarios.values():
        pool = load_pool(scenario.pool)
        Faults(scenario.faults, pool, (1 << len(pool.aliases)) - 1)
        for part in load_profiles(load_workload(scenario.workload)).values():
            part.profile.require_models(pool.aliases)
        make_arrivals(scenario.arrivals)
    return track


def kept_limits(name_or_path: str | Path) -> tuple[Path, dict[str, Limits]]:
    """Return the file with the limits of a track, and the limits that it holds by scenario."""
    path = find_config("tracks", name_or_path)
    path = path.parent / FOLDER / path.name
    return path, load_yaml_model(path, TrackLimits).scenarios if path.is_file() else {}


def load_limits(name_or_path: str) -> dict[str, Limits]:
    """Read the limits of a track's scenarios.

    Raises:
        InfraMindError: The file is malformed, or does not have every scenario.
    """
    path, limits = kept_limits(name_or_path)
    if missing := [name for name in load_track(name_or_path).scenarios if name not in limits]:
        raise ConfigError(
            f"{path}: the capacity of {', '.join(missing)} is not known. Compute it, "
            f"in minutes: inframind bench limits {name_or_path}"
        )
    return limits


# Fitted policies


class Fit(StrictModel):
    """A fitted policy."""

    # Name with arguments; a list for several trainings
    policy: str | Annotated[tuple[str, ...], Field(min_length=1)]
    queries: NonNegativeInt  # simulated queries that the fit, or each training, has used
    score: float | None = None  # score on the validation split, as the fit reported it

    @property
    def plays(self) -> tuple[str, ...]:
        """The policies that play."""
        return (self.policy,) if isinstance(self.policy, str) else self.policy


class Refits(StrictModel):
    """Content of a file of refits."""

    budget_queries: NonNegativeInt = 0  # most simulated queries of the fit for one scenario
    # Policy -> "track/scenario" or "track/scenario/load" -> fit
    fits: dict[str, dict[str, Fit]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, own in self.fits.items():
            counts = sorted({len(fit.plays) for fit in own.values()} - {1})
            if len(counts) > 1:
                raise ValueError(
                    f"fits.{name}: has {' and '.join(map(str, counts))} trainings; give each place "
                    "the same number of them, or one"
                )
        return self

    def of(self, policy: str, track: str, scenario: str, load: float) -> tuple[str, ...]:
        """Return the trainings that play a place; the policy itself where none was fitted."""
        own, place = self.fits.get(policy, {}), f"{track}/{scenario}"
        fit = own.get(f"{place}/{load:g}") or own.get(place)
        return (policy,) if fit is None else fit.plays

    def queries(self) -> dict[str, int]:
        """Return the most queries that one fit of each policy has used, by policy."""
        return {name: max(fit.queries for fit in own.values()) for name, own in self.fits.items()}


def add_fits(path: Path, budget_queries: int, fits: Mapping[str, Mapping[str, Fit]]) -> None:
    """Add fits to a file, which need not exist.

    Raises:
        ConfigError: The file has fits of another budget, or one has used more; it cannot be read;
            trainings of a policy differ in their number.
    """
    old = load_yaml_model(path, Refits) if path.is_file() else Refits(budget_queries=budget_queries)
    if old.budget_queries != budget_queries:
        raise ConfigError(
            f"{path}: its fits had {old.budget_queries:,} simulated queries each, not "
            f"{budget_queries:,}: fits are compared at one budget. Choose another file with --out."
        )
    merged = {name: dict(own) for name, own in old.fits.items()}
    for name, own in fits.items():
        merged.setdefault(name, {}).update(own)
        for place, fit in own.items():
            if fit.queries > budget_queries:
                raise ConfigError(
                    f"{name} at {place} used {fit.queries:,} simulated queries; the budget of "
                    f"{path} is {budget_queries:,}."
                )
    content = {"budget_queries": budget_queries, "fits": merged}
    plain = validate(content, Refits, source=str(path)).model_dump(mode="json", exclude_none=True)
    replace_text(path, yaml.safe_dump(plain, sort_keys=True, width=100))
