"""Training of bid prices: survey the recipes, fit the effect of load, price the servers' time.

1. *Survey*. Recipes are played at random at idle servers; those that no situation calls for are
   dropped, and the others are surveyed again, so that the last ones are known well.
2. *Load*. These are played at all loads under random prices, and the effect of load on the time of
   calls is fitted.
3. *Prices* at every arrival rate, by linear programs over these estimates (`program.py`).
4. *Search*. CMA-ES finds the few numbers that the programs leave open, the same at all rates, in
   streams from light load to overload (`search.py`).
5. *Validation*. What was found plays if it is better on held-out questions than where it began.

Only the records of the agent's own queries are used. All random numbers are functions of the seed
and the place: a training that was stopped continues after the prices, or after the last finished
generation, to the same result, on any number of workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.bid_price import estimation, program, survey
from agents.bid_price.config import BidPriceConfig
from agents.bid_price.estimation import ItemResponse
from agents.bid_price.search import (
    MEASURES,
    UNITS,
    Measured,
    Table,
    dimensions,
    prices_of,
    search,
    worth,
)
from agents.bid_price.survey import Job, Played, environment, joined, surveyed
from agents.runs import Tracker, check_resume, run_of
from inframind_gym.benchmark.workers import Workers
from inframind_gym.envs.routing.config import RANGES
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price.model import (
    BidPriceModel,
    Prices,
    from_tensors,
    save_model,
)
from inframind_gym.policies.bid_price.policy import BidPricePolicy, RecipePolicy, requirements
from inframind_gym.policies.bid_price.recipes import RecipeTable, tabulate
from inframind_gym.progress import ProgressReport
from inframind_gym.tasks import DOMAINS

# Purpose of random numbers: the second coordinate of every seed of a training.
SURVEY, LOAD, SEARCH, STREAMS, VALIDATION = range(5)
BEST: Final = "best"  # folder of the trained agent within that of the training
STATE: Final = "state"  # folder from which a training that was stopped continues
AMPLE_S: Final = 1e6  # a budget
SELDOM_S: Final = RANGES["metrics_poll_s"][1]  # between two polls of a telemetry that is not read
SURVEY_QUERIES: Final = 500  # of an episode of the survey
PATIENCE_S: Final = math.exp(UNITS["patience_s"][0])


class Streams(NamedTuple):
    """Streams that judge candidates, side by side."""

    queries: int  # of each
    rates_per_min: NDArray[np.float64]  # (rows,)
    candidate: NDArray[np.int64]  # (rows,) whose prices it pays
    group: NDArray[np.int64]  # (rows,) over which means are taken
    split: str  # of the questions


def train(
    config: BidPriceConfig,
    *,
    seed: int,
    out: Path,
    workers: int = 1,
    ray_address: str | None = None,
    resume: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train bid prices on one workload.

    Args:
        config: of the training.
        seed: of all random numbers.
        out: folder of the training; the agent is written to `out/best`.
        workers: processes that play.
        ray_address: a Ray cluster that plays instead.
        resume: continue the training in `out`.
        wandb: see `Tracker`, as for `tensorboard`.

    Returns:
        Means of MEASURES on the validation split, and the checkpoint's folder.

    Raises:
        ConfigError: `out` holds another training, or one while `resume` is off.
    """
    about = run_of(config, seed)
    tensors: dict[str, NDArray[Any]] = {}
    progress: dict[str, Any] = {"queries": {}}
    if checkpoint.exists(out / STATE):
        tensors, progress = checkpoint.load(out / STATE)
        check_resume(out, progress, about, resume=resume)
    if "validation" in progress:
        return {**progress["validation"], "checkpoint": str(out / BEST)}
    tracker = Tracker(out, about["config"], wandb=wandb, tensorboard=tensorboard)
    pool = Workers("agents.bid_price.survey:Player", {}, workers, ray_address)
    with pool, tracker:
        return Trainer(config, seed, pool, out, about, tracker, progress["queries"]).run(tensors)


