"""Search from the prices of the linear programs onward, by CMA-ES on whole streams.

The programs (`program.py`) do not know how much room queues need, nor how steeply prices have to
rise with them. The search corrects the prices of each rate and finds the other numbers of the
choice, at each rate by itself. Source of CMA-ES: N. Hansen, "The CMA Evolution Strategy: A
Tutorial", arXiv 1604.00772; the package `cmaes` carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from agents.bid_price.config import Objective, SearchConfig
from agents.bid_price.estimation import ItemResponse
from agents.bid_price.survey import Played
from inframind_gym.policies.bid_price.model import Prices

MEASURES: Final = ("goodput", "solved", "slo", "on_time", "latency_s", "decisions")
SCORED: Final = (0.35, 0.85)  # part of a stream
_LAST: Final = 1.0 / 3.0  # of the generations, over which the mean is taken

# Start of each number but the prices, and the step that counts as 1 in the search. Scales are
# logarithms, and log odds for the share.
UNITS: Final[Mapping[str, tuple[float, float]]] = {
    "load": (0.0, 0.7),
    "late_value": (-2.5, 0.8),
    "caution": (0.0, 0.15),
    "patience_s": (math.log(110.0), 0.2),
    "doubt": (math.log(0.05), 0.8),
}
_PRICE_UNIT: Final = 0.7  # of the log of a model's price
_LOWEST: Final = 1e-6  # price, where there is more time than is worth having


class Table(NamedTuple):
    """Prices by linear programming."""

    rates_per_min: NDArray[np.float64]  # (K,) rising
    price: NDArray[np.float64]  # (K, M) of a second of a slot
    load: NDArray[np.float64]  # (K, M) calls in flight per slot in the plan


def dimensions(num_models: int) -> int:
    """Return the number of variables of the search at a rate."""
    return len(UNITS) + num_models


def prices_of(points: NDArray[np.float64], table: Table) -> Prices:
    """Return the prices of points of the search, (C, K, dimensions).

    Those at the origin are the table's where the servers are as full as planned.
    """
    parts = np.moveaxis(points[..., : len(UNITS)], -1, 0)
    named = zip(UNITS.items(), parts, strict=True)
    value = {name: start + step * own for (name, (start, step)), own in named}
    load = np.exp(value["load"])
    base = np.log(np.maximum(table.price, _LOWEST)) - load[..., None] * table.load
    return Prices(
        load=load,
        late_value=1.0 / (1.0 + np.exp(-value["late_value"])),
        caution=value["caution"],
        patience_s=np.exp(value["patience_s"]),
        doubt=np.exp(value["doubt"]),
        base=base + _PRICE_UNIT * points[..., len(UNITS) :],
    )


@dataclass(frozen=True)
class Measured:
    """Means of MEASURES over the scored queries of each group of rows, as the result of a job."""

    group: NDArray[np.int64]  # (rows,) of each stream
    slo_latency_s: float  # target of the measure "slo"
    # gives chances of right answers, which vary less than the answers that happened to be right;
    # None counts these
    responses: ItemResponse | None = None

    def __call__(self, played: Played) -> NDArray[np.float64]:
        """Return the means, (groups, measures)."""
        queries = played.records["query"]
        first, last = (part * (int(queries.max()) + 1) for part in SCORED)
        scored = np.flatnonzero((queries >= first) & (queries < last))
        records, group = played.records[scored], self.group[played.row[scored]]
        right = records["solved"].astype(np.float64)
        if self.responses is not None:
            right = self.responses.chances(played.recipe[scored], records)
        on_time = records["latency_s"] <= records["budget_s"]
        columns = {
            "goodput": right * on_time,
            "solved": right,
            "slo": records["latency_s"] <= self.slo_latency_s,
            "on_time": on_time,
            "latency_s": records["latency_s"],
            "decisions": records["num_nodes"] + 1.0,
        }
        count = np.bincount(group)
        return np.column_stack([np.bincount(group, columns[name]) / count for name in MEASURES])


def worth(means: NDArray[np.float64], objective: Objective) -> NDArray[np.float64]:
    """Return the values (...,) of means of MEASURES (..., measures)."""
    weights = np.zeros(len(MEASURES))
    weights[[MEASURES.index("goodput"), MEASURES.index("solved")]] = (
        objective.goodput,
        objective.solved,
    )
    missing = np.maximum(objective.slo_share - means[..., MEASURES.index("slo")], 0.0)
    return np.asarray(means @ weights - objective.slo_penalty * missing, np.float64)


def search(
    config: SearchConfig,
    shape: tuple[int, int],
    seed: Sequence[int],
    judge: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Search at K rates at once, each by itself while the others have their means.

    Args:
        config: of the search.
        shape: (K, dimensions).
        seed: of all random numbers.
        judge: gives candidates (K, population, K, dimensions) their values (K, population), high is
            good; those of a rate are judged near it.

    Returns:
        Means (K, dimensions) of the distributions over the last generations.
    """
    rates, population = shape[0], config.population
    seeds = np.random.SeedSequence(seed).generate_state(rates).tolist()
    start = np.zeros(shape[1])
    runs = [CMA(start, config.sigma, seed=one, population_size=population) for one in seeds]
    means = []
    for _ in range(config.generations):
        mean = np.array([cma.mean for cma in runs])
        candidates = np.tile(mean, (rates, population, 1, 1))
        for k, cma in enumerate(runs):
            candidates[k, :, k] = [cma.ask() for _ in range(population)]
        values = judge(candidates)
        for k, cma in enumerate(runs):
            cma.tell(list(zip(candidates[k, :, k], (-values[k]).tolist(), strict=True)))
        means.append([cma.mean for cma in runs])
    return np.asarray(np.mean(means[-max(round(_LAST * len(means)), 1) :], axis=0), np.float64)
