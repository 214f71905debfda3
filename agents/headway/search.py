"""The search of the prices: at every rate of arrivals by itself, for all rates side by side.

    search = PriceSearch(config, num_models, seed)
    while not search.finished:
        points, rates = search.ask()
        search.tell(values of the points)
    prices_of(search.found, num_models)

Rough prices for sets of models, rounds of CMA-ES from the best sets, comparisons that drop the
worse: one list of steps; each asks for points to be judged and is told what they are worth. Points
are judged as if the rate were known. Who plays has to estimate it, and begins at the highest: that
is seen by the validation alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.headway.choice import Prices
from agents.headway.config import HeadwayConfig, SearchConfig
from inframind_gym.calibration.cmaes import CMAES

# What random numbers of a training are for: the second coordinate of every seed.
SURVEY, LOAD, SEARCH, STEADY, VALIDATION, BURSTS = range(6)
SURVEY_QUERIES: Final = 500  # of a sweep of the survey
_TOO_DEAR: Final = 1.0  # a second of a slot of the models outside a set: more than any answer


class Unit(NamedTuple):
    """A group of prices as the search sees it: start, and the step that counts as 1."""

    start: float
    step: float


# In the search's own scale: logarithms, log odds for the share, and for the slope the inverse of
# softplus, so that a price never falls with the load.
UNITS: Final[Mapping[str, Unit]] = {
    "base": Unit(float(np.log(0.003)), 1.0),
    "load": Unit(0.0, 1.0),
    "late_value": Unit(-2.0, 0.8),
    "caution": Unit(0.0, 0.2),
    "patience_s": Unit(float(np.log(90.0)), 0.15),
    "doubt": Unit(float(np.log(0.05)), 0.8),
}
_PER_MODEL: Final = ("base", "load")


def dimensions(num_models: int) -> int:
    """Numbers that the search looks for."""
    return len(_PER_MODEL) * num_models + len(UNITS) - len(_PER_MODEL)


def prices_of(points: NDArray[np.float64], num_models: int) -> Prices:
    """Prices of P points of the search, (P, dimensions)."""
    points = np.atleast_2d(points)
    columns: dict[str, NDArray[np.float64]] = {}
    at = 0
    for name, unit in UNITS.items():
        width = num_models if name in _PER_MODEL else 1
        columns[name] = unit.start + unit.step * points[:, at : at + width]
        at += width
    flat = {name: column[:, 0] for name, column in columns.items() if name not in _PER_MODEL}
    return Prices(
        base=columns["base"],
        load=np.logaddexp(0.0, columns["load"]),
        late_value=1.0 / (1.0 + np.exp(-flat["late_value"])),
        caution=flat["caution"],
        patience_s=np.exp(flat["patience_s"]),
        doubt=np.exp(flat["doubt"]),
    )


def model_sets(num_models: int, most: int) -> list[tuple[int, ...]]:
    """All sets of up to `most` models, and the set of all."""
    models = range(num_models)
    sizes = sorted({*range(1, min(most, num_models) + 1), num_models})
    return [chosen for size in sizes for chosen in itertools.combinations(models, size)]


def rough_points(config: SearchConfig, num_models: int) -> NDArray[np.float64]:
    """Points of rough prices, (sets · prices, dimensions): those of a set follow each other."""
    sets = model_sets(num_models, config.most_models)
    unit = UNITS["base"]
    points = np.zeros((len(sets), len(config.rough_prices), dimensions(num_models)))
    points[..., :num_models] = (np.log(_TOO_DEAR) - unit.start) / unit.step
    for s, chosen in enumerate(sets):
        for p, price in enumerate(config.rough_prices):
            points[s, p, list(chosen)] = (np.log(price) - unit.start) / unit.step
    return points.reshape(-1, points.shape[-1])


class Step(NamedTuple):
    """One step of the search.

    Attributes:
        kind: what it does.
        round: of climbs that it belongs to.
        sweeps: with steady arrivals by which each point is judged.
        bursts: further sweeps, with arrivals in bursts.
    """

    kind: Literal["rough", "climb", "compare"]
    round: int
    sweeps: int
    bursts: int


def steps_of(config: HeadwayConfig) -> list[Step]:
    """All steps of a search, in their order."""
    search, some = config.search, config.objective.bursts > 0.0
    steps = [Step("rough", 0, search.rough_sweeps, int(some))]
    for number, one in enumerate(search.rounds):
        steps += [Step("climb", number, one.sweeps, int(some))] * one.generations
        if one.climbs > 1:
            steps.append(Step("compare", number, search.finals, some * search.finals))
    return steps


class PriceSearch:
    """The search at K rates.

    Args:
        config: of the training.
        num_models: M.
        seed: of all random numbers.

    Attributes:
        at: steps that are done.
    """

    def __init__(self, config: HeadwayConfig, num_models: int, seed: int) -> None:
        self._config = config.search
        self._rates = len(config.rates_per_min)
        self._seed = seed
        self._rough = rough_points(config.search, num_models)
        self._steps = steps_of(config)
        self._climbs: list[list[CMAES]] = [[] for _ in range(self._rates)]  # by rate
        self.at = 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.at == len(self._steps)

    @property
    def step(self) -> Step:
        """The step that comes next."""
        return self._steps[self.at]

    @property
    def found(self) -> NDArray[np.float64]:
        """The points that are looked for, (K, dimensions); they are known after the first step."""
        return np.array([climbs[0].mean for climbs in self._climbs])

    @property
    def deviation(self) -> float:
        """Standard deviation of the points along the longest axis, of the widest climb; or 0."""
        return max((c.largest_deviation for c in itertools.chain(*self._climbs)), default=0.0)

    def ask(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Points to judge (C, dimensions) and the position of the rate of each (C,), rising."""
        if self.step.kind == "rough":
            parts = [self._rough] * self._rates
        elif self.step.kind == "compare":
            parts = [np.array([c.mean for c in climbs]) for climbs in self._climbs]
        else:
            parts = [
                np.concatenate([c.ask(self._rng(k, i)) for i, c in enumerate(climbs)])
                for k, climbs in enumerate(self._climbs)
            ]
        rates = np.repeat(np.arange(self._rates), [len(part) for part in parts])
        return np.concatenate(parts), rates

    def tell(self, values: NDArray[np.float64]) -> None:
        """What the points are worth, (C,); much is good."""
        kind, number = self.step.kind, self.step.round
        if kind == "rough":
            wanted = self._config.rounds[0].climbs
            for k, own in enumerate(values.reshape(self._rates, -1)):
                self._climbs[k] = [self._climb(self._rough[i]) for i in self._best_of_sets(own)]
                del self._climbs[k][wanted:]
        elif kind == "compare":
            wanted = self._config.rounds[number + 1].climbs
            for k, own in enumerate(values.reshape(self._rates, -1)):
                order = np.argsort(-own, kind="stable")
                self._climbs[k] = [self._climbs[k][i] for i in order[:wanted]]
        else:
            parts = iter(values.reshape(-1, self._config.candidates))
            for climb in itertools.chain(*self._climbs):
                climb.tell(-next(parts))
        self.at += 1

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs to go on from here, as arrays."""
        state: dict[str, NDArray[Any]] = {"at": np.array([self.at])}
        for k, climbs in enumerate(self._climbs):
            for i, climb in enumerate(climbs):
                state |= {f"{k}.{i}.{name}": array for name, array in climb.state().items()}
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a `state`."""
        self.at = int(state["at"][0])
        for k in range(self._rates):
            self._climbs[k] = []
            for i in itertools.count():
                prefix = f"{k}.{i}."
                own = {n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)}
                if not own:
                    break
                climb = self._climb(own["mean"])
                climb.restore(own)
                self._climbs[k].append(climb)

    def _climb(self, start: NDArray[np.float64]) -> CMAES:
        return CMAES(start, self._config.spread, self._config.candidates)

    def _best_of_sets(self, values: NDArray[np.float64]) -> list[int]:
        """Of every set of models its best rough point, the best sets first."""
        by_set = values.reshape(-1, len(self._config.rough_prices))
        best = by_set.argmax(axis=1)
        order = np.argsort(-by_set.max(axis=1), kind="stable")
        return [int(s * by_set.shape[1] + best[s]) for s in order]

    def _rng(self, rate: int, climb: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, SEARCH, self.at, rate, climb])


def jobs_of_round(config: HeadwayConfig, number: int) -> int:
    """Jobs of a round of the survey, each of `rows` sweeps."""
    return -(-config.survey[number].queries // (config.rows * SURVEY_QUERIES))


def queries_of(config: HeadwayConfig, num_models: int) -> tuple[int, int]:
    """Queries that a training plays, and those of them at idle servers."""
    jobs = sum(jobs_of_round(config, number) for number in range(len(config.survey)))
    idle = jobs * config.rows * SURVEY_QUERIES
    rates, search = len(config.rates_per_min), config.search
    sets = len(model_sets(num_models, search.most_models))
    sweeps = 0
    for step in steps_of(config):
        climbs = min(search.rounds[step.round].climbs, sets)
        points = {
            "rough": sets * len(search.rough_prices),
            "climb": climbs * search.candidates,
            "compare": climbs,
        }[step.kind]
        sweeps += rates * points * (step.sweeps + step.bursts)
    load = config.load_sweeps * rates * config.load_queries
    return idle + load + sweeps * search.queries, idle
