"""Prices of models, from `envs_configs/prices.yaml`: each with its date and source."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from inframind_gym.configs import NonNegative, StrictModel, load_yaml_model, shipped_file
from inframind_gym.errors import ConfigError, unknown

_PER = 1_000_000


class Price(StrictModel):
    """Price of one model.

    Attributes:
        input_usd_per_mtok: USD for a million tokens of prompts.
        output_usd_per_mtok: USD for a million tokens of answers.
        as_of: Day on which the source said so, YYYY-MM-DD.
        source: Page of the vendor, or what else the price rests on.
    """

    input_usd_per_mtok: NonNegative
    output_usd_per_mtok: NonNegative
    as_of: str
    source: str

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of a call."""
        input_usd = input_tokens * (self.input_usd_per_mtok / _PER)
        return input_usd + output_tokens * (self.output_usd_per_mtok / _PER)


class Prices(StrictModel):
    """Table of prices by the model's name."""

    models: dict[str, Price]

    def of(self, model: str) -> Price:
        """Return the price of a model.

        Raises:
            ConfigError: The table has none.
        """
        if model not in self.models:
            raise ConfigError(unknown("model with a price", model, tuple(self.models)))
        return self.models[model]

    def cost_usd(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        """Return the price of a call; None for a model without a price."""
        price = self.models.get(model)
        return None if price is None else price.cost_usd(input_tokens, output_tokens)


@cache
def shipped_prices() -> Prices:
    """Return the table that is shipped."""
    return load_prices(shipped_file("prices.yaml"))


def load_prices(path: str | Path) -> Prices:
    """Read a table of prices.

    Raises:
        ConfigError: The file is wrong; names file, line and key.
    """
    return load_yaml_model(path, Prices)
