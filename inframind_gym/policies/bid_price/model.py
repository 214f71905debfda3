"""Estimates of recipes, prices of servers, the choice that weighs them, and their checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import NonNegativeInt, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError, shortened
from inframind_gym.files import read_json
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price.recipes import RecipeTable, table_from_tensors
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.native import Bound, as_taken
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS

ALGORITHM: Final = "bid_price"
FORMAT: Final = 2  # of checkpoints
BY_RECIPE: Final = ("logit", "log_latency", "spread", "path_s", "path_calls", "work_s")
MAX_LOAD: Final = 10.0  # calls in flight per slot beyond which a price rises no further
_SQRT_HALF: Final = math.sqrt(0.5)


class Estimates(NamedTuple):
    """Estimates for R recipes in D domains on M models, at idle servers and under load.

    Times are wall-clock seconds of single calls under the workload's lengths.
    """

    logit: NDArray[np.float64]  # (D, R) log odds of a right answer to a question of mean difficulty
    log_latency: NDArray[np.float64]  # (D, R) mean of the log of the latency in s
    spread: NDArray[np.float64]  # (D, R) standard deviation of the same
    path_s: NDArray[np.float64]  # (D, R, M) seconds of each model on the slowest line of calls
    path_calls: NDArray[np.float64]  # (D, R, M) calls of each model on it
    work_s: NDArray[np.float64]  # (D, R, M) seconds of all calls: the time for which slots are held
    call_s: NDArray[np.float64]  # (M,) seconds of one call
    slots: NDArray[np.float64]  # (M,) calls that a server runs at once
    slowdown: NDArray[np.float64]  # (M, M + 1) log slowdown by every busy model, and by the batch
    budgets_s: NDArray[np.float64]  # (B,) rising: budgets for which waiting is estimated
    turns: NDArray[np.float64]  # (B, M) waiting per round of slots that is ahead, in calls


class Prices(NamedTuple):
    """Sets of prices, an array of them.

    A second of a slot of model m costs exp(base + load · calls in flight / slots) right answers.
    """

    load: NDArray[np.float64]  # (...)
    late_value: NDArray[np.float64]  # (...) value of a right answer that comes too late
    caution: NDArray[np.float64]  # (...) log of the factor by which latencies are overestimated
    patience_s: NDArray[np.float64]  # (...) budgets above count as this
    doubt: NDArray[np.float64]  # (...) variance added to that of log latency
    base: NDArray[np.float64]  # (..., M)

    def packed(self) -> NDArray[np.float64]:
        """Return the numbers of each set in the order of the fields, (..., 5 + M)."""
        return np.concatenate([np.stack(self[:-1], axis=-1), self.base], axis=-1)


_LOAD, _LATE_VALUE, _CAUTION, _PATIENCE_S, _DOUBT, _BASE = range(6)  # in `packed`


def between(
    packed: NDArray[np.float64], row: NDArray[np.int64], place: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return sets (n, 5 + M) of `Prices.packed` (C, K, 5 + M).

    Args:
        packed: sets.
        row: (n,) in 0..C-1.
        place: (n,) in 0..K-1; between two columns their numbers are interpolated.
    """
    below = place.astype(np.int64)
    low, high = packed[row, below], packed[row, np.minimum(below + 1, packed.shape[1] - 1)]
    low += (place - below)[:, None] * (high - low)
    return low


def edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Boundaries (K - 1,) at which the nearest in ratio of K rising positive values changes."""
    return np.asarray(np.sqrt(values[:-1] * values[1:]), np.float64)


def choose(
    known: Estimates,
    prices: NDArray[np.float64],
    needs: NDArray[np.uint32],
    in_flight: NDArray[np.float64],
    budget_s: NDArray[np.float64],
    domain: NDArray[np.int64],
    ease: NDArray[np.float64],
    models_up: NDArray[np.uint32],
    call: Bound | None = None,
) -> NDArray[np.int64]:
    """Choose the recipe of the best expected balance of success and price for each of n queries.

    Args:
        known: estimates.
        prices: (n, 5 + M) that each query pays, see `Prices.packed`.
        needs: (R,) bit masks of the models that recipes use.
        in_flight: (n, M) calls at each model.
        budget_s: (n,) seconds that are left.
        domain: (n,).
        ease: (n,) log odds by which the question looks easier than others of its domain.
        models_up: (n,) bit masks.
        call: `chooser()`, by who calls often with the same estimates, which are `as_taken` then.

    Returns:
        (n,) recipes; the first one where all need a model that is down.
    """
    chosen = np.zeros(len(in_flight), np.int64)
    if call is None:
        known, needs, call = as_taken(known), as_taken(needs), chooser()
    call(
        known,
        as_taken(prices),
        needs,
        as_taken(in_flight),
        as_taken(budget_s),
        np.searchsorted(edges(known.budgets_s), budget_s),
        as_taken(domain),
        as_taken(ease),
        as_taken(models_up),
        np.zeros((3, in_flight.shape[1])),
        chosen,
    )
    return chosen


def chooser() -> Bound:
    """Return the compiled choice, which keeps its last arguments."""
    return Bound(_choose)


@make_jit(Path(__file__))
def _choose(
    known: Estimates,
    prices: NDArray[np.float64],
    needs: NDArray[np.uint32],
    in_flight: NDArray[np.float64],
    budget_s: NDArray[np.float64],
    tiers: NDArray[np.int64],
    domain: NDArray[np.int64],
    ease: NDArray[np.float64],
    models_up: NDArray[np.uint32],
    scratch: NDArray[np.float64],
    out: NDArray[np.int64],
) -> None:
    """Write the choices; `tiers` (n,) are those of the budgets, `scratch` is (3, M)."""
    n, models = in_flight.shape
    recipes = needs.shape[0]
    price, slow, wait = scratch[0], scratch[1], scratch[2]
    for i in range(n):
        d = domain[i]
        tier = tiers[i]
        for m in range(models):
            load = in_flight[i, m] / known.slots[m]
            price[m] = math.exp(prices[i, _BASE + m] + prices[i, _LOAD] * min(load, MAX_LOAD))
            log_slow = known.slowdown[m, models] * min(load, 1.0)
            for other in range(models):
                if other != m:
                    log_slow += known.slowdown[m, other] * min(0.5 * in_flight[i, other], 1.0)
            slow[m] = math.exp(log_slow)
            rounds = max(in_flight[i, m] + 1.0 - known.slots[m], 0.0) / known.slots[m]
            wait[m] = known.turns[tier, m] * rounds * known.call_s[m] * slow[m]
        log_budget = math.log(min(budget_s[i], prices[i, _PATIENCE_S])) - prices[i, _CAUTION]
        late = prices[i, _LATE_VALUE]
        best = -np.inf
        for r in range(recipes):
            if needs[r] & ~models_up[i]:
                continue
            cost = 0.0
            for m in range(models):
                cost += price[m] * known.work_s[d, r, m]
            if 1.0 - cost <= best:  # not even if it were right for sure
                continue
            right = 1.0 / (1.0 + math.exp(-(known.logit[d, r] + ease[i])))
            if right - cost <= best:  # not even if it were on time for sure
                continue
            idle_s = 0.0
            path_s = 0.0
            for m in range(models):
                idle_s += known.path_s[d, r, m]
                path_s += slow[m] * known.path_s[d, r, m] + wait[m] * known.path_calls[d, r, m]
            log_latency = known.log_latency[d, r] + math.log(path_s / idle_s)
            sigma = math.sqrt(known.spread[d, r] ** 2 + prices[i, _DOUBT])
            on_time = 0.5 * math.erfc((log_latency - log_budget) / sigma * _SQRT_HALF)
            score = right * (late + (1.0 - late) * on_time) - cost
            if score > best:
                best = score
                out[i] = r


@dataclass(frozen=True)
class BidPriceModel:
    """Recipes, estimates of them, and prices."""

    models: tuple[str, ...]  # the pool's aliases, in its order
    strategies: int  # number of strategies
    recipes: RecipeTable  # R recipes
    known: Estimates  # of them
    prices: Prices  # (C, K), by candidate and rate; C = 1 in a checkpoint
    rates_per_min: NDArray[np.float64]  # (K,) rising, of the prices
    ease_weights: NDArray[np.float64]  # (384,) by which an embedding makes a question easier
    ease_centres: NDArray[np.float64]  # (D,) mean of that over a domain's questions

    def ease(self, task_embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log odds by which each question looks easier than others of a domain, (T, D)."""
        scores: NDArray[np.float64] = task_embeddings.astype(np.float64) @ self.ease_weights
        return scores[:, None] - self.ease_centres

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Named arrays at full precision; `from_tensors` is the inverse."""
        tensors: dict[str, NDArray[Any]] = {
            "ease.weights": self.ease_weights,
            "ease.centres": self.ease_centres,
            "rates_per_min": self.rates_per_min,
        }
        tensors |= checkpoint.prefixed(self.known._asdict(), "known.")
        tensors |= checkpoint.prefixed(self.prices._asdict(), "prices.")
        return tensors | self.recipes.to_tensors()


def from_tensors(
    tensors: Mapping[str, NDArray[Any]], models: Sequence[str], strategies: int
) -> BidPriceModel:
    """Return the model whose `to_tensors` these are."""
    floats = {
        name: np.ascontiguousarray(array, np.float64)
        for name, array in tensors.items()
        if array.dtype.kind == "f"
    }
    return BidPriceModel(
        models=tuple(models),
        strategies=strategies,
        recipes=table_from_tensors(tensors, strategies),
        known=Estimates(**checkpoint.part(floats, "known.")),
        prices=Prices(**checkpoint.part(floats, "prices.")),
        rates_per_min=floats["rates_per_min"],
        ease_weights=floats["ease.weights"],
        ease_centres=floats["ease.centres"],
    )


def save_model(folder: str | Path, model: BidPriceModel, about: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        folder: of the checkpoint.
        model: with the prices of one candidate.
        about: JSON values: configuration and seed of the training.
    """
    facts = {
        "algorithm": ALGORITHM,
        "format": FORMAT,
        "models": list(model.models),
        "strategies": model.strategies,
    }
    tensors = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in model.to_tensors().items()
    }
    checkpoint.save(folder, tensors, {**about, **facts})


