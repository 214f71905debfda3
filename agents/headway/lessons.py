"""What Headway has learned of a workload, and how it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.headway.choice import Knowledge, Prices
from agents.headway.recipes import RecipeBook, book_from_tensors
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS

ALGORITHM: Final = "headway"


@dataclass(frozen=True)
class Lessons:
    """Recipes, what is known of them, and prices.

    Attributes:
        models: the pool's aliases, in its order.
        strategies: number of strategies.
        book: R recipes.
        known: what was learned of them.
        prices: P = C · K sets of them, the K of a candidate together; C = 1 in a checkpoint.
        rates_per_min: (K,) rising: arrival rates that the sets of a candidate are for.
        ease_weights: (384,) by how much each number of an embedding makes a question easier.
        ease_centres: (D,) the mean of that over a domain's questions.
    """

    models: tuple[str, ...]
    strategies: int
    book: RecipeBook
    known: Knowledge
    prices: Prices
    rates_per_min: NDArray[np.float64]
    ease_weights: NDArray[np.float64]
    ease_centres: NDArray[np.float64]

    def ease(self, task_embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log odds by which each question looks easier than others of a domain, (T, D)."""
        scores: NDArray[np.float64] = task_embeddings.astype(np.float64) @ self.ease_weights
        return scores[:, None] - self.ease_centres

    def with_load(self, slowdown: NDArray[np.float64], turns: NDArray[np.float64]) -> Lessons:
        """The same with what load does."""
        return replace(self, known=self.known._replace(slowdown=slowdown, turns=turns))

    def priced(
        self, prices: Prices, rates_per_min: Sequence[float] | NDArray[np.float64]
    ) -> Lessons:
        """The same with other prices, see `prices` and `rates_per_min`."""
        rates = np.array(rates_per_min, np.float64)
        return replace(self, prices=prices, rates_per_min=rates)


def save_lessons(folder: str | Path, lessons: Lessons, about: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        folder: where to.
        lessons: with the prices of one candidate.
        about: JSON values: where the lessons come from.
    """
    facts = {
        "algorithm": ALGORITHM,
        "models": list(lessons.models),
        "strategies": lessons.strategies,
    }
    tensors = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in to_tensors(lessons).items()
    }
    checkpoint.save(folder, tensors, {**about, **facts})


def to_tensors(lessons: Lessons) -> dict[str, NDArray[Any]]:
    """Lessons as named arrays, at full precision."""
    tensors: dict[str, NDArray[Any]] = {
        "ease.weights": lessons.ease_weights,
        "ease.centres": lessons.ease_centres,
        "rates_per_min": lessons.rates_per_min,
    }
    tensors |= {f"known.{name}": array for name, array in lessons.known._asdict().items()}
    tensors |= {f"prices.{name}": array for name, array in lessons.prices._asdict().items()}
    return tensors | lessons.book.to_tensors()


def from_tensors(
    tensors: Mapping[str, NDArray[Any]], models: Sequence[str], strategies: int
) -> Lessons:
    """The inverse of `to_tensors`."""
    floats = {
        name: np.ascontiguousarray(array, np.float64)
        for name, array in tensors.items()
        if array.dtype.kind == "f"
    }
    return Lessons(
        models=tuple(models),
        strategies=strategies,
        book=book_from_tensors(tensors, strategies),
        known=Knowledge(**checkpoint.part(floats, "known.")),
        prices=Prices(**checkpoint.part(floats, "prices.")),
        rates_per_min=floats["rates_per_min"],
        ease_weights=floats["ease.weights"],
        ease_centres=floats["ease.centres"],
    )


def load_lessons(folder: str | Path) -> Lessons:
    """Read a checkpoint.

    Raises:
        ConfigError: there is none, or it is damaged or of another algorithm.
    """
    tensors, config = checkpoint.load(folder)
    if config.get("algorithm") != ALGORITHM:
        raise ConfigError(
            f"{folder}: is a checkpoint of {config.get('algorithm')!r}, not of {ALGORITHM!r}."
        )
    models, strategies = tuple(config["models"]), int(config["strategies"])
    checkpoint.check_shapes(folder, tensors, _shapes(tensors, len(models)))
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


def _shapes(tensors: Mapping[str, NDArray[Any]], models: int) -> dict[str, tuple[int, ...]]:
    """Of every tensor of a checkpoint, given the number of its recipes."""
    recipes, rates, budgets = (
        len(tensors.get(name, ()))
        for name in ("recipes.topology", "rates_per_min", "known.budgets_s")
    )
    domains = len(DOMAINS)
    shapes: dict[str, tuple[int, ...]] = {
        "ease.weights": (EMBED_DIM,),
        "ease.centres": (domains,),
        "recipes.models": (recipes, MAX_NODES),
        "rates_per_min": (rates,),
        "known.slowdown": (models, models + 1),
        "known.budgets_s": (budgets,),
        "known.turns": (budgets, models),
    }
    shapes |= {f"recipes.{name}": (recipes,) for name in ("topology", "roles", "strategy")}
    shapes |= {f"known.{name}": (models,) for name in ("call_s", "slots")}
    shapes |= {f"known.{name}": (domains, recipes) for name in ("logit", "log_latency", "spread")}
    shapes |= {
        f"known.{name}": (domains, recipes, models) for name in ("path_s", "path_calls", "work_s")
    }
    shapes |= {f"prices.{name}": (rates, models) for name in ("base", "load")}
    shapes |= {
        f"prices.{name}": (rates,) for name in ("late_value", "caution", "patience_s", "doubt")
    }
    return shapes
