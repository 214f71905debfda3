"""Configuration of the training of bid prices."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from agents.config import WorldChoice
from inframind_gym.configs import Fraction, NonNegative, Positive, PositiveInt, StrictModel


class SurveyRound(StrictModel):
    """One round of the survey, after which the recipes that no situation calls for are dropped."""

    queries: PositiveInt  # played in it, rounded up to whole batches of `rows` episodes
    keep: PositiveInt | None = None  # most recipes left after it; None keeps all (the last round)


class LoadConfig(StrictModel):
    """Episodes at random prices, from which the effect of load on the time of calls is fitted."""

    episodes: PositiveInt = 192
    queries: PositiveInt = 300  # in each


class SearchConfig(StrictModel):
    """CMA-ES at every rate of the prices, each candidate judged by one stream near its rate.

    The middle of a stream is scored: the first queries fill the servers, and while those in the
    middle are answered, others arrive.
    """

    # the rates over the capacity, rising
    loads: Annotated[tuple[Positive, ...], Field(min_length=2)] = (
        0.3, 0.5, 0.65, 0.75, 0.85, 0.95, 1.05, 1.2, 1.4,
    )  # fmt: skip
    generations: PositiveInt = 14
    population: Annotated[int, Field(ge=2)] = 14  # candidates of a rate in a generation
    sigma: Positive = 0.5  # standard deviation of the first ones, in the units of `search.UNITS`
    queries: PositiveInt = 1500  # in a stream

    @field_validator("loads")
    @classmethod
    def _check_loads(cls, loads: tuple[float, ...]) -> tuple[float, ...]:
        if not (np.diff(np.array(loads, np.float32)) > 0.0).all():  # as a checkpoint keeps them
            raise ValueError(f"loads must rise, got {list(loads)}")
        return loads


class ValidationConfig(StrictModel):
    """Streams on the split "val", by which the search's result is compared with its start."""

    episodes: PositiveInt = 2  # at each rate of the search
    queries: PositiveInt = 3000  # in a stream


class Objective(StrictModel):
    """Value of a stream: weights of shares of its queries."""

    goodput: NonNegative = 1.0  # of those that are solved within their own budget
    solved: NonNegative = 0.0  # of those that are solved at all
    slo_latency_s: Positive = 100.0  # target of the latency, whatever the budget
    slo_share: Fraction = 0.975  # share of the queries that are to meet it
    slo_penalty: NonNegative = 0.0  # of what is missing from that share


class BidPriceConfig(StrictModel):
    """Training of bid prices; the defaults are those of the shipped checkpoints."""

    algorithm: Literal["bid_price"] = "bid_price"
    env: WorldChoice = WorldChoice()  # of the training; a checkpoint is for its workload and pool
    # recipes of one call alone, as `inframind serve` routes them
    single_calls: bool = Field(default=False, exclude_if=lambda single_calls: not single_calls)
    rows: PositiveInt = 480  # episodes that run in lockstep
    idle_rate_per_min: Positive = 0.05  # arrival rate at which queries hardly ever meet
    survey: Annotated[tuple[SurveyRound, ...], Field(min_length=1)] = (
        SurveyRound(queries=480_000, keep=1200),
        SurveyRound(queries=480_000, keep=300),
        SurveyRound(queries=240_000, keep=100),
        SurveyRound(queries=480_000),
    )
    load: LoadConfig = LoadConfig()
    # An ablation, one of `policy.MODES`: prices are searched for in it, and the checkpoint plays
    # so; None: the agent itself.
    mode: Literal["no-state", "polled", "no-difficulty"] | None = None
    search: SearchConfig = SearchConfig()
    objective: Objective = Objective()
    validation: ValidationConfig = ValidationConfig()
