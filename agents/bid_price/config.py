"""Configuration of the training of bid prices."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field, field_validator

from agents.config import WorldChoice
from inframind_gym.configs import Fraction, NonNegative, Positive, PositiveInt, StrictModel

T = TypeVar("T")
_Some = Annotated[tuple[T, ...], Field(min_length=1)]


class SurveyRound(StrictModel):
    """One round of the survey, after which the recipes that no situation calls for are dropped."""

    queries: PositiveInt  # played in it, rounded up to whole batches of `rows` episodes
    keep: PositiveInt | None = None  # most recipes left after it; None keeps all (the last round)


class SearchRound(StrictModel):
    """One round of the search: runs of CMA-ES side by side, the best ones of the round before."""

    searches: PositiveInt  # runs at each rate
    generations: PositiveInt  # of each
    # that judge a candidate, the same for a generation and new ones for the next
    episodes: PositiveInt


class SearchConfig(StrictModel):
    """Search of the prices, at each rate by itself.

    The choice of the models to use at all has many local optima. So the search begins with a grid
    of uniform prices for all sets of models, runs CMA-ES from the best of them, and drops the worse
    runs (successive halving). Episodes are counted without those with bursts: each point plays one
    of these too, and in comparisons as many as of the others.
    """

    max_models: PositiveInt = 3  # sets of up to so many are in the grid, and the set of all
    # of a second of a slot, the same for all models of a set; the others cost more than any answer
    grid_prices: _Some[Positive] = (0.0003, 0.001, 0.003, 0.01, 0.03)
    grid_episodes: PositiveInt = 1  # that judge a point of the grid
    rounds: _Some[SearchRound] = (  # none with more searches than the one before
        SearchRound(searches=4, generations=8, episodes=1),
        SearchRound(searches=2, generations=12, episodes=2),
        SearchRound(searches=1, generations=30, episodes=3),
    )
    population: Annotated[int, Field(ge=2)] = 12  # candidates in a generation
    sigma: Positive = 0.7  # standard deviation of the first ones, in the units of `search.UNITS`
    final_episodes: PositiveInt = 8  # by which searches are compared at the end of a round
    queries: PositiveInt = 500  # in an episode

    @field_validator("rounds")
    @classmethod
    def _check_rounds(cls, rounds: tuple[SearchRound, ...]) -> tuple[SearchRound, ...]:
        counts = [one.searches for one in rounds]
        if counts != sorted(counts, reverse=True) or counts[-1] != 1:
            raise ValueError(
                f"searches must not grow from round to round and end at 1, got {counts}"
            )
        return rounds


class Objective(StrictModel):
    """Value of an episode: weights of shares of its queries."""

    goodput: NonNegative = 1.0  # of those that are solved within their own budget
    solved: NonNegative = 0.15  # of those that are solved at all
    slo_latency_s: Positive = 100.0  # target of the latency, whatever the budget
    slo_share: Fraction = 0.975  # share of the queries that are to meet it, in the mean
    slo_penalty: NonNegative = 5.0  # of what is missing from that share
    # Weight of an episode whose arrivals come in bursts with the same mean rate (`BurstArrivals`),
    # beside 1 for a steady one. The target does not count in bursts, in which even the cheapest
    # recipes miss it.
    bursts: NonNegative = 0.3


class BidPriceConfig(StrictModel):
    """Training of bid prices; the defaults are those of the shipped checkpoints."""

    algorithm: Literal["bid_price"] = "bid_price"
    env: WorldChoice = WorldChoice()  # of the training; a checkpoint is for its workload
    # recipes of one call alone, as `inframind serve` routes them
    single_calls: bool = Field(default=False, exclude_if=lambda single_calls: not single_calls)
    # arrival rates, rising, each of which gets prices of its own
    rates_per_min: _Some[Positive] = (10.0, 50.0, 100.0, 200.0)
    rows: PositiveInt = 480  # episodes that run in lockstep
    idle_rate_per_min: Positive = 0.05  # arrival rate at which queries hardly ever meet
    survey: _Some[SurveyRound] = (
        SurveyRound(queries=750_000, keep=1500),
        SurveyRound(queries=700_000, keep=400),
        SurveyRound(queries=400_000, keep=128),
        SurveyRound(queries=600_000),
    )
    load_episodes: PositiveInt = 96  # at each rate, from which the effect of load is estimated
    load_queries: PositiveInt = 300  # in each of them
    # An ablation, one of `policy.MODES`: prices are searched for in it, and the checkpoint plays
    # so; None: the agent itself.
    mode: Literal["no-state", "polled", "no-difficulty"] | None = None
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()
    validation_episodes: PositiveInt = 8  # of the trained agent at each rate on the split "val"

    @field_validator("rates_per_min")
    @classmethod
    def _check_rates(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        kept = np.array(rates, np.float32)  # as a checkpoint keeps them
        if not (np.diff(kept) > 0.0).all():
            raise ValueError(f"rates_per_min must rise, got {list(rates)}")
        return rates
