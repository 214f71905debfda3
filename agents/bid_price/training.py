"""Training of bid prices: survey the recipes, fit the effect of load, price the servers' time.

1. *Survey*. Recipes are played at random at idle servers; those that no situation calls for are
   dropped, and the others are surveyed again, so that the last ones are known well.
2. *Load*. These are played from light load to overload under random prices, and the effect of load
   on the time of calls is fitted.
3. *Prices* at every arrival rate, by linear programs over these estimates (`program.py`).
4. *Validation*, on held-out questions.

Only the records of the agent's own queries are used. All random numbers are functions of the seed
and the place, so the result is the same on any number of workers; a training that was stopped
continues after the prices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.bid_price import estimation, program, survey
from agents.bid_price.config import BidPriceConfig
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
SURVEY, LOAD, VALIDATION = range(3)
BEST: Final = "best"  # folder of the trained agent within that of the training
STATE: Final = "state"  # folder from which a training that was stopped continues
AMPLE_S: Final = 1e6  # a budget
SELDOM_S: Final = RANGES["metrics_poll_s"][1]  # between two polls of a telemetry that is not read
SURVEY_QUERIES: Final = 500  # of an episode of the survey
MEASURES: Final = ("goodput", "solved", "on_time", "latency_s")
SCORED: Final = (0.35, 0.85)  # part of a stream
_RANDOM: Final = (0.003, 1.05)  # median of random prices, and standard deviation of their logs


@dataclass(frozen=True)
class Measured:
    """Means of MEASURES over the scored queries of each group of rows, as the result of a job."""

    group: NDArray[np.int64]  # (rows,) of each stream

    def __call__(self, played: Played) -> NDArray[np.float64]:
        """Return the means, (groups, measures)."""
        queries = played.records["query"]
        first, last = (part * (int(queries.max()) + 1) for part in SCORED)
        scored = np.flatnonzero((queries >= first) & (queries < last))
        records, group = played.records[scored], self.group[played.row[scored]]
        on_time = records["latency_s"] <= records["budget_s"]
        solved = records["solved"]
        columns = (solved * on_time, solved, on_time, records["latency_s"])
        count = np.bincount(group)
        return np.column_stack([np.bincount(group, column) / count for column in columns])


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
            **requirements(),
        }
        made = environment(1, self._env)
        self.spec = made.policy_spec()
        self._code = DOMAINS.index("Code") in made.simulation.tasks.domain
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
        validation = config.validation
        return total + len(config.loads) * validation.episodes * validation.queries

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
            tensors = self._priced(self._estimate(recipes)).to_tensors()
            about = {**self.about, "queries": self.queries}
            checkpoint.save(self.out / STATE, tensors, about)
        return self._finish(from_tensors(tensors, spec.models, spec.num_strategies))

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
        rng, patience_s = self._rng(SURVEY, number), self.config.choice.patience_s
        return recipes.select(survey.worth_keeping(found, recipes.needs, keep, patience_s, rng))

    def _estimate(self, recipes: RecipeTable) -> BidPriceModel:
        """Play the last round of the survey, then under load; return all but the prices."""
        spec, embeddings = self.spec, self.spec.task_embeddings
        played = self._surveyed(recipes, len(self.config.survey) - 1)
        found = surveyed(played, recipes, spec)
        easiness = estimation.easiness_of_questions(played, found.right, len(embeddings))
        weights, centres = estimation.ease_of_questions(played, easiness, embeddings)
        score = (embeddings.astype(np.float64) @ weights)[played.records["task"]]
        ease = score - centres[played.records["domain"]]
        idle_s = estimation.seconds_of_calls(
            estimation.first_calls(recipes, played), spec.num_models, spec.num_strategies
        )
        made = np.isfinite(idle_s)
        total_s, count = np.where(made, idle_s, 0.0).sum(axis=(0, 2)), made.sum(axis=(0, 2))
        call_s = np.where(count > 0, total_s / np.maximum(count, 1), found.known.call_s)
        logit = estimation.log_odds(played, found.right, ease)
        model = BidPriceModel(
            models=spec.models,
            strategies=spec.num_strategies,
            recipes=recipes,
            known=found.known._replace(logit=logit, call_s=call_s),
            prices=self._random_prices(1, 0),
            rates_per_min=np.ones(1),
            ease_weights=weights,
            ease_centres=centres,
        )
        return self._with_load(model, idle_s)

    def _random_prices(self, count: int, part: int) -> Prices:
        """Return prices (count, 1), which rise with the load at random slopes."""
        rng, (median, sd) = self._rng(LOAD, part), _RANDOM
        random = sd * rng.standard_normal((count, 1, 1 + self.spec.num_models))
        choice = self.config.choice.model_dump()
        numbers = {name: np.full((count, 1), value) for name, value in choice.items()}
        numbers["load"] = np.exp(random[..., 0])
        return Prices(**numbers, base=math.log(median) + random[..., 1:])

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

    # Prices

    def _priced(self, model: BidPriceModel) -> BidPriceModel:
        """Return the model with prices by linear programming."""
        config, made = self.config, environment(1, self._env).simulation
        domain = np.array(made.tasks.domain)
        ease = model.ease(self.spec.task_embeddings)
        demand = program.demand_of(
            np.bincount(domain, minlength=len(DOMAINS)) / len(domain),
            [ease[domain == d, d] for d in range(len(DOMAINS))],
            self.spec.budget_tiers_s,
            config.choice.patience_s,
        )
        gpus = np.array([len(one.all_gpus) for one in made.pool.models], np.float64)
        work = program.work_of_slots(model.known, gpus)
        known = model.known, model.recipes.needs, demand, config.choice, work
        planner = program.Planner(*known)
        rates = planner.capacity_per_min() * np.array(config.loads)
        if config.work_cap_s is not None:
            planner = program.Planner(*known, config.work_cap_s)
        plans = [planner.plan(rate) for rate in rates.tolist()]
        prices = program.prices_of(plans, model.known.slots, config.choice)
        return replace(model, prices=prices, rates_per_min=rates)

    def _finish(self, model: BidPriceModel) -> dict[str, Any]:
        """Play on the split "val" and save the agent with its results."""
        config, loads = self.config.validation, self.config.loads
        env = {**self._env, "num_queries": config.queries, "split": "val"}
        seeds = self._seeds(config.episodes, VALIDATION, 0) * len(loads)
        rates = np.repeat(model.rates_per_min, config.episodes)
        of_rate = Measured(np.repeat(np.arange(len(loads)), config.episodes))
        (means,) = self._play([Job(env, seeds, rates, BidPricePolicy(model=model), of_rate)])
        result = dict(zip(MEASURES, means.mean(axis=0).tolist(), strict=True))
        goodput = zip(loads, means[:, 0].tolist(), strict=True)
        result |= {f"goodput_{load:g}": own for load, own in goodput}
        result |= {"capacity_per_min": float(model.rates_per_min[0]) / loads[0]}
        result = {name: round(value, 6) for name, value in result.items()}
        self._log({f"validation/{name}": value for name, value in result.items()})
        about = {**self.about, "queries": dict(self.queries), "validation": result}
        save_model(self.out / BEST, model, about)
        checkpoint.save(self.out / STATE, {}, about)
        return {**result, "checkpoint": str(self.out / BEST)}

    def _rng(self, stage: int, place: int) -> np.random.Generator:
        """Return the generator of a place, for draws that are no seeds."""
        return np.random.default_rng([self.seed, stage, place, 1])

    def _seeds(self, rows: int, stage: int, place: int) -> list[int]:
        """Return seeds of `rows` episodes."""
        rng = np.random.default_rng([self.seed, stage, place])
        return [int(s) for s in rng.integers(2**31, size=rows)]

    def _log(self, metrics: dict[str, float]) -> None:
        self.tracker.log(0, {name: float(value) for name, value in metrics.items()})
        self.tracker.flush()
