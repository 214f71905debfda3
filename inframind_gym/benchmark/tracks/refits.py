"""Policies that were fitted for the scenarios of tracks, and what their fits have cost.

A file of refits names, for a policy and a place, the same policy with arguments: a recipe, or the
folder of a checkpoint. ``python -m benchmarks refit`` writes it. All fits of a file have the same
budget: the simulated queries that each could use for one scenario.

Of a policy that was trained with several seeds a fit names every training. Each plays every
episode, a board has one row of them, and its intervals resample trainings and episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.configs import NonNegativeInt, StrictModel, load_yaml_model, validate
from inframind_gym.files import replace_text
from inframind_gym.policies import resolve_policy


class Fit(StrictModel):
    """A fitted policy.

    Attributes:
        policy: Name with arguments; of several trainings a list.
        queries: Simulated queries that its fit has used, that of one training.
        score: Score on the validation split, as the fit has found it.
    """

    policy: str | Annotated[tuple[str, ...], Field(min_length=1)]
    queries: NonNegativeInt
    score: float | None = None

    @property
    def plays(self) -> tuple[str, ...]:
        """The policies that play."""
        return (self.policy,) if isinstance(self.policy, str) else self.policy


class Refits(StrictModel):
    """Content of a file of refits.

    Attributes:
        budget_queries: Most simulated queries of the fit for one scenario.
        fits: Policy -> "track/scenario" or "track/scenario/load" -> fit.
    """

    budget_queries: NonNegativeInt = 0
    fits: dict[str, dict[str, Fit]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Refits:
        for name, own in self.fits.items():
            counts = {len(fit.plays) for fit in own.values()} - {1}
            if len(counts) > 1:
                raise ValueError(
                    f"fits.{name}: has {' and '.join(map(str, sorted(counts)))} trainings; give "
                    "each place the same number of them, or one"
                )
        return self

    def of(self, policy: str, track: str, scenario: str, load: float) -> tuple[str, ...]:
        """Return the trainings that play a place; the given policy where none was fitted."""
        own = self.fits.get(policy, {})
        place = f"{track}/{scenario}"
        fit = own.get(f"{place}/{load:g}") or own.get(place)
        return (policy,) if fit is None else fit.plays

    def queries(self) -> dict[str, int]:
        """Return the most queries that any fit of a policy has used, by policy."""
        return {name: max(fit.queries for fit in own.values()) for name, own in self.fits.items()}


def load_refits(path: Path) -> Refits:
    """Read a file of refits.

    Raises:
        ConfigError: It cannot be read or is malformed.
    """
    return load_yaml_model(path, Refits)


def add_fits(path: Path, budget_queries: int, fits: Mapping[str, Mapping[str, Fit]]) -> None:
    """Add fits to a file, which need not exist.

    Raises:
        BenchmarkError: The file has fits of another budget, or one has used more.
        ConfigError: It cannot be read, or trainings of a policy differ in their number.
    """
    old = load_refits(path) if path.is_file() else Refits(budget_queries=budget_queries)
    if old.budget_queries != budget_queries:
        raise BenchmarkError(
            f"{path}: its fits had {old.budget_queries:,} simulated queries each, not "
            f"{budget_queries:,}: fits are compared at one budget. Choose another file with --out."
        )
    merged = {name: dict(own) for name, own in old.fits.items()}
    for name, own in fits.items():
        for place, fit in own.items():
            if fit.queries > budget_queries:
                raise BenchmarkError(
                    f"{name} at {place} used {fit.queries:,} simulated queries; the budget of "
                    f"{path} is {budget_queries:,}."
                )
            merged.setdefault(name, {})[place] = fit
    given = {"budget_queries": budget_queries, "fits": merged}
    content = validate(given, Refits, source=str(path))
    plain = content.model_dump(mode="json", exclude_none=True)
    replace_text(path, yaml.safe_dump(plain, sort_keys=True, width=100))


def enter_fit(path: Path, text: str, places: Sequence[str], budget_queries: int) -> None:
    """Add a policy that was fitted elsewhere.

    Args:
        path: File of refits.
        text: POLICY=PLAYS:QUERIES, or POLICY=PLAYS,PLAYS:QUERIES of several trainings.
        places: "track/scenario" that it plays.
        budget_queries: Budget of the file.

    Raises:
        InfraMindError: The text is not of that form, or `add_fits` refuses.
    """
    policy, _, plays = text.partition("=")
    plays, _, queries = plays.rpartition(":")
    if not policy or not plays or not queries.isdecimal():
        raise BenchmarkError(
            f"--enter: {text!r} is not POLICY=PLAYS:QUERIES, for example "
            "bid_price=bid_price:runs/x/best:9000000."
        )
    names = tuple(plays.split(","))
    for name in names:
        resolve_policy(name)
    fit = Fit(policy=names if len(names) > 1 else plays, queries=int(queries))
    add_fits(path, budget_queries, {policy: dict.fromkeys(places, fit)})
