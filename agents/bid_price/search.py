"""Search of the prices by CMA-ES, at each arrival rate by itself, and the value of episodes.

Points are judged at a known rate. The policy has to estimate it when it plays, beginning at the
highest: only the validation sees that. Source of CMA-ES: N. Hansen, "The CMA Evolution Strategy: A
Tutorial", arXiv 1604.00772; the package `cmaes` carries it out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from agents.bid_price.config import BidPriceConfig, Objective, SearchConfig
from agents.bid_price.estimation import ItemResponse
from agents.bid_price.survey import Played
from inframind_gym.policies.bid_price.model import Prices

MEASURES: Final = ("goodput", "solved", "slo", "on_time", "latency_s", "decisions")
SURVEY_QUERIES: Final = 500  # of an episode of the survey
_TOO_DEAR: Final = 1.0  # a second of a slot of the models outside a set: more than any answer


@dataclass(frozen=True)
class Measured:
    """Means of MEASURES over the episodes of each candidate, as the result of a job."""

    candidate: NDArray[np.int64]  # (rows,) of each episode
    slo_latency_s: float  # target of the measure "slo"
    # gives chances of right answers, which vary less than the answers that happened to be right;
    # None counts these
    responses: ItemResponse | None = None

    def __call__(self, played: Played) -> NDArray[np.float64]:
        """Return the means, (C, measures)."""
        records, row = played.records, played.row
        right = records["solved"].astype(np.float64)
        if self.responses is not None:
            right = self.responses.chances(played.recipe, records)
        on_time = records["latency_s"] <= records["budget_s"]
        columns = {
            "goodput": right * on_time,
            "solved": right,
            "slo": records["latency_s"] <= self.slo_latency_s,
            "on_time": on_time,
            "latency_s": records["latency_s"],
            "decisions": records["num_nodes"] + 1.0,
        }
        queries, episodes = np.bincount(row), np.bincount(self.candidate)
        means = (np.bincount(row, columns[name]) / queries for name in MEASURES)
        return np.column_stack([np.bincount(self.candidate, mean) / episodes for mean in means])


def worth(
    steady: NDArray[np.float64], bursts: NDArray[np.float64] | None, objective: Objective
) -> NDArray[np.float64]:
    """Return the value (C,) of MEASURES (C, measures) of steady episodes and of those in bursts."""
    goodput, solved, slo = (MEASURES.index(name) for name in ("goodput", "solved", "slo"))
    weights = np.zeros(len(MEASURES))
    weights[[goodput, solved]] = objective.goodput, objective.solved
    missing = np.maximum(objective.slo_share - steady[:, slo], 0.0)
    value: NDArray[np.float64] = steady @ weights - objective.slo_penalty * missing
    if bursts is None:
        return value
    return (value + objective.bursts * (bursts @ weights)) / (1.0 + objective.bursts)


# Start of each group of prices, and the step that counts as 1 in the search. The scales are
# logarithms, log odds for the share, and for the slope the inverse of softplus, so that a price
# never falls with the load.
UNITS: Final[Mapping[str, tuple[float, float]]] = {
    "base": (math.log(0.003), 1.0),
    "load": (0.0, 1.0),
    "late_value": (-2.0, 0.8),
    "caution": (0.0, 0.2),
    "patience_s": (math.log(90.0), 0.15),
    "doubt": (math.log(0.05), 0.8),
}
_PER_MODEL: Final = ("base", "load")


def dimensions(num_models: int) -> int:
    """Return the number of variables of the search."""
    return len(_PER_MODEL) * num_models + len(UNITS) - len(_PER_MODEL)


def prices_of(points: NDArray[np.float64], num_models: int) -> Prices:
    """Return the prices of P points of the search, (P, dimensions)."""
    widths = [num_models if name in _PER_MODEL else 1 for name in UNITS]
    parts = np.split(np.atleast_2d(points), np.cumsum(widths)[:-1], axis=1)
    scaled = {
        name: start + step * part
        for (name, (start, step)), part in zip(UNITS.items(), parts, strict=True)
    }
    return Prices(
        base=scaled["base"],
        load=np.logaddexp(0.0, scaled["load"]),
        late_value=1.0 / (1.0 + np.exp(-scaled["late_value"][:, 0])),
        caution=scaled["caution"][:, 0],
        patience_s=np.exp(scaled["patience_s"][:, 0]),
        doubt=np.exp(scaled["doubt"][:, 0]),
    )


def grid_points(config: SearchConfig, num_models: int) -> NDArray[np.float64]:
    """Return points of uniform prices for sets of models, (sets, prices, dimensions)."""
    sizes = sorted({*range(1, min(config.max_models, num_models) + 1), num_models})
    sets = [s for size in sizes for s in itertools.combinations(range(num_models), size)]
    start, step = UNITS["base"]
    points = np.zeros((len(sets), len(config.grid_prices), dimensions(num_models)))
    points[..., :num_models] = (math.log(_TOO_DEAR) - start) / step
    for own, chosen in zip(points, sets, strict=True):
        own[:, list(chosen)] = (np.log(config.grid_prices)[:, None] - start) / step
    return points


def judged_episodes(config: BidPriceConfig, num_models: int) -> int:
    """Return the number of episodes that `search_prices` has judged at its end."""
    search, some, running = config.search, int(config.objective.bursts > 0.0), 0
    sets, prices = grid_points(search, num_models).shape[:2]
    total = int(sets * prices) * (search.grid_episodes + some)
    for one in search.rounds:
        running = running or min(sets, one.searches)
        if running > one.searches:
            total += running * search.final_episodes * (1 + some)
            running = one.searches
        total += one.generations * running * search.population * (one.episodes + some)
    return len(config.rates_per_min) * total


Judge = Callable[[NDArray[np.float64], int, int], NDArray[np.float64]]
"""Gives points (K, C, dimensions) of K rates their values (K, C), high is good, by so many episodes
with steady arrivals and so many with bursts."""


def search_prices(
    config: BidPriceConfig, num_models: int, seed: Sequence[int], judge: Judge
) -> NDArray[np.float64]:
    """Search for prices at K rates, each by itself.

    Args:
        config: of the training.
        num_models: M.
        seed: of all random numbers.
        judge: called with the points of all rates.

    Returns:
        The points that were found, (K, dimensions).
    """
    search, some, rates = config.search, int(config.objective.bursts > 0.0), config.rates_per_min
    grid = grid_points(search, num_models)
    values = judge(np.array([np.concatenate(grid)] * len(rates)), search.grid_episodes, some)
    seeds = iter(np.random.SeedSequence(seed).generate_state(values.size).tolist())
    running: list[list[CMA]] = []  # by rate
    for by_set in values.reshape(len(rates), *grid.shape[:2]):
        sets = np.argsort(-by_set.max(axis=1), kind="stable")[: search.rounds[0].searches]
        starts = grid[sets, by_set.argmax(axis=1)[sets]]
        running.append(
            [
                CMA(x, search.sigma, seed=next(seeds), population_size=search.population)
                for x in starts
            ]
        )
    for one in search.rounds:
        if len(running[0]) > one.searches:
            means = np.array([[cma.mean for cma in own] for own in running])
            values = judge(means, search.final_episodes, some * search.final_episodes)
            best = np.argsort(-values, axis=1, kind="stable")[:, : one.searches]
            running = [[own[i] for i in order] for own, order in zip(running, best, strict=True)]
        together = [cma for own in running for cma in own]
        for _ in range(one.generations):
            asked = [[cma.ask() for _ in range(search.population)] for cma in together]
            points = np.array(asked).reshape(len(rates), -1, grid.shape[-1])
            losses = -judge(points, one.episodes, some).reshape(len(together), -1)
            for cma, own_points, own in zip(together, asked, losses.tolist(), strict=True):
                cma.tell(list(zip(own_points, own, strict=True)))
    return np.array([own[0].mean for own in running])
