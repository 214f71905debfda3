"""Bid prices: every second of every server's slots has a price, which rises with the load.

A query is answered by a *recipe* (`policies.recipes`). When a query arrives, each recipe's chance
of a right answer within the budget is estimated, and the price of the work it would cause is taken
off; the best balance wins. The prices stand for what the work costs other queries. This is the
bid-price control of network revenue management, with servers as the network's legs: K. Talluri and
G. van Ryzin, "An Analysis of Bid-Price Controls for Network Revenue Management", Management Science
44 (1998). `agents/bid_price` trains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, model_validator

from inframind_gym.configs import NonNegativeInt, validate
from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, shortened
from inframind_gym.files import read_json
from inframind_gym.policies import checkpoint
from inframind_gym.policies.base import Contexts
from inframind_gym.policies.checkpoint import CONFIG_FILE, folders
from inframind_gym.policies.recipes import REQUIRES, RecipePolicy, RecipeTable, table_from_tensors
from inframind_gym.simulator.jit import Bound, as_taken, jit
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS, EMBED_DIM

ALGORITHM: Final = "bid_price"
FORMAT: Final = 2  # of checkpoints
SHIPPED: Final = checkpoint.SHIPPED / ALGORITHM
BY_RECIPE: Final = ("logit", "log_latency", "spread", "path_s", "path_calls", "work_s")
MAX_LOAD: Final = 10.0  # calls in flight per slot beyond which a price rises no further
FALLBACK: Final = "mixed"  # the checkpoint of workloads that have none of their own
TRAIN: Final = (
    "Train one (extra `agents`): `inframind train bid_price --pool POOL.yaml "
    "--workload WORKLOAD.yaml --out FOLDER`, and play bid_price:FOLDER/best"
)
_SQRT_HALF: Final = math.sqrt(0.5)
_WINDOW: Final = 256  # arrivals from which their rate is estimated
_PRIOR_QUERIES: Final = 8.0  # assumed before any arrival, at the highest rate that has prices


class Estimates(NamedTuple):
    """Estimates for R recipes in D domains on M models, at idle servers and under load.

    Times are wall-clock seconds of single calls under the workload's lengths.
    """

    logit: Floats  # (D, R) log odds of a right answer to a question of mean difficulty
    log_latency: Floats  # (D, R) mean of the log of the latency in s
    spread: Floats  # (D, R) standard deviation of the same
    path_s: Floats  # (D, R, M) seconds of each model on the slowest line of calls
    path_calls: Floats  # (D, R, M) calls of each model on it
    work_s: Floats  # (D, R, M) seconds of all calls: the time for which slots are held
    call_s: Floats  # (M,) seconds of one call
    slots: Floats  # (M,) calls that a server runs at once
    slowdown: Floats  # (M, M + 1) log slowdown by every busy model, and by the batch
    budgets_s: Floats  # (B,) rising: budgets for which waiting is estimated
    turns: Floats  # (B, M) waiting per round of slots that is ahead, in calls


class Prices(NamedTuple):
    """Sets of prices, an array of them.

    A second of a slot of model m costs exp(base + load · calls in flight / slots) right answers.
    """

    load: Floats  # (...)
    late_value: Floats  # (...) value of a right answer that comes too late
    caution: Floats  # (...) log of the factor by which latencies are overestimated
    patience_s: Floats  # (...) longer budgets count as this
    doubt: Floats  # (...) variance added to that of log latency
    base: Floats  # (..., M)

    def packed(self) -> Floats:
        """Return the numbers of each set in the order of the fields, (..., 5 + M)."""
        return np.concatenate([np.stack(self[:-1], axis=-1), self.base], axis=-1)


_LOAD, _LATE_VALUE, _CAUTION, _PATIENCE_S, _DOUBT, _BASE = range(6)  # in `packed`


def edges(values: Floats) -> Floats:
    """Boundaries (K - 1,) at which the nearest in ratio of K rising positive values changes."""
    return np.asarray(np.sqrt(values[:-1] * values[1:]), np.float64)


def choose(
    known: Estimates,
    prices: Floats,  # (n, 5 + M) that each query pays, see `Prices.packed`
    needs: NDArray[np.uint32],  # (R,) bit masks of the models that recipes use
    in_flight: Floats,  # (n, M) calls at each model
    budget_s: Floats,  # (n,) that are left
    domain: Ints,  # (n,)
    ease: Floats,  # (n,) log odds by which the question looks easier than others of its domain
    models_up: NDArray[np.uint32],  # (n,) bit masks
    call: Bound | None = None,  # of `choose_each`, by who calls often; `known` is `as_taken` then
) -> Ints:
    """Choose the recipe of the best expected balance of success and price for each of n queries.

    Returns:
        (n,) recipes; the first one where all need a model that is down.
    """
    chosen = np.zeros(len(in_flight), np.int64)
    if call is None:
        known, needs, call = as_taken(known), as_taken(needs), Bound(choose_each)
    tiers = np.searchsorted(edges(known.budgets_s), budget_s)
    scratch = np.zeros((3, in_flight.shape[1]))
    queries = (as_taken(part) for part in (domain, ease, models_up))
    load = as_taken(in_flight), as_taken(budget_s), tiers
    call(known, as_taken(prices), needs, *load, *queries, scratch, chosen)
    return chosen


@jit
def choose_each(
    known: Estimates,
    prices: Floats,
    needs: NDArray[np.uint32],
    in_flight: Floats,
    budget_s: Floats,
    tiers: Ints,
    domain: Ints,
    ease: Floats,
    models_up: NDArray[np.uint32],
    scratch: Floats,
    out: Ints,
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
    rates_per_min: Floats  # (K,) rising, of the prices
    ease_weights: Floats  # (384,) by which an embedding makes a question easier
    ease_centres: Floats  # (D,) mean of that over a domain's questions

    def ease(self, task_embeddings: Float32s) -> Floats:
        """Log odds by which each question looks easier than others of a domain, (T, D)."""
        scores: Floats = task_embeddings.astype(np.float64) @ self.ease_weights
        return scores[:, None] - self.ease_centres

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Return named arrays at full precision; `from_tensors` is the inverse."""
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
    """Write a checkpoint of a model with one candidate's prices; `about` is of the training."""
    facts: dict[str, Any] = {"algorithm": ALGORITHM, "format": FORMAT}
    facts |= {"models": list(model.models), "strategies": model.strategies}
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
    """Keys of `config.json` that are read."""

    algorithm: str
    format: NonNegativeInt = 1
    models: tuple[str, ...] = ()  # aliases, in the order of the tensors
    strategies: NonNegativeInt = 0  # how many there are

    @model_validator(mode="after")
    def _is_of_this_algorithm(self) -> BidPriceCheckpoint:
        if (self.algorithm, self.format) != (ALGORITHM, FORMAT):
            raise ValueError(
                f"is of {shortened(self.algorithm)!r}, format {self.format}; wanted "
                f"{ALGORITHM!r}, format {FORMAT}. {TRAIN}"
            )
        return self


