"""Configuration of Headway's training (`agents/configs/headway.yaml`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agents.config import EnvChoice
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
)
from inframind_gym.workload.budgets import RATES_PER_MIN


class SurveyRound(StrictModel):
    """One round of the survey.

    Attributes:
        queries: played in it, in all.
        keep: most recipes that are left after it; None keeps all (the last round).
    """

    queries: PositiveInt
    keep: PositiveInt | None = None


class SearchConfig(StrictModel):
    """The search of the prices.

    Attributes:
        generations: of CMA-ES.
        candidates: prices in a generation.
        sweeps_per_rate: sweeps at each rate by which a candidate is judged; the same for all
            candidates of a generation, new ones in the next.
        queries: in a sweep.
        spread: standard deviation of the first candidates, in the units of `training.UNITS`.
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
        shortfall: of what is missing from that share.
    """

    goodput: NonNegative = 1.0
    solved: NonNegative = 0.15
    within_s: Positive = 100.0
    within_share: Fraction = 0.96
    shortfall: NonNegative = 3.0


class HeadwayConfig(StrictModel):
    """Headway.

    Of `env`, sweeps have the lengths given here, and the agent sees what it needs: `num_queries`
    and `system_features` are not read.

    Attributes:
        algorithm: "headway".
        env: the world.
        rates_per_min: arrival rates of the sweeps.
        rows: sweeps that run in lockstep.
        idle_rate_per_min: arrival rate at which queries hardly ever meet.
        survey: its rounds.
        load_sweeps: sweeps at each rate from which the effect of load is learned.
        load_queries: queries in each of them.
        search: of the prices.
        objective: what it looks for.
    """

    algorithm: Literal["headway"] = "headway"
    env: EnvChoice = EnvChoice()
    rates_per_min: Annotated[tuple[Positive, ...], Field(min_length=1)] = RATES_PER_MIN
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
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()
