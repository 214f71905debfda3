"""Files of refits: policies that were fitted for the scenarios of tracks.

A file of refits names, for a policy and a place, the same policy with arguments: a recipe, or the
folder of a checkpoint. ``python -m benchmarks refit`` writes it. All fits of a file have the same
budget: the simulated queries that each could use for one scenario. Of a policy that was trained
with several seeds a fit names every training: each plays every episode, and intervals resample
trainings and episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from inframind_gym.configs import NonNegativeInt, StrictModel, load_yaml_model, validate
from inframind_gym.errors import ConfigError
from inframind_gym.files import replace_text


class Fit(StrictModel):
    """A fitted policy."""

    # Name with arguments; of several trainings a list
    policy: str | Annotated[tuple[str, ...], Field(min_length=1)]
    queries: NonNegativeInt  # simulated queries that its fit has used, that of one training
    score: float | None = None  # score on the validation split, as the fit has found it

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
        ConfigError: The file has fits of another budget, or one has used more.
        ConfigError: It cannot be read, or trainings of a policy differ in their number.
    """
    old = load_refits(path) if path.is_file() else Refits(budget_queries=budget_queries)
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