@dataclass
class Trainer:
    """Stages of a training, each a function of the configuration, the seed and the one before."""

    config: BidPriceConfig
    seed: int  # of all random numbers
    pool: Workers  # of `survey.Player`: they play episodes
    out: Path
    about: dict[str, Any]  # JSON values that identify the training
    tracker: Tracker
    queries: dict[str, int]  # played so far, by load: "idle" and "loaded"

    def __post_init__(self) -> None:
        """Take the facts of the environment."""
        self._env = {
            **self.config.env.arguments("train"),
            "observation": "index",
            **requirements(self.config.mode),
        }
        made = environment(1, self._env)
        self.spec = made.policy_spec()
        self._code = DOMAINS.index("Code") in made.simulation.tasks.domain
        self._decisions, self._began = 0.0, time.monotonic()
        self._charts: dict[str, float] = {}
        what, done = f"bid_price on {self.spec.workload}", sum(self.queries.values())
        self._report = ProgressReport(self.total_queries(), done, what, "queries")

    def run(self, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Carry out all stages, or those after the one whose result is `tensors`."""
        with self._report:
            return self._run(tensors)

    def total_queries(self) -> int:
        """Return the number of queries that a whole training plays."""
        config, batch = self.config, self.config.rows * SURVEY_QUERIES
        total = sum(-(-one.queries // batch) * batch for one in config.survey)
        total += config.load.episodes * config.load.queries
        search, validation = config.search, config.validation
        total += search.generations * search.population * len(search.loads) * search.queries
        return total + 2 * len(search.loads) * validation.episodes * validation.queries

    def _run(self, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
        spec = self.spec
        if not tensors:
            listed = survey.candidates(
                *(spec.num_models, spec.num_strategies),
                code=self._code,
                single_calls=self.config.single_calls,
            )
            recipes = tabulate(listed, spec.num_strategies)
            for number in range(len(self.config.survey) - 1):
                recipes = self._survey(recipes, number)
                self._log({"survey/recipes": len(recipes)})
            tensors = self._estimate(recipes)
            self._keep(tensors)
        model = from_tensors(tensors, spec.models, spec.num_strategies)
        responses = ItemResponse(**checkpoint.part(tensors, "item."))
        table = Table(**checkpoint.part(tensors, "table."))
        found = self._search(model, table, responses, tensors)
        return self._finish(model, table, found)

    def _play(self, jobs: Sequence[Job], kind: str = "loaded") -> list[Any]:
        """Return results of jobs, in their order."""
        played = sum(len(job.seeds) * int(job.env["num_queries"]) for job in jobs)
        self.queries[kind] = self.queries.get(kind, 0) + played
        results = {}
        for (number, job), result in self.pool.run(enumerate(jobs), request=lambda job: job[1]):
            results[number] = result
            self._report.advance(len(job.seeds) * int(job.env["num_queries"]))
        return [results[number] for number in range(len(jobs))]

    # Survey and load

    def _surveyed(self, recipes: RecipeTable, number: int) -> Played:
        """Play round `number` of the survey."""
        config = self.config
        env = {**self._env, "num_queries": SURVEY_QUERIES, "budget_s": AMPLE_S}
        env["metrics_poll_s"] = SELDOM_S
        rates = np.full(config.rows, config.idle_rate_per_min)
        policy = RecipePolicy(recipes)
        jobs = []
        for part in range(-(-config.survey[number].queries // (config.rows * SURVEY_QUERIES))):
            seeds = self._seeds(config.rows, SURVEY, 1000 * number + part)
            jobs.append(Job(env, seeds, rates, policy))
        return joined(self._play(jobs, "idle"))

    def _survey(self, recipes: RecipeTable, number: int) -> RecipeTable:
        """Play round `number` and return the recipes worth keeping."""
        found = surveyed(self._surveyed(recipes, number), recipes, self.spec)
        keep = self.config.survey[number].keep or len(recipes)
        rng = np.random.default_rng([self.seed, SURVEY, number, 1])
        return recipes.select(survey.worth_keeping(found, recipes.needs, keep, PATIENCE_S, rng))

    def _estimate(self, recipes: RecipeTable) -> dict[str, NDArray[Any]]:
        """Play the last round of the survey, then under load; return all but the search."""
        spec, embeddings = self.spec, self.spec.task_embeddings
        played = self._surveyed(recipes, len(self.config.survey) - 1)
        found = surveyed(played, recipes, spec)
        responses = estimation.fit_item_response(played, found.right, len(embeddings))
        weights, centres = estimation.ease_of_questions(played, responses.easiness, embeddings)
        score = (embeddings.astype(np.float64) @ weights)[played.records["task"]]
        ease = score - centres[played.records["domain"]]
        idle_s = estimation.seconds_of_calls(
            estimation.first_calls(recipes, played), spec.num_models, spec.num_strategies
        )
        made = np.isfinite(idle_s)
        total_s, count = np.where(made, idle_s, 0.0).sum(axis=(0, 2)), made.sum(axis=(0, 2))
        call_s = np.where(count > 0, total_s / np.maximum(count, 1), found.known.call_s)
        logit = estimation.log_odds(played, found.right, ease)
        models = spec.num_models
        model = BidPriceModel(
            models=spec.models,
            strategies=spec.num_strategies,
            recipes=recipes,
            known=found.known._replace(logit=logit, call_s=call_s),
            prices=self._random_prices(1),
            rates_per_min=np.ones(1),
            ease_weights=weights,
            ease_centres=centres,
        )
        model = self._with_load(model, idle_s)
        share = np.bincount(played.records["domain"], minlength=len(DOMAINS)) / len(ease)
        by_domain = [ease[played.records["domain"] == d] for d in range(len(DOMAINS))]
        demand = program.demand_of(share, by_domain, spec.budget_tiers_s, PATIENCE_S)
        nothing = Table(np.ones(()), np.ones(models), np.zeros(models))
        start = prices_of(np.zeros(dimensions(models)), nothing)
        planner = program.Planner(model.known, recipes.needs, demand, start)
        capacity = planner.capacity_per_min()
        rates = capacity * np.array(self.config.search.loads)
        plans = [planner.plan(rate) for rate in rates.tolist()]
        load = np.array([plan.in_flight for plan in plans]) / model.known.slots
        table = Table(rates, np.array([plan.price for plan in plans]), load)
        return {
            **model.to_tensors(),
            **checkpoint.prefixed(responses._asdict(), "item."),
            **checkpoint.prefixed(table._asdict(), "table."),
        }

    def _random_prices(self, count: int, part: int = 0) -> Prices:
        """Return prices of `count` candidates, the same at all rates."""
        rng, models = np.random.default_rng([self.seed, LOAD, part, 1]), self.spec.num_models
        table = Table(np.ones(1), np.full((1, models), 0.003), np.zeros((1, models)))
        return prices_of(1.5 * rng.standard_normal((count, 1, dimensions(models))), table)

    def _with_load(self, model: BidPriceModel, idle_s: NDArray[np.float64]) -> BidPriceModel:
        """Play under random prices from light load to overload, and fit the effect of load."""
        load, known = self.config.load, model.known
        env = {**self._env, "num_queries": load.queries}
        full = 60.0 * known.slots.sum() / known.work_s.sum(axis=2).mean()  # per minute, of any mix
        jobs = []
        for part, first in enumerate(range(0, load.episodes, self.config.rows)):
            rows = np.arange(min(self.config.rows, load.episodes - first))
            priced = replace(model, prices=self._random_prices(len(rows), part))
            policy = BidPricePolicy(model=priced, candidate=rows)
            rates = full * np.geomspace(0.05, 1.0, len(rows))
            jobs.append(Job(env, self._seeds(len(rows), LOAD, part), rates, policy))
        played = joined(self._play(jobs))
        calls, budget_s = estimation.first_calls(model.recipes, played), played.records["budget_s"]
        slowdown, turns = estimation.congestion(
            calls, played.in_flight, budget_s, idle_s, known.slots, known.budgets_s
        )
        return replace(model, known=known._replace(slowdown=slowdown, turns=turns))

    # Search

    def _search(
        self,
        model: BidPriceModel,
        table: Table,
        responses: ItemResponse,
        tensors: dict[str, NDArray[Any]],
    ) -> NDArray[np.float64]:
        """Search to the end; the values of every step are kept, and a resumed search reads them."""
        kept = len(checkpoint.part(tensors, "search."))
        self.tracker.rewind(kept)
        state, step = dict(tensors), 0

        def judge(points: NDArray[np.float64]) -> NDArray[np.float64]:
            nonlocal step
            if step >= kept:
                state[f"search.{step}"] = self.judge(model, table, responses, points, step)
                self._keep(state)
            step += 1
            return state[f"search.{step - 1}"]

        shape = len(table.rates_per_min), dimensions(self.spec.num_models)
        return search(self.config.search, shape, [self.seed, SEARCH], judge)

    def judge(
        self,
        model: BidPriceModel,
        table: Table,
        responses: ItemResponse,
        points: NDArray[np.float64],
        step: int,
    ) -> NDArray[np.float64]:
        """Return the values (K, P) of P candidates (K, P, K, dimensions) of each rate.

        All candidates of a rate meet the same stream, at a random rate nearer to theirs than to
        the others.

        Args:
            model: estimates.
            table: prices by linear programming.
            responses: chances by which answers are judged.
            points: candidates.
            step: of the search; the streams follow from it.
        """
        rates, population = len(points), points.shape[1]
        log_rate = np.log(table.rates_per_min)
        edges = np.interp(np.arange(rates + 1) - 0.5, np.arange(rates), log_rate)
        rng = np.random.default_rng([self.seed, STREAMS, step, 1])
        drawn = np.exp(edges[:-1] + rng.random(rates) * np.diff(edges))
        rows = np.arange(rates * population)
        streams = Streams(
            self.config.search.queries, np.repeat(drawn, population), rows, rows, "train"
        )
        seeds = self._seeds(1, STREAMS, step) * len(rows)
        flat = points.reshape(len(rows), *points.shape[2:])
        means = self._means(model, table, flat, streams, seeds, responses)
        values = worth(means, self.config.objective).reshape(rates, population)
        for load, own in zip(self.config.search.loads, values.mean(axis=1), strict=True):
            self._charts[f"search/objective_{load:g}"] = own
        charts = zip(MEASURES, means.mean(axis=0), strict=True)
        self._charts |= {f"charts/{name}": mean for name, mean in charts}
        self._log({**self._charts, "charts/objective": values.mean()}, step + 1)
        return values

    def _means(
        self,
        model: BidPriceModel,
        table: Table,
        points: NDArray[np.float64],
        streams: Streams,
        seeds: list[int],
        responses: ItemResponse | None,
    ) -> NDArray[np.float64]:
        """Return means of MEASURES of each group of streams, under points (C, K, dimensions)."""
        env = {**self._env, "num_queries": streams.queries, "split": streams.split}
        prices, slo_s = prices_of(points, table), self.config.objective.slo_latency_s
        agent = replace(model, prices=prices, rates_per_min=table.rates_per_min)
        groups = int(streams.group.max()) + 1
        number = max(self.pool.size, -(-len(seeds) // self.config.rows))
        jobs = []
        for part in np.array_split(np.arange(groups), min(number, groups)):
            rows = np.flatnonzero(np.isin(streams.group, part))
            policy = BidPricePolicy(
                mode=self.config.mode, model=agent, candidate=streams.candidate[rows]
            )
            measured = Measured(streams.group[rows] - part[0], slo_s, responses)
            own = [seeds[row] for row in rows.tolist()]
            jobs.append(Job(env, own, streams.rates_per_min[rows], policy, measured))
        means = np.concatenate(self._play(jobs))
        self._decisions += float(means[:, -1].mean()) * len(seeds) * streams.queries
        return means

    # End

    def _finish(
        self, model: BidPriceModel, table: Table, found: NDArray[np.float64]
    ) -> dict[str, Any]:
        """Take for each rate what was found or where it began, by the split "val", and save it."""
        config, points = self.config.validation, np.array([found, np.zeros_like(found)])
        loads = self.config.search.loads
        group = np.repeat(np.arange(2 * len(loads)), config.episodes)
        rates = np.tile(np.repeat(table.rates_per_min, config.episodes), 2)
        streams = Streams(config.queries, rates, group // len(loads), group, "val")
        seeds = self._seeds(config.episodes, VALIDATION, 0) * (2 * len(loads))
        means = self._means(model, table, points, streams, seeds, None).reshape(2, len(loads), -1)
        values = worth(means, self.config.objective)
        best, every = values.argmax(axis=0), np.arange(len(loads))
        prices = prices_of(points[best, every][None], table)
        measures = zip(MEASURES, means[best, every].mean(axis=0).tolist(), strict=True)
        result: dict[str, Any] = dict(measures)
        goodput = zip(loads, means[best, every, 0].tolist(), strict=True)
        result |= {f"goodput_{load:g}": own for load, own in goodput}
        result |= {"gain": float((values.max(axis=0) - values[1]).mean())}
        result |= {"capacity_per_min": float(table.rates_per_min[0]) / loads[0]}
        result = {name: round(value, 6) for name, value in result.items()}
        self._log({f"validation/{name}": value for name, value in result.items()})
        about = {**self.about, "queries": dict(self.queries), "validation": result}
        agent = replace(model, prices=prices, rates_per_min=table.rates_per_min)
        save_model(self.out / BEST, agent, about)
        checkpoint.save(self.out / STATE, {}, about)
        return {**result, "checkpoint": str(self.out / BEST)}

    def _seeds(self, rows: int, stage: int, place: int) -> list[int]:
        """Return seeds of `rows` episodes; other draws at a place have a fourth coordinate."""
        rng = np.random.default_rng([self.seed, stage, place])
        return [int(s) for s in rng.integers(2**31, size=rows)]

    def _keep(self, tensors: dict[str, NDArray[Any]]) -> None:
        checkpoint.save(self.out / STATE, tensors, {**self.about, "queries": self.queries})

    def _log(self, metrics: dict[str, float], step: int = 0) -> None:
        seconds = time.monotonic() - self._began
        rates = {"charts/SPS": self._decisions / seconds} if self._decisions else {}
        self.tracker.log(step, {k: float(v) for k, v in (metrics | rates).items()})
        self.tracker.flush()