def load_model(folder: str | Path) -> BidPriceModel:
    """Read a checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged or of another algorithm or format.
    """
    folder, tensors, about = checkpoint.load_as(BidPriceCheckpoint, Path(folder))
    models = len(about.models)
    sizes = {"E": EMBED_DIM, "D": len(DOMAINS), "N": MAX_NODES, "M": models, "+": models + 1}
    sizes["1"] = 1
    for axis, name in (("R", "recipes.topology"), ("K", "rates_per_min"), ("B", "known.budgets_s")):
        sizes[axis] = len(tensors.get(name, ()))
    shapes = {name: tuple(sizes[axis] for axis in axes) for name, axes in _AXES.items()}
    checkpoint.check_shapes(folder, tensors, shapes)
    for name, low, count in (  # compiled code indexes with them, and checks nothing
        ("topology", 0, len(TOPOLOGIES)),
        ("strategy", 0, about.strategies),
        ("roles", 0, len(RoleRule)),
        ("models", -1, models),
    ):
        array = tensors[f"recipes.{name}"]
        if array.size == 0 or array.min() < low or array.max() >= count:
            wanted = f"must hold numbers from {low} to {count - 1}"
            raise ConfigError(f"{folder}: recipes.{name} {wanted}.")
    return from_tensors(tensors, about.models, about.strategies)


