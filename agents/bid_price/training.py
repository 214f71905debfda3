"""Training of bid prices: survey the recipes, estimate the effect of load, search the prices.

1. *Survey*. Recipes are played at random at idle servers; those that no situation calls for are
   dropped, and the others are surveyed again, so that the last ones are known well.
2. *Load*. These are played at all rates under random prices, and the effect of load on the time of
   calls is fitted.
3. *Search*. At every rate CMA-ES looks for the prices under which whole episodes do best, at all
   budgets and also with arrivals in bursts. So the prices hold what a call costs other queries,
   which no reward of a single query shows.

Only the records of the agent's own queries are used. All random numbers are functions of the seed
and the place: a training that was stopped continues after the survey and the fit of the load, or
after the last finished step of the search, to the same result, on any number of workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.bid_price import estimation, search, survey
from agents.bid_price.config import BidPriceConfig
from agents.bid_price.estimation import ItemResponse
from agents.bid_price.search import (
    MEASURES,
    SURVEY_QUERIES,
    dimensions,
    judged_episodes,
    prices_of,
)
from agents.bid_price.survey import Job, Played, environment, joined, surveyed
from agents.runs import Tracker, check_resume, run_of
from inframind_gym.benchmark.workers import Workers
from inframind_gym.envs.routing.config import RANGES
from inframind_gym.policies import checkpoint
from inframind_gym.policies.bid_price.model import (
    BidPriceModel,
    from_tensors,
    load_model,
    save_model,
)
from inframind_gym.policies.bid_price.policy import BidPricePolicy, RecipePolicy, requirements
from inframind_gym.policies.bid_price.recipes import RecipeTable, tabulate
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.arrivals import BurstArrivals
from inframind_gym.tasks import DOMAINS

# Purpose of random numbers: the second coordinate of every seed of a training.
SURVEY, LOAD, SEARCH, STEADY, VALIDATION, BURSTS = range(6)
BEST: Final = "best"  # folder of the trained agent within that of the training
STATE: Final = "state"  # folder from which a training that was stopped continues
AMPLE_S: Final = 1e6  # a budget
SELDOM_S: Final = RANGES["metrics_poll_s"][1]  # between two polls of a telemetry that is not read
ANY_RATE: Final = (1.0,)  # of candidates with a single set of prices, which they pay at every rate


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
        what, done = f"bid_price on {self.spec.workload}", sum(self.queries.values())
        self._report = ProgressReport(self.total_queries(), done, what, "queries")

    def run(self, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Carry out all stages, or those after the one whose result is `tensors`."""
        with self._report:
            return self._run(tensors)

    def total_queries(self) -> int:
        """Return the number of queries that a whole training plays."""
        config, rates = self.config, len(self.config.rates_per_min)
        batch = config.rows * SURVEY_QUERIES
        survey = sum(-(-one.queries // batch) * batch for one in config.survey)
        load = config.load_episodes * rates * config.load_queries
        episodes = judged_episodes(config, self.spec.num_models)
        episodes += config.validation_episodes * rates
        return survey + load + episodes * config.search.queries

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
            model, responses = self._estimate(recipes)
            tensors = {**model.to_tensors(), **checkpoint.prefixed(responses._asdict(), "item.")}
            self._keep(tensors)
        model = from_tensors(tensors, spec.models, spec.num_strategies)
        responses = ItemResponse(**checkpoint.part(tensors, "item."))
        found = prices_of(self._search(model, responses, tensors), spec.num_models)
        return self._finish(model.priced(found, self.config.rates_per_min))

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
        patience_s = math.exp(search.UNITS["patience_s"][0])
        rng = np.random.default_rng([self.seed, SURVEY, number, 1])
        return recipes.select(survey.worth_keeping(found, recipes.needs, keep, patience_s, rng))

    def _estimate(self, recipes: RecipeTable) -> tuple[BidPriceModel, ItemResponse]:
        """Play the last round of the survey, then under load; return all but the prices."""
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
        model = BidPriceModel(
            models=spec.models,
            strategies=spec.num_strategies,
            recipes=recipes,
            known=found.known._replace(logit=logit, call_s=call_s),
            prices=prices_of(np.zeros(dimensions(spec.num_models)), spec.num_models),
            rates_per_min=np.array(ANY_RATE),
            ease_weights=weights,
            ease_centres=centres,
        )
        return self._with_load(model, idle_s), responses

    def _with_load(self, model: BidPriceModel, idle_s: NDArray[np.float64]) -> BidPriceModel:
        """Play under random prices at all rates and fit the effect of load."""
        config, models, known = self.config, self.spec.num_models, model.known
        rates = np.array(config.rates_per_min)
        env = {**self._env, "num_queries": config.load_queries}
        total = config.load_episodes * len(rates)
        jobs = []
        for part, first in enumerate(range(0, total, config.rows)):
            rng = np.random.default_rng([self.seed, LOAD, part, 1])
            rows = np.arange(min(config.rows, total - first))
            points = 1.5 * rng.standard_normal((len(rows), dimensions(models)))
            priced = model.priced(prices_of(points, models), ANY_RATE)
            policy = BidPricePolicy(model=priced, candidate=rows)
            seeds = self._seeds(len(rows), LOAD, part)
            jobs.append(Job(env, seeds, rates[(first + rows) % len(rates)], policy))
        played = joined(self._play(jobs))
        calls, budget_s = estimation.first_calls(model.recipes, played), played.records["budget_s"]
        slowdown, turns = estimation.congestion(
            calls, played.in_flight, budget_s, idle_s, known.slots, known.budgets_s
        )
        return replace(model, known=known._replace(slowdown=slowdown, turns=turns))

    # Search

    def _search(
        self, model: BidPriceModel, responses: ItemResponse, tensors: dict[str, NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Search to the end; the values of every step are kept, and a resumed search reads them."""
        kept = len(checkpoint.part(tensors, "search."))
        self.tracker.rewind(kept)
        state, step = dict(tensors), 0

        def judge(points: NDArray[np.float64], episodes: int, bursts: int) -> NDArray[np.float64]:
            nonlocal step
            if step >= kept:
                values = self.judge(model, responses, points, (episodes, bursts), step)
                state[f"search.{step}"] = values
                self._keep(state)
            step += 1
            return state[f"search.{step - 1}"]

        place = [self.seed, SEARCH]
        return search.search_prices(self.config, self.spec.num_models, place, judge)

    def judge(
        self,
        model: BidPriceModel,
        responses: ItemResponse | None,
        points: NDArray[np.float64],
        episodes: tuple[int, int],
        step: int,
    ) -> NDArray[np.float64]:
        """Return the values of points at each rate, (K, C).

        Args:
            model: estimates.
            responses: chances by which answers are judged; None counts the right ones.
            points: (K, C, dimensions) of the search.
            episodes: that judge each point, with steady arrivals and with bursts.
            step: of the search; the episodes follow from it.
        """
        rates, shape = np.array(self.config.rates_per_min), points.shape[:2]
        per_min = np.repeat(rates, shape[1])
        charts: dict[str, float] = {}
        parts = []
        for room, stage, count in zip(
            ("charts", "bursts"), (STEADY, BURSTS), episodes, strict=True
        ):
            if count:
                found = self._measures(model, responses, points, per_min, (stage, step), count)
                means = zip(MEASURES, found.mean(axis=0), strict=True)
                charts |= {f"{room}/{name}": mean for name, mean in means}
                played = len(found) * count * self.config.search.queries
                self._decisions += charts[f"{room}/decisions"] * played
                parts.append(found)
        values = search.worth(parts[0], parts[1] if episodes[1] else None, self.config.objective)
        by_rate = zip(rates.tolist(), values.reshape(shape), strict=True)
        charts |= {f"search/objective_{rate:g}": own.mean() for rate, own in by_rate}
        self._log({**charts, "charts/objective": values.mean()}, step + 1)
        return values.reshape(shape)

    def _measures(
        self,
        model: BidPriceModel,
        responses: ItemResponse | None,
        points: NDArray[np.float64],
        rates_per_min: NDArray[np.float64],
        place: tuple[int, int],
        episodes: int,
    ) -> NDArray[np.float64]:
        """Return means of MEASURES over the episodes of each point, (K · C, measures)."""
        config, points = self.config, points.reshape(-1, points.shape[-1])
        env = {**self._env, "num_queries": config.search.queries}
        if place[0] == BURSTS:
            env["arrivals"] = "burst"
            rates_per_min = rates_per_min / BurstArrivals().mean_rate_factor()
        seeds = self._seeds(episodes, *place)
        number = max(self.pool.size, -(-len(points) * episodes // config.rows))
        jobs = []
        for part in np.array_split(np.arange(len(points)), min(number, len(points))):
            priced = model.priced(prices_of(points[part], self.spec.num_models), ANY_RATE)
            candidate = np.repeat(np.arange(len(part)), episodes)
            policy = BidPricePolicy(mode=config.mode, model=priced, candidate=candidate)
            own_rates = np.repeat(rates_per_min[part], episodes)
            measured = search.Measured(candidate, config.objective.slo_latency_s, responses)
            jobs.append(Job(env, seeds * len(part), own_rates, policy, measured))
        return np.concatenate(self._play(jobs))

    # End

    def _finish(self, model: BidPriceModel) -> dict[str, Any]:
        """Save the agent, validate what was saved, and add the result to the checkpoint."""
        best = self.out / BEST
        about = {**self.about, "queries": dict(self.queries)}
        save_model(best, model, about)
        by_rate = self.validate(load_model(best)).mean(axis=0).tolist()
        result = {name: round(mean, 6) for name, mean in zip(MEASURES, by_rate, strict=True)}
        about["validation"] = result
        save_model(best, model, about)
        self._log({f"validation/{name}": value for name, value in result.items()})
        checkpoint.save(self.out / STATE, {}, about)
        return {**result, "checkpoint": str(best)}

    def validate(self, model: BidPriceModel) -> NDArray[np.float64]:
        """Return means of MEASURES on the split "val" at each rate, (K, measures)."""
        config, rates = self.config, np.array(self.config.rates_per_min)
        of_rate = np.repeat(np.arange(len(rates)), config.validation_episodes)
        seeds = self._seeds(config.validation_episodes, VALIDATION, 0) * len(rates)
        env = {**self._env, "num_queries": config.search.queries, "split": "val"}
        policy = BidPricePolicy(mode=config.mode, model=model)
        measured = search.Measured(of_rate, config.objective.slo_latency_s)
        (found,) = self._play([Job(env, seeds, rates[of_rate], policy, measured)])
        return np.asarray(found, np.float64)

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
