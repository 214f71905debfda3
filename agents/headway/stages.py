"""The stages of Headway's training, each a function of the configuration, the seed and the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.headway.config import HeadwayConfig
from agents.headway.jobs import Job, facts, measured
from agents.headway.lessons import Lessons
from agents.headway.marks import Marks, marks_of
from agents.headway.policy import kind_of
from agents.headway.recipes import RecipeBook, book_of, candidates
from agents.headway.search import (
    BURSTS,
    LOAD,
    STEADY,
    SURVEY,
    SURVEY_QUERIES,
    UNITS,
    VALIDATION,
    Step,
    dimensions,
    jobs_of_round,
    prices_of,
)
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
from inframind_gym.benchmark.cluster.crew import MAX_ATTEMPTS
from inframind_gym.benchmark.cluster.fleet import Fleet, WorkerDiedError
from inframind_gym.policies import PolicySpec
from inframind_gym.simulator.arrivals import BurstArrivals
from inframind_gym.tasks import DOMAINS

CODE: Final = DOMAINS.index("Code")
NEVER_S: Final = 1e6  # between two polls of a telemetry that nobody looks at
ANY_RATE: Final = (1.0,)  # of candidates with a single set of prices, which they pay at every rate


def seeds_of(seed: int, stage: int, place: int, rows: int) -> list[int]:
    """Seeds of `rows` sweeps at a place; what else is drawn there has a fourth coordinate."""
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
        return [
            Job(
                env={**self._env, "num_queries": SURVEY_QUERIES, "metrics_poll_s": NEVER_S},
                seeds=seeds_of(self.seed, SURVEY, 1000 * number + part, rows),
                rates_per_min=[self.config.idle_rate_per_min] * rows,
                budget_s=1e6,
                book=book,
                lessons=None,
                candidate=None,
                result="played" if keep_all else "sums",
            )
            for part in range(jobs_of_round(self.config, number))
        ]

    def survey(self, book: RecipeBook, number: int) -> RecipeBook:
        """Play round `number` and drop what is not worth keeping."""
        sums, *rest = self._play(self._surveys(book, number, keep_all=False))
        for more in rest:
            sums = sums.plus(more)
        keep = self.config.survey[number].keep or len(book)
        patience_s = float(np.exp(UNITS["patience_s"].start))
        budgets_s = np.minimum(self.spec.budget_tiers_s, patience_s)
        rng = np.random.default_rng([self.seed, SURVEY, number, 1])
        return book.select(worth_keeping(sums, budgets_s, keep, rng))

    def learn(self, book: RecipeBook) -> tuple[Lessons, Marks, NDArray[np.float64]]:
        """The last round of the survey: everything but load and prices.

        Returns:
            The lessons, chances of right answers, and the seconds of single calls (D, M, S).
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
        budgets_s = np.unique(self.spec.budget_tiers_s)
        known = knowledge(
            sums,
            log_odds(played, right, ease),
            call_s,
            self.spec.max_num_seqs.astype(np.float64),
            np.zeros((models, models + 1)),
            budgets_s,
            np.ones((len(budgets_s), models)),
        )
        lessons = Lessons(
            self.spec.models,
            self.spec.num_strategies,
            book,
            known,
            prices_of(np.zeros(dimensions(models)), models),
            np.array(ANY_RATE),
            weights,
            centres,
        )
        return lessons, marks_of(played, right, len(embeddings)), idle_s

    # Load

    def study_load(self, lessons: Lessons, idle_s: NDArray[np.float64]) -> Lessons:
        """Play under random prices at all rates and fit what load does."""
        rates = self.config.rates_per_min
        total = self.config.load_sweeps * len(rates)
        jobs = []
        for part, first in enumerate(range(0, total, self.config.rows)):
            rng = np.random.default_rng([self.seed, LOAD, part, 1])
            rows = min(self.config.rows, total - first)
            points = 1.5 * rng.standard_normal((rows, dimensions(self.num_models)))
            jobs.append(
                Job(
                    env={**self._env, "num_queries": self.config.load_queries},
                    seeds=seeds_of(self.seed, LOAD, part, rows),
                    rates_per_min=[rates[(first + i) % len(rates)] for i in range(rows)],
                    budget_s=None,
                    book=lessons.book,
                    lessons=lessons.priced(prices_of(points, self.num_models), ANY_RATE),
                    candidate=list(range(rows)),
                    result="played",
                )
            )
        played: Played = joined([p for p, _ in self._play(jobs)])
        calls = first_calls(lessons.book, played)
        slots = self.spec.max_num_seqs.astype(np.float64)
        budget_s, budgets_s = played.records["budget_s"], lessons.known.budgets_s
        slowdown, turns = congestion(calls, played.in_flight, budget_s, idle_s, slots, budgets_s)
        return lessons.with_load(slowdown, turns)

    # Search

    def judge(
        self,
        lessons: Lessons,
        marks: Marks,
        points: NDArray[np.float64],
        rates: NDArray[np.int64],
        place: int,
        step: Step,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Means over sweeps of what each point's prices reach, (C, len(MEASURES)).

        Args:
            lessons: what is known.
            marks: by which answers are judged.
            points: (C, dimensions) of the search.
            rates: (C,) positions in `rates_per_min`.
            place: of the step in the search: tells sweeps apart.
            step: by how many sweeps each is judged.

        Returns:
            Of sweeps with steady arrivals, and of those with bursts; None where these do not count.
        """
        each = np.array(self.config.rates_per_min)[rates]
        steady = self._measures(lessons, marks, points, each, STEADY, place, step.sweeps)
        if not step.bursts:
            return steady, None
        base = each / BurstArrivals().mean_rate_factor()
        return steady, self._measures(lessons, marks, points, base, BURSTS, place, step.bursts)

    def _measures(
        self,
        lessons: Lessons,
        marks: Marks,
        points: NDArray[np.float64],
        rates_per_min: NDArray[np.float64],
        stage: int,
        place: int,
        sweeps: int,
    ) -> NDArray[np.float64]:
        config = self.config
        env = {**self._env, "num_queries": config.search.queries}
        if stage == BURSTS:
            env["arrivals"] = "burst"
        seeds = seeds_of(self.seed, stage, place, sweeps)
        share = -(-len(points) // len(self._fleet))  # every worker has as many to judge
        together = max(1, min(share, config.rows // sweeps))  # candidates of a job
        jobs = []
        for first in range(0, len(points), together):
            part = points[first : first + together]
            rates = rates_per_min[first : first + together]
            prices = prices_of(part, self.num_models)
            jobs.append(
                Job(
                    env=env,
                    seeds=seeds * len(part),
                    rates_per_min=np.repeat(rates, sweeps).tolist(),
                    budget_s=None,
                    book=lessons.book,
                    lessons=lessons.priced(prices, ANY_RATE),
                    candidate=np.repeat(np.arange(len(part)), sweeps).tolist(),
                    mode=config.mode,
                    result="measures",
                    within_s=config.objective.within_s,
                    marks=marks,
                )
            )
        return np.concatenate(self._play(jobs))

    # Validation

    def validate(self, lessons: Lessons) -> NDArray[np.float64]:
        """What a trained agent reaches on the split "val" at each rate, (K, len(MEASURES))."""
        config = self.config
        rates = config.rates_per_min
        sweeps = config.validation_sweeps
        seeds = seeds_of(self.seed, VALIDATION, 0, sweeps)
        job = Job(
            env={**self._env, "num_queries": config.search.queries, "split": "val"},
            seeds=seeds * len(rates),
            rates_per_min=[rate for rate in rates for _ in range(sweeps)],
            budget_s=None,
            book=lessons.book,
            lessons=lessons,
            candidate=None,
            mode=config.mode,
            result="played",
        )
        ((played, _),) = self._play([job])
        of_rate = np.repeat(np.arange(len(rates)), sweeps)
        return measured(played, of_rate, config.objective.within_s)