class BidPricePolicy(RecipePolicy):
    """Bid prices from checkpoints, one for every workload: the default agent.

    Args:
        checkpoint: folder of a trained checkpoint, or one that holds a folder for every workload
            (`model_for`); the shipped ones if None or "".
        model: played in place of checkpoints; its prices may be those of several candidates.
        candidate: (rows,) candidate whose prices each row pays; the first if None.

    Raises:
        ConfigError: no checkpoint of this policy is in the folder.
    """

    version = 2
    requires = REQUIRES

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        model: BidPriceModel | None = None,
        candidate: Ints | None = None,
    ) -> None:
        self.name = "bid_price" if checkpoint is None else f"bid_price:{checkpoint}"
        self._root = Path(checkpoint) if checkpoint else SHIPPED
        self._fixed_model, self._candidate = model, candidate
        if model is None:
            configs = [folder / CONFIG_FILE for folder in folders(self._root)]
            for path in configs:
                validate(read_json(path), BidPriceCheckpoint, source=str(path))
            if not configs:
                raise ConfigError(f"{self._root}: holds no checkpoint. {TRAIN}")

    @property
    def fingerprint(self) -> str:
        """Digest of all weights that it may play with."""
        return " ".join(map(checkpoint.fingerprint, folders(self._root)))

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Open the checkpoint for workload and pool, and prepare for `len(seeds)` rows.

        Raises:
            ConfigError: there is none.
        """
        super().reset(spec, seeds)
        model = self._fixed_model or self.model_for(spec)
        self.model, self.recipes = model, model.recipes
        self._estimates, self._prices = as_taken(model.known), model.prices.packed()
        self._choose = Bound(choose_each)
        self._ease = model.ease(spec.task_embeddings)
        self._arrivals_s = np.zeros((len(seeds), _WINDOW))
        first = np.zeros(len(seeds), np.int64)
        self._row_candidate = first if self._candidate is None else self._candidate

    def choose(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Ints:
        """Return the recipes of the best balance of success and price, (n,)."""
        # The arrival rate, from the last arrivals, this one included, and a prior.
        rates, now_s, queries = self.model.rates_per_min, contexts["arrival_s"], contexts["query"]
        self._arrivals_s[rows, queries % _WINDOW] = now_s
        back = np.minimum(queries, _WINDOW - 1)
        elapsed_s = now_s - self._arrivals_s[rows, (queries - back) % _WINDOW]
        prior_s = 60.0 * _PRIOR_QUERIES / float(rates[-1])
        rate = 60.0 * (back + _PRIOR_QUERIES) / (elapsed_s + prior_s)

        # The prices at that rate: between two rates their numbers are interpolated.
        place = np.interp(np.log(rate), np.log(rates), np.arange(len(rates)))
        below, candidate = place.astype(np.int64), self._row_candidate[rows]
        prices = self._prices[candidate, below]
        above = self._prices[candidate, np.minimum(below + 1, len(rates) - 1)]
        prices += (place - below)[:, None] * (above - prices)

        domain = contexts["domain"].astype(np.int64)
        left_s = contexts["budget_s"] - (contexts["time_s"] - now_s)
        return choose(
            self._estimates,
            prices,
            self.recipes.needs,
            in_flight,
            np.maximum(left_s, 1e-3),
            domain,
            self._ease[contexts["task"], domain],
            contexts["models_up"],
            self._choose,
        )

    def model_for(self, spec: PolicySpec) -> BidPriceModel:
        """Return the checkpoint for the workload of a run, or that for all, on its servers.

        Slots may differ by a fifth: a small KV cache holds fewer of a split's longer calls.
        Folders are WORKLOAD, and WORKLOAD@POOL for further pools.

        Raises:
            ConfigError: there is none for the workload, or none for its servers.
        """
        names = [spec.workload, FALLBACK]
        suited = [
            folder
            for folder in folders(self._root)
            if folder == self._root or folder.name.split("@")[0] in names
        ]
        if not suited:
            raise ConfigError(
                f"{self._root}: has no checkpoint for workload {spec.workload!r}, and none for "
                f"{FALLBACK!r} to fall back on. {TRAIN}"
            )
        suited.sort(key=lambda f: (f != self._root, names[0] != f.name.split("@")[0], f.name))
        slots = spec.max_num_seqs
        for folder in suited:
            model = load_model(folder)
            if model.models == spec.models and np.allclose(model.known.slots, slots, rtol=0.2):
                return model
        raise ConfigError(
            f"policy {self.name!r} was trained for servers other than {', '.join(spec.models)} "
            f"with {slots.tolist()} slots. {TRAIN}"
        )
