"""Configuration of Headway's training; `agents/configs/headway.yaml` is what is said here."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, field_validator

from agents.config import WorldChoice
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
)

_NOT_READ: Final = {
    "num_queries": "load_queries and search.queries are the lengths of its sweeps",
    "system_features": "it counts its own calls in flight and sees nothing else",
}


class SurveyRound(StrictModel):
    """One round of the survey, after which recipes that no circumstances call for are dropped.

    Attributes:
        queries: played in it, at least: whole batches of `rows` sweeps are.
        keep: most recipes that are left after it; None keeps all (the last round).
    """

    queries: PositiveInt
    keep: PositiveInt | None = None


class Climb(StrictModel):
    """One round of the search: CMA-ES that go on side by side, from the best of the round before.

    Attributes:
        climbs: how many, at each rate.
        generations: of each.
        sweeps: by which a candidate is judged, the same for all of a generation, new ones in the
            next.
    """

    climbs: PositiveInt
    generations: PositiveInt
    sweeps: PositiveInt


class SearchConfig(StrictModel):
    """The search of the prices, at each rate by itself.

    Which models to use at all is a choice between valleys that no climb crosses: it begins with
    rough prices for all sets of models, climbs from the best of them, and drops the worse climbs
    (successive halving). Sweeps are counted without those with bursts, of which each point
    plays one, and as many as others in comparisons.

    Attributes:
        most_models: sets of up to so many models get rough prices, and the set of all.
        rough_prices: of a second of a slot, the same for all models of a set; others are too dear.
        rough_sweeps: by which rough prices are judged.
        rounds: of climbs, none with more than the one before.
        candidates: prices in a generation of a climb.
        spread: standard deviation of the first candidates, in the units of `search.UNITS`.
        finals: sweeps by which climbs are compared at the end of a round.
        queries: in a sweep.
    """

    most_models: PositiveInt = 3
    rough_prices: Annotated[tuple[Positive, ...], Field(min_length=1)] = (
        0.0003,
        0.001,
        0.003,
        0.01,
        0.03,
    )
    rough_sweeps: PositiveInt = 1
    rounds: Annotated[tuple[Climb, ...], Field(min_length=1)] = (
        Climb(climbs=4, generations=8, sweeps=1),
        Climb(climbs=2, generations=12, sweeps=2),
        Climb(climbs=1, generations=30, sweeps=3),
    )
    candidates: Annotated[int, Field(ge=2)] = 12
    spread: Positive = 0.7
    finals: PositiveInt = 8
    queries: PositiveInt = 500

    @field_validator("rounds")
    @classmethod
    def _check_rounds(cls, rounds: tuple[Climb, ...]) -> tuple[Climb, ...]:
        counts = [one.climbs for one in rounds]
        if counts != sorted(counts, reverse=True) or counts[-1] != 1:
            raise ValueError(f"climbs must not grow from round to round and end at 1, got {counts}")
        return rounds


class Objective(StrictModel):
    """What a sweep is worth: shares of its queries with these weights.

    Attributes:
        goodput: of those that are solved within their own budget.
        solved: of those that are solved at all.
        within_s: latency that an operator promises, whatever the budget.
        within_share: share of the queries for which the promise is to hold, in the mean.
        shortfall: of what is missing from that share.
        bursts: weight of a sweep whose arrivals come in bursts, beside 1 for one without: the same
            mean rate, `workload.arrivals.BurstArrivals`. Nothing is promised for bursts, in which
            even the cheapest recipes come too late: the promise would be all that is looked for.
    """

    goodput: NonNegative = 1.0
    solved: NonNegative = 0.15
    within_s: Positive = 100.0
    within_share: Fraction = 0.975
    shortfall: NonNegative = 5.0
    bursts: NonNegative = 0.3


class HeadwayConfig(StrictModel):
    """Headway: the defaults are what the shipped checkpoints were trained with.

    Attributes:
        algorithm: "headway".
        env: the world; a checkpoint is for its workload, and several were trained.
        rates_per_min: arrival rates, rising, each of which gets prices of its own.
        rows: sweeps that run in lockstep.
        idle_rate_per_min: arrival rate at which queries hardly ever meet.
        survey: its rounds.
        load_sweeps: sweeps at each rate from which the effect of load is learned.
        load_queries: queries in each of them.
        mode: an ablation, one of `policy.MODES`: prices are searched for without what it takes
            away, and the checkpoint plays so; None: the agent itself.
        search: of the prices.
        objective: what it looks for.
        validation_sweeps: sweeps at each rate that the trained agent plays on the split "val".
    """

    algorithm: Literal["headway"] = "headway"
    env: WorldChoice = WorldChoice()
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = (10.0, 50.0, 100.0, 200.0)
    rows: PositiveInt = 480
    idle_rate_per_min: Positive = 0.05
    survey: Annotated[tuple[SurveyRound, ...], Field(min_length=1)] = (
        SurveyRound(queries=750_000, keep=1500),
        SurveyRound(queries=700_000, keep=400),
        SurveyRound(queries=400_000, keep=128),
        SurveyRound(queries=600_000),
    )
    load_sweeps: PositiveInt = 96
    load_queries: PositiveInt = 300
    mode: Literal["blind", "stale", "unread"] | None = None
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()
    validation_sweeps: PositiveInt = 8

    @field_validator("rates_per_min")
    @classmethod
    def _check_rates(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        kept = np.array(rates, np.float32)  # as a checkpoint keeps them
        if not (np.diff(kept) > 0.0).all():
            raise ValueError(f"rates_per_min must rise, got {list(rates)}")
        return rates

    @field_validator("env", mode="before")
    @classmethod
    def _check_env(cls, env: Any) -> Any:
        for key, why in _NOT_READ.items():
            if isinstance(env, dict) and key in env:
                raise ValueError(f"{key} is not for Headway: {why}; leave it out")
        return env
