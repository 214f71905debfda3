"""Configuration of the training of bid prices."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from agents.config import WorldChoice
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
)


class SurveyRound(StrictModel):
    """One round of the survey, after which the recipes that no situation calls for are dropped."""

    queries: PositiveInt  # played in it, rounded up to whole batches of `rows` episodes
    keep: PositiveInt | None = None  # most recipes left after it; None keeps all (the last round)


class LoadConfig(StrictModel):
    """Episodes at random prices, from which the effect of load on the time of calls is fitted."""

    episodes: PositiveInt = 192
    queries: PositiveInt = 300  # in each


class ChoiceConfig(StrictModel):
    """Numbers of the choice beside the prices, as in `policies.bid_price.model.Prices`."""

    load: NonNegative = 1.0
    late_value: Fraction = 0.075
    caution: Number = 0.0
    patience_s: Positive = 110.0
    doubt: NonNegative = 0.05


class ValidationConfig(StrictModel):
    """Streams on the split "val" at every rate that has prices; the middle of each is scored."""

    episodes: PositiveInt = 1  # at each rate
    queries: PositiveInt = 3000  # in a stream


class BidPriceConfig(StrictModel):
    """Training of bid prices; the defaults are those of the shipped checkpoints."""

    algorithm: Literal["bid_price"] = "bid_price"
    env: WorldChoice = WorldChoice()  # of the training; a checkpoint is for its workload and pool
    # recipes of one call alone, as `inframind serve` routes them
    single_calls: bool = Field(default=False, exclude_if=lambda single_calls: not single_calls)
    # GPU-seconds of full steps that a query may take in the mean, as the track `cost` caps them
    work_cap_s: Positive | None = Field(default=None, exclude_if=lambda cap_s: cap_s is None)
    rows: PositiveInt = 480  # episodes that run in lockstep
    idle_rate_per_min: Positive = 0.05  # arrival rate at which queries hardly ever meet
    survey: Annotated[tuple[SurveyRound, ...], Field(min_length=1)] = (
        SurveyRound(queries=480_000, keep=1200),
        SurveyRound(queries=480_000, keep=300),
        SurveyRound(queries=240_000, keep=100),
        SurveyRound(queries=480_000),
    )
    load: LoadConfig = LoadConfig()
    # the rates that get prices, over the capacity, rising
    loads: Annotated[tuple[Positive, ...], Field(min_length=2)] = tuple(
        np.geomspace(0.1, 1.5, 24).round(3).tolist()
    )
    choice: ChoiceConfig = ChoiceConfig()
    validation: ValidationConfig = ValidationConfig()

    @field_validator("loads")
    @classmethod
    def _check_loads(cls, loads: tuple[float, ...]) -> tuple[float, ...]:
        if not (np.diff(np.array(loads, np.float32)) > 0.0).all():  # as a checkpoint keeps them
            raise ValueError(f"loads must rise, got {list(loads)}")
        return loads
