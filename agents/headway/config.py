"""Configuration of Headway's training; `agents/configs/headway.yaml` is what is said here."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from agents.config import WorldChoice
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
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
        queries: played in it, in all.
        keep: most recipes that are left after it; None keeps all (the last round).
    """

    queries: PositiveInt
    keep: PositiveInt | None = None


class SearchConfig(StrictModel):
    """The search of the prices: many generations of noisy judgements beat fewer of precise ones.

    Attributes:
        generations: of CMA-ES.
        candidates: prices in a generation.
        sweeps_per_rate: sweeps at each rate by which a candidate is judged; the same for all
            candidates of a generation, new ones in the next.
        queries: in a sweep.
        spread: standard deviation of the first candidates, in the units of `stages.UNITS`.
    """

    generations: NonNegativeInt = 240
    candidates: PositiveInt = 20
    sweeps_per_rate: PositiveInt = 1
    queries: PositiveInt = 500
    spread: Positive = 0.7


class Objective(StrictModel):
    """What a sweep is worth: shares of its queries with these weights.

    Attributes:
        goodput: of those that are solved within their own budget.
        solved: of those that are solved at all.
        within_s: latency that an operator promises, whatever the budget.
        within_share: share of the queries for which the promise is to hold, in every sweep.
        shortfall: of what is missing from that share. Nothing is promised for bursts, in which even
            the cheapest recipes come too late: the promise would be all that is looked for.
    """

    goodput: NonNegative = 1.0
    solved: NonNegative = 0.15
    within_s: Positive = 100.0
    within_share: Fraction = 0.97
    shortfall: NonNegative = 5.0


class HeadwayConfig(StrictModel):
    """Headway: the defaults are what the shipped checkpoints were trained with.

    Attributes:
        algorithm: "headway".
        env: the world; a checkpoint is for its workload, and several were trained.
        rates_per_min: arrival rates of the sweeps.
        burst_rates_per_min: base rates of further sweeps of the search, whose arrivals come in
            bursts (`workload.arrivals.BurstArrivals`: ten times the rate, 2.35 times in the mean);
            none if empty.
        rows: sweeps that run in lockstep.
        idle_rate_per_min: arrival rate at which queries hardly ever meet.
        survey: its rounds.
        load_sweeps: sweeps at each rate from which the effect of load is learned.
        load_queries: queries in each of them.
        mode: an ablation, one of `policy.MODES`: prices are searched for without what it takes
            away; None: the agent itself.
        search: of the prices.
        objective: what it looks for.
    """

    algorithm: Literal["headway"] = "headway"
    env: WorldChoice = WorldChoice()
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = (
        10.0,
        50.0,
        100.0,
        150.0,
        200.0,
    )
    burst_rates_per_min: tuple[Positive, ...] = (43.0, 100.0, 200.0)
    rows: PositiveInt = 192
    idle_rate_per_min: Positive = 0.05
    survey: Annotated[tuple[SurveyRound, ...], Field(min_length=1)] = (
        SurveyRound(queries=1_500_000, keep=1500),
        SurveyRound(queries=1_500_000, keep=400),
        SurveyRound(queries=800_000, keep=128),
        SurveyRound(queries=800_000),
    )
    load_sweeps: PositiveInt = 32
    load_queries: PositiveInt = 300
    mode: Literal["blind", "stale", "unread"] | None = None
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()

    @field_validator("env", mode="before")
    @classmethod
    def _check_env(cls, env: Any) -> Any:
        for key, why in _NOT_READ.items():
            if isinstance(env, dict) and key in env:
                raise ValueError(f"{key} is not for Headway: {why}; leave it out")
        return env
