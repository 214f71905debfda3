"""The stages of Headway's training, each a function of the configuration, the seed and the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.crew import MAX_ATTEMPTS
from agents.cluster.fleet import Fleet, WorkerDiedError
from agents.headway.choice import Prices
from agents.headway.config import HeadwayConfig, Objective
from agents.headway.jobs import MEASURES, Job, facts
from agents.headway.lessons import Lessons
from agents.headway.policy import kind_of
from agents.headway.recipes import RecipeBook, book_of, candidates
from agents.headway.study import (
    congestion,
    ease_of_questions,
    first_calls,
    knowledge,
    log_odds,
    seconds_of_calls,
    success,
    worth_keeping,
)
from agents.headway.survey import Played, joined
from inframind_gym.policy import PolicySpec
from inframind_gym.tasks import DOMAINS

# What random numbers are for: the second coordinate of every seed.
SURVEY, LOAD, SEARCH, VALIDATION, BURSTS = range(5)
CODE: Final = DOMAINS.index("Code")
NEVER_S: Final = 1e6  # between two polls of a telemetry that nobody looks at


class Unit(NamedTuple):
    """A group of prices as the search sees it: start, and the step that counts as 1."""

    start: float
    step: float


# In the search's own scale: logarithms, log odds for the share, and for the slopes the inverse of
# softplus, so that a price never falls with the load.
UNITS: Final[Mapping[str, Unit]] = {
    "base": Unit(float(np.log(0.003)), 1.0),
    "rate": Unit(0.0, 1.0),
    "load": Unit(0.0, 1.0),
    "late_value": Unit(-2.0, 0.8),
    "caution": Unit(0.0, 0.2),
    "patience_s": Unit(float(np.log(90.0)), 0.15),
    "doubt": Unit(float(np.log(0.05)), 0.8),
}
_PER_MODEL: Final = ("base", "rate", "load")


def dimensions(num_models: int) -> int:
    """Numbers that the search looks for."""
    return len(_PER_MODEL) * num_models + len(UNITS) - len(_PER_MODEL)


def prices_of(points: NDArray[np.float64], num_models: int) -> Prices:
    """Prices of C points of the search, (C, dimensions)."""
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
        rate=np.logaddexp(0.0, columns["rate"]),
        load=np.logaddexp(0.0, columns["load"]),
        late_value=1.0 / (1.0 + np.exp(-flat["late_value"])),
        caution=flat["caution"],
        patience_s=np.exp(flat["patience_s"]),
        doubt=np.exp(flat["doubt"]),
    )


def seeds_of(seed: int, stage: int, place: int, rows: int) -> list[int]:
    """Seeds of `rows` sweeps at a place of a training."""
    rng = np.random.default_rng([seed, stage, place])
    return [int(s) for s in rng.integers(2**31, size=rows)]


class Trainer:
    """The stages of a training; each is a function of the configuration, the seed and the last.

    Args:
        config: of the training.
        seed: of all random numbers.
        fleet: of `jobs.Player`: where sweeps are played.
    """

    def __init__(self, config: HeadwayConfig, seed: int, fleet: Fleet) -> None:
        self.config = config
        self.seed = seed
        self._fleet = fleet
        self._env = {
            **config.env.arguments("train"),
            "observation": "index",
            **kind_of(config.mode).requires,
        }
        self.spec: PolicySpec
        self.spec, domains = facts(self._env)
        self._code = CODE in domains

    @property
    def num_models(self) -> int:
        """Models of the pool."""
        return self.spec.num_models

    def _play(self, jobs: Sequence[Job]) -> list[Any]:
        """Results of jobs, in their order; a worker that dies costs them another try."""
        hands = len(self._fleet)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                parts = self._fleet.call("run", each=[jobs[hand::hands] for hand in range(hands)])
                break
            except WorkerDiedError:
                if attempt == MAX_ATTEMPTS:
                    raise
                self._fleet.restart()
        return [parts[i % hands][i // hands] for i in range(len(jobs))]

    # Survey

    def first_book(self) -> RecipeBook:
        """All candidates."""
        recipes = candidates(self.num_models, self.spec.num_strategies, code=self._code)
        return book_of(recipes, self.spec.num_strategies)

    def _surveys(self, book: RecipeBook, number: int, *, keep_all: bool) -> list[Job]:
        rows = self.config.rows
        wanted = self.config.survey[number].queries
        queries = 500
        return [
            Job(
                env={**self._env, "num_queries": queries, "metrics_poll_s": NEVER_S},
                seeds=seeds_of(self.seed, SURVEY, 1000 * number + part, rows),
                rates_per_min=[self.config.idle_rate_per_min] * rows,
                budget_s=1e6,
                book=book,
                lessons=None,
                candidate=None,
                result="played" if keep_all else "sums",
            )
            for part in range(max(1, -(-wanted // (rows * queries))))
        ]

    def survey(self, book: RecipeBook, number: int) -> RecipeBook:
        """Play round `number` and drop what is not worth keeping."""
        sums, *rest = self._play(self._surveys(book, number, keep_all=False))
        for more in rest:
            sums = sums.plus(more)
        keep = self.config.survey[number].keep or len(book)
        patience_s = float(np.exp(UNITS["patience_s"].start))
        budgets_s = np.minimum(self.spec.budget_tiers_s, patience_s)
        rng = np.random.default_rng([self.seed, SURVEY, number])
        return book.select(worth_keeping(sums, budgets_s, keep, rng))

    def learn(self, book: RecipeBook) -> tuple[Lessons, NDArray[np.float64]]:
        """The last round of the survey: everything but load and prices.

        Returns:
            The lessons, and the seconds of single calls (D, M, S).
        """
        played_and_sums = self._play(
            self._surveys(book, len(self.config.survey) - 1, keep_all=True)
        )
        played = joined([p for p, _ in played_and_sums])
        sums = played_and_sums[0][1]
        for _, more in played_and_sums[1:]:
            sums = sums.plus(more)
        right = success(sums)
        embeddings = self.spec.task_embeddings
        weights, centres = ease_of_questions(played, right, embeddings)
        scores = embeddings.astype(np.float64) @ weights
        records = played.records
        ease = scores[records["task"]] - centres[records["domain"]]
        idle_s = seconds_of_calls(
            first_calls(book, played), self.num_models, self.spec.num_strategies
        )
        models = self.num_models
        seen = np.isfinite(idle_s)
        total_s = np.where(seen, idle_s, 0.0).sum(axis=(0, 2))
        count = seen.sum(axis=(0, 2))
        call_s = np.where(count > 0, total_s / np.maximum(count, 1), self.spec.expected_call_s)
        known = knowledge(
            sums,
            log_odds(played, right, ease),
            call_s,
            self.spec.max_num_seqs.astype(np.float64),
            np.zeros((models, models + 1)),
            np.ones(models),
        )
        start = prices_of(np.zeros(dimensions(models)), models)
        lessons = Lessons(
            self.spec.models, self.spec.num_strategies, book, known, start, weights, centres
        )
        return lessons, idle_s

    # Load

    def study_load(self, lessons: Lessons, idle_s: NDArray[np.float64]) -> Lessons:
        """Play under random prices at all rates and fit what load does."""
        rates = self.config.rates_per_min
        jobs = []
        for part in range(self.config.load_sweeps * len(rates) // self.config.rows or 1):
            rng = np.random.default_rng([self.seed, LOAD, part])
            rows = self.config.rows
            points = 1.5 * rng.standard_normal((rows, dimensions(self.num_models)))
            jobs.append(
                Job(
                    env={**self._env, "num_queries": self.config.load_queries},
                    seeds=seeds_of(self.seed, LOAD, part, rows),
                    rates_per_min=[rates[i % len(rates)] for i in range(rows)],
                    budget_s=None,
                    book=lessons.book,
                    lessons=lessons.priced(prices_of(points, self.num_models)),
                    candidate=list(range(rows)),
                    result="played",
                )
            )
        played: Played = joined([p for p, _ in self._play(jobs)])
        calls = first_calls(lessons.book, played)
        slots = self.spec.max_num_seqs.astype(np.float64)
        slowdown, turns = congestion(calls, played.in_flight, idle_s, slots)
        return lessons.with_load(slowdown, turns)

    # Search

    def judge(
        self, lessons: Lessons, points: NDArray[np.float64], stage: int, place: int, split: str
    ) -> NDArray[np.float64]:
        """Means over sweeps of what each point's prices reach, (C, len(MEASURES)).

        Args:
            lessons: what is known.
            points: (C, dimensions) of the search.
            stage: what the sweeps are for: SEARCH and VALIDATION are at `rates_per_min`, BURSTS at
                `burst_rates_per_min`.
            place: tells sweeps of one stage apart.
            split: of the tasks.
        """
        search, rates, env = self.config.search, self.config.rates_per_min, self._env
        if stage == BURSTS:
            rates, env = self.config.burst_rates_per_min, {**env, "arrivals": "burst"}
        sweeps = len(rates) * search.sweeps_per_rate
        seeds = seeds_of(self.seed, stage, place, sweeps)
        share = -(-len(points) // len(self._fleet))  # every worker has as many to judge
        together = max(1, min(share, self.config.rows // sweeps))  # candidates of a job
        jobs = []
        for first in range(0, len(points), together):
            part = points[first : first + together]
            jobs.append(
                Job(
                    env={**env, "num_queries": search.queries, "split": split},
                    seeds=seeds * len(part),
                    rates_per_min=[r for r in rates for _ in range(search.sweeps_per_rate)]
                    * len(part),
                    budget_s=None,
                    book=lessons.book,
                    lessons=lessons.priced(prices_of(part, self.num_models)),
                    candidate=[c for c in range(len(part)) for _ in range(sweeps)],
                    mode=self.config.mode,
                    result="measures",
                    within=(self.config.objective.within_s, self.config.objective.within_share),
                )
            )
        return np.concatenate(self._play(jobs))


def worth(
    measures: NDArray[np.float64], objective: Objective, *, promised: bool = True
) -> NDArray[np.float64]:
    """Value (C,) of `jobs.MEASURES` (C, measures); `promised`: what is missing counts."""
    goodput, solved, shortfall = (
        measures[:, MEASURES.index(name)] for name in ("goodput", "solved", "shortfall")
    )
    value: NDArray[np.float64] = objective.goodput * goodput + objective.solved * solved
    return value - objective.shortfall * shortfall if promised else value
