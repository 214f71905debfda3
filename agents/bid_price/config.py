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
    """One round of the survey, after which the recipes that no situation calls for are dropped.

    Attributes:
        queries: played in it, rounded up to whole batches of `rows` episodes.
        keep: most recipes that are left after it; None keeps all (the last round).
    """

    queries: PositiveInt
    keep: PositiveInt | None = None


class SearchRound(StrictModel):
    """One round of the search: runs of CMA-ES side by side, the best ones of the round before.

    Attributes:
        searches: runs at each rate.
        generations: of each.
        episodes: that judge a candidate, the same for a generation and new ones for the next.
    """

    searches: PositiveInt
    generations: PositiveInt
    episodes: PositiveInt


class SearchConfig(StrictModel):
    """Search of the prices, at each rate by itself.

    The choice of the models to use at all has many local optima. So the search begins with a grid
    of uniform prices for all sets of models, runs CMA-ES from the best of them, and drops the worse
    runs (successive halving). Episodes are counted without those with bursts: each point plays one
    of these too, and in comparisons as many as of the others.

    Attributes:
        max_models: sets of up to so many models are in the grid, and the set of all.
        grid_prices: of a second of a slot, the same for all models of a set; the other models cost
            more than any answer is worth.
        grid_episodes: that judge a point of the grid.
        rounds: none with more searches than the one before.
        population: candidates in a generation.
        sigma: standard deviation of the first candidates, in the units of `search.UNITS`.
        final_episodes: by which searches are compared at the end of a round.
        queries: in an episode.
    """

    max_models: PositiveInt = 3
    grid_prices: _Some[Positive] = (0.0003, 0.001, 0.003, 0.01, 0.03)
    grid_episodes: PositiveInt = 1
    rounds: _Some[SearchRound] = (
        SearchRound(searches=4, generations=8, episodes=1),
        SearchRound(searches=2, generations=12, episodes=2),
        SearchRound(searches=1, generations=30, episodes=3),
    )
    population: Annotated[int, Field(ge=2)] = 12
    sigma: Positive = 0.7
    final_episodes: PositiveInt = 8
    queries: PositiveInt = 500

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
    """Value of an episode: weights of shares of its queries.

    Attributes:
        goodput: of those that are solved within their own budget.
        solved: of those that are solved at all.
        slo_latency_s: target of the latency, whatever the budget.
        slo_share: share of the queries that are to meet it, in the mean.
        slo_penalty: of what is missing from that share.
        bursts: weight of an episode whose arrivals come in bursts with the same mean rate
            (`BurstArrivals`), beside 1 for a steady one. The target does not count in bursts,
            in which even the cheapest recipes miss it.
    """

    goodput: NonNegative = 1.0
    solved: NonNegative = 0.15
    slo_latency_s: Positive = 100.0
    slo_share: Fraction = 0.975
    slo_penalty: NonNegative = 5.0
    bursts: NonNegative = 0.3


class BidPriceConfig(StrictModel):
    """Training of bid prices; the defaults are those of the shipped checkpoints.

    Attributes:
        algorithm: "bid_price".
        env: environment of the training; a checkpoint is for its workload.
        rates_per_min: arrival rates, rising, each of which gets prices of its own.
        rows: episodes that run in lockstep.
        idle_rate_per_min: arrival rate at which queries hardly ever meet.
        survey: its rounds.
        load_episodes: episodes at each rate from which the effect of load is estimated.
        load_queries: queries in each of them.
        mode: an ablation, one of `policy.MODES`: prices are searched for in it, and the checkpoint
            plays so; None: the agent itself.
        search: of the prices.
        objective: of the search.
        validation_episodes: that the trained agent plays at each rate on the split "val".
    """

    algorithm: Literal["bid_price"] = "bid_price"
    env: WorldChoice = WorldChoice()
    rates_per_min: _Some[Positive] = (10.0, 50.0, 100.0, 200.0)
    rows: PositiveInt = 480
    idle_rate_per_min: Positive = 0.05
    survey: _Some[SurveyRound] = (
        SurveyRound(queries=750_000, keep=1500),
        SurveyRound(queries=700_000, keep=400),
        SurveyRound(queries=400_000, keep=128),
        SurveyRound(queries=600_000),
    )
    load_episodes: PositiveInt = 96
    load_queries: PositiveInt = 300
    mode: Literal["no-state", "polled", "no-difficulty"] | None = None
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()
    validation_episodes: PositiveInt = 8

    @field_validator("rates_per_min")
    @classmethod
    def _check_rates(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        kept = np.array(rates, np.float32)  # as a checkpoint keeps them
        if not (np.diff(kept) > 0.0).all():
            raise ValueError(f"rates_per_min must rise, got {list(rates)}")
        return rates