# Axes of every tensor: D domains, R recipes, N nodes, M models, K rates, B budgets, E embedding.
_AXES: Final = {
    "ease.weights": "E",
    "ease.centres": "D",
    "rates_per_min": "K",
    **dict.fromkeys(("recipes.topology", "recipes.roles", "recipes.strategy"), "R"),
    "recipes.models": "RN",
    **{f"known.{name}": "DR" for name in BY_RECIPE[:3]},
    **{f"known.{name}": "DRM" for name in BY_RECIPE[3:]},
    **dict.fromkeys(("known.call_s", "known.slots"), "M"),
    "known.slowdown": "M+",  # M + 1 in the second
    "known.budgets_s": "B",
    "known.turns": "BM",
    "prices.base": "1KM",
    **{f"prices.{name}": "1K" for name in ("load", "late_value", "caution", "patience_s", "doubt")},
}


class BidPriceCheckpoint(BaseModel):
    """Keys of `config.json` that are read.

    Attributes:
        algorithm: ALGORITHM.
        format: FORMAT.
        models: aliases, in the order of the tensors.
        strategies: how many there are.
    """

    algorithm: str
    format: NonNegativeInt = 1
    models: tuple[str, ...] = ()
    strategies: NonNegativeInt = 0


def read_about(folder: Path) -> BidPriceCheckpoint:
    """Read the configuration of a checkpoint.

    Raises:
        ConfigError: it is malformed, or of another algorithm or format.
    """
    path = folder / checkpoint.CONFIG_FILE
    about = validate(read_json(path), BidPriceCheckpoint, source=str(path))
    if about.algorithm != ALGORITHM:
        raise ConfigError(
            f"{folder}: is a checkpoint of {shortened(about.algorithm)!r}, not of {ALGORITHM!r}."
        )
    if about.format != FORMAT:
        raise ConfigError(
            f"{folder}: is a checkpoint of format {about.format}; this version reads {FORMAT}. "
            "Train it again: python -m agents.train --config bid_price --out FOLDER"
        )
    return about


def load_model(folder: str | Path) -> BidPriceModel:
    """Read a checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged or of another algorithm or format.
    """
    tensors, _ = checkpoint.load(folder)
    about = read_about(Path(folder))
    models, strategies = about.models, about.strategies
    sizes = {"E": EMBED_DIM, "D": len(DOMAINS), "N": MAX_NODES, "M": len(models)}
    sizes |= {"+": len(models) + 1, "1": 1}
    for axis, name in {
        "R": "recipes.topology",
        "K": "rates_per_min",
        "B": "known.budgets_s",
    }.items():
        sizes[axis] = len(tensors.get(name, ()))
    shapes = {name: tuple(sizes[axis] for axis in axes) for name, axes in _AXES.items()}
    checkpoint.check_shapes(folder, tensors, shapes)
    for name, low, count in (
        ("topology", 0, len(TOPOLOGIES)),
        ("strategy", 0, strategies),
        ("roles", 0, len(RoleRule)),
        ("models", -1, len(models)),
    ):
        array = tensors[f"recipes.{name}"]
        if array.size == 0 or array.min() < low or array.max() >= count:
            raise ConfigError(
                f"{folder}: recipes.{name} must hold numbers from {low} to {count - 1}."
            )
    for name in ("rates_per_min", "known.budgets_s"):
        values = tensors[name]
        if not len(values) or values[0] <= 0.0 or not (np.diff(values) > 0.0).all():
            raise ConfigError(f"{folder}: {name} must hold positive numbers that rise.")
    return from_tensors(tensors, models, strategies)
