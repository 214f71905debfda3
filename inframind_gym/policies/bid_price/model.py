"""Estimates of recipes, prices of servers, the choice that weighs them, and their checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from inframind_gym.configs import NonNegativeInt, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price.recipes import RecipeTable, table_from_tensors
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.native import as_taken
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS

ALGORITHM: Final = "bid_price"
ALGORITHMS: Final = (ALGORITHM, "headway")  # and its former name, which shipped checkpoints have
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
    """P sets of prices, of which every query pays one.

    A second of a slot of model m costs exp(base + load · calls in flight / slots).
    """

    base: NDArray[np.float64]  # (P, M)
    load: NDArray[np.float64]  # (P, M)
    late_value: NDArray[np.float64]  # (P,) value of a right answer that comes too late
    caution: NDArray[np.float64]  # (P,) log of the factor by which latencies are overestimated
    patience_s: NDArray[np.float64]  # (P,) budgets above count as this
    doubt: NDArray[np.float64]  # (P,) variance added to that of log latency


def edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Boundaries (K - 1,) at which the nearest in ratio of K rising positive values changes."""
    return np.asarray(np.sqrt(values[:-1] * values[1:]), np.float64)


def choose(
    known: Estimates,
    prices: Prices,
    needs: NDArray[np.uint32],
    priced: NDArray[np.int64],
    in_flight: NDArray[np.float64],
    budget_s: NDArray[np.float64],
    domain: NDArray[np.int64],
    ease: NDArray[np.float64],
    models_up: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """Choose the recipe of the best expected balance of success and price for each of n queries.

    Args:
        known: estimates.
        prices: P sets.
        needs: (R,) bit masks of the models that recipes use.
        priced: (n,) set of prices that each query pays.
        in_flight: (n, M) calls at each model.
        budget_s: (n,) seconds that are left.
        domain: (n,).
        ease: (n,) log odds by which the question looks easier than others of its domain.
        models_up: (n,) bit masks.

    Returns:
        (n,) recipes; the first one where all need a model that is down.
    """
    chosen = np.zeros(len(in_flight), np.int64)
    _choose(
        as_taken(known),
        as_taken(prices),
        as_taken(needs),
        as_taken(priced),
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


@make_jit(Path(__file__))
def _choose(
    known: Estimates,
    prices: Prices,
    needs: NDArray[np.uint32],
    priced: NDArray[np.int64],
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
        c = priced[i]
        d = domain[i]
        tier = tiers[i]
        for m in range(models):
            load = in_flight[i, m] / known.slots[m]
            price[m] = math.exp(prices.base[c, m] + prices.load[c, m] * min(load, MAX_LOAD))
            log_slow = known.slowdown[m, models] * min(load, 1.0)
            for other in range(models):
                if other != m:
                    log_slow += known.slowdown[m, other] * min(0.5 * in_flight[i, other], 1.0)
            slow[m] = math.exp(log_slow)
            rounds = max(in_flight[i, m] + 1.0 - known.slots[m], 0.0) / known.slots[m]
            wait[m] = known.turns[tier, m] * rounds * known.call_s[m] * slow[m]
        log_budget = math.log(min(budget_s[i], prices.patience_s[c])) - prices.caution[c]
        late = prices.late_value[c]
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
            sigma = math.sqrt(known.spread[d, r] ** 2 + prices.doubt[c])
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
    prices: Prices  # P = C · K sets, the K of a candidate together; C = 1 in a checkpoint
    rates_per_min: NDArray[np.float64]  # (K,) rising, that the sets of a candidate are for
    ease_weights: NDArray[np.float64]  # (384,) by which an embedding makes a question easier
    ease_centres: NDArray[np.float64]  # (D,) mean of that over a domain's questions

    def ease(self, task_embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log odds by which each question looks easier than others of a domain, (T, D)."""
        scores: NDArray[np.float64] = task_embeddings.astype(np.float64) @ self.ease_weights
        return scores[:, None] - self.ease_centres

    def priced(
        self, prices: Prices, rates_per_min: Sequence[float] | NDArray[np.float64]
    ) -> BidPriceModel:
        """Return a copy with other prices, see `prices` and `rates_per_min`."""
        rates = np.array(rates_per_min, np.float64)
        return replace(self, prices=prices, rates_per_min=rates)

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
    facts = {"algorithm": ALGORITHM, "models": list(model.models), "strategies": model.strategies}
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
    **dict.fromkeys(("prices.base", "prices.load"), "KM"),
    **{f"prices.{name}": "K" for name in ("late_value", "caution", "patience_s", "doubt")},
}


class _Trained(BaseModel):
    mode: str | None = None


class BidPriceCheckpoint(BaseModel):
    """Keys of `config.json` that are read.

    Attributes:
        algorithm: one of ALGORITHMS.
        models: aliases, in the order of the tensors.
        strategies: how many there are.
        config: settings of the training.
    """

    algorithm: str
    models: tuple[str, ...] = ()
    strategies: NonNegativeInt = 0
    config: _Trained = _Trained()


def load_model(folder: str | Path) -> BidPriceModel:
    """Read a checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged or of another algorithm.
    """
    tensors, content = checkpoint.load(folder)
    source = Path(folder) / checkpoint.CONFIG_FILE
    config = validate(content, BidPriceCheckpoint, source=str(source))
    models, strategies = config.models, config.strategies
    sizes = {"E": EMBED_DIM, "D": len(DOMAINS), "N": MAX_NODES, "M": len(models)}
    sizes["+"] = len(models) + 1
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
