"""Policies that were fitted for the scenarios of tracks, and what their fits have cost.

A file of refits names, for a policy and a place, the same policy with arguments: a recipe, or the
folder of a checkpoint. ``python -m benchmarks refit`` writes it. All fits of a file have the same
budget: the simulated queries that each could use for one scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import Field

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.configs import NonNegativeInt, StrictModel, load_yaml_model
from inframind_gym.files import replace_text
from inframind_gym.policies import resolve_policy


class Fit(StrictModel):
    """A fitted policy.

    Attributes:
        policy: Name with arguments.
        queries: Simulated queries that its fit has used.
        score: Score on the validation split, as the fit has found it.
    """

    policy: str
    queries: NonNegativeInt
    score: float | None = None


class Refits(StrictModel):
    """Content of a file of refits.

    Attributes:
        budget_queries: Most simulated queries of the fit for one scenario.
        fits: Policy -> "track/scenario" or "track/scenario/load" -> fit.
    """

    budget_queries: NonNegativeInt = 0
    fits: dict[str, dict[str, Fit]] = Field(default_factory=dict)

    def of(self, policy: str, track: str, scenario: str, load: float) -> str:
        """Return the policy that plays a place; the given one where none was fitted."""
        own = self.fits.get(policy, {})
        place = f"{track}/{scenario}"
        fit = own.get(f"{place}/{load:g}") or own.get(place)
        return policy if fit is None else fit.policy

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
        ConfigError: It cannot be read.
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
    new = Refits(budget_queries=budget_queries, fits=merged)
    content = new.model_dump(mode="json", exclude_none=True)
    replace_text(path, yaml.safe_dump(content, sort_keys=True, width=100))


def enter_fit(path: Path, text: str, places: Sequence[str], budget_queries: int) -> None:
    """Add a policy that was fitted elsewhere.

    Args:
        path: File of refits.
        text: POLICY=PLAYS:QUERIES.
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
    resolve_policy(plays)
    fit = Fit(policy=plays, queries=int(queries))
    add_fits(path, budget_queries, {policy: dict.fromkeys(places, fit)})
