"""Training of bid prices: survey the recipes, fit the effect of load, price the servers' time.

1. *Survey*. Recipes are played at random at idle servers; those that no situation calls for are
   dropped, and the others are surveyed again, so that the last ones are known well.
2. *Load*. These are played from light load to overload under random prices, and the effect of load
   on the time of calls is fitted.
3. *Prices* at every arrival rate, by linear programs over these estimates (`PriceProgram`).
4. *Validation*, on held-out questions.

Only the records of the agent's own queries are used. All random numbers are functions of the seed
and the place, so the result is the same on any number of workers; a training that was stopped
continues after the prices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator
from scipy import sparse
from scipy.special import ndtr

from agents.bid_price.estimates import (
    Job,
    Played,
    candidates,
    congestion,
    ease_of_questions,
    easiness_of_questions,
    environment,
    first_calls,
    joined,
    log_odds,
    play_job,
    seconds_of_calls,
    surveyed,
    worth_keeping,
)
from agents.runs import BEST, Array, Run, WorldChoice
from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
)
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.bounds import maximise
from inframind_gym.evaluation.runner import in_parallel
from inframind_gym.policies.bid_price import (
    BY_RECIPE,
    BidPriceModel,
    BidPricePolicy,
    Estimates,
    Prices,
    from_tensors,
    save_model,
)
from inframind_gym.policies.recipes import REQUIRES, RecipePolicy, RecipeTable, tabulate
from inframind_gym.progress import ProgressReport
from inframind_gym.tasks import DOMAINS

# Purpose of random numbers: the second coordinate of every seed of a training.
SURVEY, LOAD, VALIDATION = range(3)
AMPLE_S: Final = 1e6  # a budget
SELDOM_S: Final = 1e6  # between two polls of a telemetry that is not read
SURVEY_QUERIES: Final = 500  # of an episode of the survey
MEASURES: Final = ("goodput", "solved", "on_time", "latency_s")
SCORED: Final = (0.35, 0.85)  # part of a stream, of whose queries the means are
RANDOM_PRICES: Final = (0.003, 1.05)  # their median, and the standard deviation of their logs
EASE_CLASSES: Final = 3  # of the questions of a domain
AT_CAPACITY: Final = 0.9  # of the value on idle servers, as in the benchmark
# A second of a slot of models that are left out, in right answers: more than any price that rises
# with the load, or a queue would bring calls to these models, which slow the others further.
TOO_DEAR: Final = 30.0
_SKIP: Final = 1.0  # loss by a query that no server takes; the policy skips none
_LOWEST: Final = 1e-6  # price, where there is more time than is worth having
_STEP: Final = 1.25  # ratio of the rates between which the capacity is looked for
_ROUNDS: Final = 3  # solutions for a set of models, after a first one
_FINALISTS: Final = 5  # sets of models that are solved for more than once


class ChoiceConfig(StrictModel):
    """Numbers of the choice beside the prices, as in `policies.bid_price.Prices`."""

    load: NonNegative = 1.0
    late_value: Fraction = 0.075
    caution: Number = 0.0
    patience_s: Positive = 110.0
    doubt: NonNegative = 0.05


class SurveyRound(StrictModel):
    """One round of the survey, after which the recipes that no situation calls for are dropped."""

    queries: PositiveInt  # played in it, rounded up to whole batches of `rows` episodes
    keep: PositiveInt | None = None  # most recipes left after it; None keeps all (the last round)


class LoadConfig(StrictModel):
    """Episodes at random prices, from which the effect of load on the time of calls is fitted."""

    episodes: PositiveInt = 192
    queries: PositiveInt = 300  # in each


class ValidationConfig(StrictModel):
    """Streams on the split "val" at every rate that has prices; the middle of each is scored."""

    episodes: PositiveInt = 1  # at each rate
    queries: PositiveInt = 3000  # in a stream


class BidPriceConfig(StrictModel):
    """Training of bid prices; the defaults are those of the shipped checkpoints."""

    algorithm: Literal["bid_price"] = "bid_price"
    env: WorldChoice = WorldChoice()  # of the training; a checkpoint is for its workload and pool
    # recipes of one call alone, as `inframind serve` routes them
    single_calls: bool = Field(default=False, exclude_if=lambda single_calls: not single_calls)
    # GPU-seconds of full steps that a query may take in the mean, as the track `cost` caps them
    work_cap_s: Positive | None = Field(default=None, exclude_if=lambda cap_s: cap_s is None)
    rows: PositiveInt = 480  # episodes that run in lockstep
    idle_rate_per_min: Positive = 0.05  # arrival rate at which queries hardly ever meet
    survey: Annotated[tuple[SurveyRound, ...], Field(min_length=1)] = (
        SurveyRound(queries=480_000, keep=1200),
        SurveyRound(queries=480_000, keep=300),
        SurveyRound(queries=240_000, keep=100),
        SurveyRound(queries=480_000),
    )
    load: LoadConfig = LoadConfig()
    # the rates that get prices, over the capacity, rising
    loads: Annotated[tuple[Positive, ...], Field(min_length=2)] = tuple(
        np.geomspace(0.1, 1.5, 24).round(3).tolist()
    )
    choice: ChoiceConfig = ChoiceConfig()
    validation: ValidationConfig = ValidationConfig()

    @field_validator("loads")
    @classmethod
    def _check_loads(cls, loads: tuple[float, ...]) -> tuple[float, ...]:
        if not (np.diff(np.array(loads, np.float32)) > 0.0).all():  # as a checkpoint keeps them
            raise ValueError(f"loads must rise, got {list(loads)}")
        return loads


class Demand(NamedTuple):
    """Kinds of queries: D domains, E classes of ease, B budgets, of which each is independent."""

    share: Array  # (D,) of the queries
    ease: Array  # (D, E) log odds, each class as many as the others
    budgets_s: Array  # (B,)
    budget_share: Array  # (B,)


class Plan(NamedTuple):
    """A solution at one rate."""

    value: float  # right answers in time, a query
    price: Array  # (M,) of a second of a slot, in right answers
    work_price: Array  # (M,) of the GPU-seconds of such a second
    in_flight: Array  # (M,) mean calls


def demand_of(
    share: Array,  # (D,) of the queries
    ease: Sequence[Array],  # log odds of the questions of every domain
    tiers_s: Array,  # budgets, each as often as it is drawn
    patience_s: float,  # budgets above count as this
) -> Demand:
    """Return the kinds of queries."""
    mean = np.zeros((len(share), EASE_CLASSES))
    for d, own in enumerate(ease):
        if len(own):
            mean[d] = [part.mean() for part in np.array_split(np.sort(own), EASE_CLASSES)]
    budgets_s, count = np.unique(np.minimum(tiers_s, patience_s), return_counts=True)
    return Demand(share, mean, budgets_s, count / count.sum())


def work_of_slots(known: Estimates, gpus: Array) -> Array:
    """Return the GPU-seconds (M,) of a second of a slot of models that have so many (M,) GPUs.

    A slot has its share of a full batch, in which a call takes longer than alone.
    """
    work: Array = gpus * np.exp(known.slowdown[:, -1]) / known.slots
    return work


def slowdown_of(known: Estimates, in_flight: Array) -> Array:
    """Return the factor (M,) by which calls are longer, with so many (M,) in flight in the mean."""
    models = len(known.slots)
    busy = 1.0 - np.exp(-in_flight) * (1.0 + 0.5 * in_flight)  # E[min(n / 2, 1)], n is Poisson
    fill = np.minimum(in_flight / known.slots, 1.0)
    slow: Array = np.exp(known.slowdown[:, :models] @ busy + known.slowdown[:, models] * fill)
    return slow


class PriceProgram:
    """The linear programs of one set of models, whose dual variables are prices.

    A program shares out the queries of every kind (domain, apparent ease, budget) among the
    recipes, so that most are right in time and the servers can do the work. The dual variable of a
    server is the price of its time at that rate. Calls slow those of other models on the same GPU,
    so it is solved a few times, each time with the slowdown by the calls that the last solution
    keeps in flight. Where the GPU-seconds of a query are capped, the cap is one more row: the price
    of a GPU-second, which every server's time costs on top.
    """

    def __init__(
        self,
        known: Estimates,  # of R recipes
        allowed: Array,  # recipes that need no other models
        demand: Demand,
        choice: ChoiceConfig,
        work: Array,  # (M,) GPU-seconds of a second of a slot
        cap_s: float,  # GPU-seconds that a query may take in the mean
    ) -> None:
        domains = np.flatnonzero(demand.share)
        tables = {n: getattr(known, n)[np.ix_(domains, allowed)] for n in BY_RECIPE}
        self.known, self._demand, self._choice = known._replace(**tables), demand, choice
        ease = demand.ease[domains]
        logit = self.known.logit[:, None] + ease[:, :, None]
        self._right = 1.0 / (1.0 + np.exp(-logit))[:, :, None]  # (D, E, 1, R)
        shape = (*ease.shape, len(demand.budgets_s), len(allowed))
        each = demand.share[domains, None, None] / ease.shape[1] * demand.budget_share
        self._weight = np.broadcast_to(each[..., None], shape)
        work_s = self.known.work_s[:, None, None] * self._weight[..., None]
        self._work_s = work_s.reshape(-1, work_s.shape[-1])  # (n, M)
        kinds = int(np.prod(shape[:-1]))
        self._work, self._cap_s = work, cap_s
        self._once = sparse.kron(sparse.eye(kinds), np.ones((1, len(allowed)))).tocsr()

    def solve(self, rate_per_min: float, in_flight: Array, rounds: int) -> Plan:
        """Return the plan at a rate.

        Args:
            rate_per_min: of arrivals.
            in_flight: (M,) by which calls are slowed at first.
            rounds: solutions after the first, each with the slowdown by the one before.
        """
        known, choice = self.known, self._choice
        late, log_budget = choice.late_value, np.log(self._demand.budgets_s)[:, None]
        sigma = np.sqrt(known.spread**2 + choice.doubt)[:, None]
        slow = slowdown_of(known, in_flight)
        for _ in range(rounds + 1):
            # Chances (D, B, R) of answers in time, as `choose` has them without queues.
            stretch = (known.path_s @ slow) / known.path_s.sum(axis=2)
            log_s = (known.log_latency + np.log(stretch) + choice.caution)[:, None]
            on_time = ndtr((log_budget - log_s) / sigma)
            worth = self._right * (late + (1.0 - late) * on_time[:, None])
            load = self._work_s * (rate_per_min / 60.0)
            rows, limit = [self._once, sparse.csr_matrix((load * slow).T)], [known.slots]
            if np.isfinite(self._cap_s):
                rows.append(sparse.csr_matrix(self._work_s @ self._work))
                limit.append(np.array([self._cap_s]))
            bounds = np.concatenate([np.ones(self._once.shape[0]), *limit])
            matrix = sparse.vstack(rows).tocsr()
            value, x, dual = maximise(((worth + _SKIP) * self._weight).ravel(), matrix, bounds)
            of_slots, of_work = np.split(dual[self._once.shape[0] :], [len(slow)])
            price = of_slots * slow * (rate_per_min / 60.0)
            plan = Plan(value - _SKIP, price, of_work.sum() * self._work, load.T @ x * slow)
            slow = np.sqrt(slow * slowdown_of(known, plan.in_flight))
        return plan


class Planner:
    """Plans at arrival rates, each for the best set of models.

    To leave a model out makes others faster, which no dual variable shows: all sets are tried.
    """

    def __init__(
        self,
        known: Estimates,  # of R recipes
        needs: Array,  # (R,) bit masks of the models that they use
        demand: Demand,
        choice: ChoiceConfig,
        work: Array,  # (M,) GPU-seconds of a second of a slot, without a cap not looked at
        cap_s: float = np.inf,  # GPU-seconds that a query may take in the mean
    ) -> None:
        models = len(known.slots)
        self._slots, self._programs = known.slots, dict[int, PriceProgram]()
        for chosen in range(1, 1 << models):
            allowed = np.flatnonzero((needs & np.uint32(~chosen & (1 << models) - 1)) == 0)
            if len(allowed):
                self._programs[chosen] = PriceProgram(known, allowed, demand, choice, work, cap_s)

    def _inside(self, chosen: int) -> Array:
        """Return 1.0 (M,) for the models of a set, which is given as a bit mask."""
        return np.array([float(chosen >> m & 1) for m in range(len(self._slots))])

    def plan(self, rate_per_min: float) -> Plan:
        """Return the plan at a rate; models outside its set are too dear."""
        full = {chosen: self._inside(chosen) * self._slots for chosen in self._programs}

        def value(chosen: int, rounds: int) -> float:
            return self._programs[chosen].solve(rate_per_min, full[chosen], rounds).value

        finalists = sorted(full, key=lambda chosen: -value(chosen, 0))[:_FINALISTS]
        best = max(finalists, key=lambda chosen: value(chosen, _ROUNDS))
        known = self._programs[best].known
        plan = self._programs[best].solve(rate_per_min, full[best], _ROUNDS)
        # What a second of each model's calls costs the calls of others that it slows, [o, m] by a
        # share of o's pace. The dual variables do not show that: a program has fixed slowdowns.
        slowed = 1.0 - np.exp(-known.slowdown[:, : len(known.slots)])
        harm = (plan.price * plan.in_flight) @ slowed / np.maximum(plan.in_flight, 1.0)
        price = np.maximum(plan.price, harm) + plan.work_price
        return plan._replace(price=np.where(self._inside(best) > 0.0, price, TOO_DEAR))

    def capacity_per_min(self) -> float:
        """Return the rate at which the value has fallen to 90 % of that on idle servers."""
        nothing = np.zeros_like(self._slots)
        idle = [program.solve(1.0, nothing, 0) for program in self._programs.values()]
        best = max(idle, key=lambda plan: plan.value)
        rate, before = 1.0 / float((best.in_flight / self._slots).max()), best.value
        wanted = AT_CAPACITY * best.value
        while (now := self.plan(rate).value) >= wanted:
            rate, before = rate * _STEP, now
        part = (before - wanted) / (before - now)
        return float(rate * _STEP ** (part - 1.0))


def prices_of(plans: Sequence[Plan], slots: Array, choice: ChoiceConfig) -> Prices:
    """Return prices (1, K): those of K plans, one a rate, where servers are as full as planned."""
    price = np.maximum([plan.price for plan in plans], _LOWEST)
    planned = np.array([plan.in_flight for plan in plans]) / slots
    numbers = {name: np.full((1, len(plans)), value) for name, value in choice.model_dump().items()}
    return Prices(**numbers, base=(np.log(price) - choice.load * planned)[None])


def means_by_group(of_row: Array, played: Played) -> Array:
    """Return means of MEASURES over the scored queries of groups of rows (rows,), (groups, 4)."""
    queries = played.records["query"]
    first, last = (part * (int(queries.max()) + 1) for part in SCORED)
    scored = np.flatnonzero((queries >= first) & (queries < last))
    records, group = played.records[scored], of_row[played.row[scored]]
    on_time = records["latency_s"] <= records["budget_s"]
    solved = records["solved"]
    columns = (solved * on_time, solved, on_time, records["latency_s"])
    count = np.bincount(group)
    return np.column_stack([np.bincount(group, column) / count for column in columns])


def train(config: BidPriceConfig, run: Run) -> dict[str, Any]:
    """Train bid prices on one workload; the agent is in `run.out/best`.

    Returns:
        Means of MEASURES on the validation split, and the checkpoint's folder.

    Raises:
        ConfigError: The survey is too short; see `Run.begin`.
    """
    tensors, saved = run.begin(config) or ({}, {"queries": {}})
    if "validation" in saved:
        return {**saved["validation"], "checkpoint": str(run.out / BEST)}
    trainer = Trainer(config, run, saved["queries"])
    with trainer.report, run.tracker(sum(saved["queries"].values()) if tensors else -1) as tracker:
        if tensors:
            model = from_tensors(tensors, trainer.spec.models, trainer.spec.num_strategies)
        else:
            model = trainer.estimated()
            metrics = {"survey/recipes": float(len(model.recipes))}
            tracker.log(sum(trainer.queries.values()), metrics)
            tracker.flush()
            model = trainer.priced(model)
            run.save(model.to_tensors(), {"queries": trainer.queries})
        result = trainer.validated(model)
        metrics = {f"validation/{name}": value for name, value in result.items()}
        tracker.log(sum(trainer.queries.values()), metrics)
    about = {"queries": trainer.queries, "validation": result}
    save_model(run.out / BEST, model, {**run.facts, **about})
    run.save({}, about)
    return {**result, "checkpoint": str(run.out / BEST)}


class Trainer:
    """Stages of a training, each a function of the configuration, the seed and the one before.

    Args:
        config: of the training.
        run: its seed, and the processes that play.
        queries: played so far, by load: "idle" and "loaded".
    """

    def __init__(self, config: BidPriceConfig, run: Run, queries: dict[str, int]) -> None:
        self.config, self.run, self.queries = config, run, queries
        required = {"observation": "index", **REQUIRES}
        self._env = {**config.env.arguments("train"), **required}
        env = environment(1, self._env)
        self.spec, self._simulation = env.policy_spec(), env.simulation
        batch, validation = config.rows * SURVEY_QUERIES, config.validation
        total = sum(-(-one.queries // batch) * batch for one in config.survey)
        total += config.load.episodes * config.load.queries
        total += len(config.loads) * validation.episodes * validation.queries
        what, done = f"bid_price on {self.spec.workload}", sum(queries.values())
        self.report = ProgressReport(total, done, what, "queries")

    def _play(self, jobs: Sequence[Job], kind: str = "loaded") -> list[Any]:
        """Return results of jobs, in their order."""
        counts = [len(job.seeds) * int(job.env["num_queries"]) for job in jobs]
        self.queries[kind] = self.queries.get(kind, 0) + sum(counts)
        results, run = {}, self.run
        numbered = list(enumerate(jobs))
        for (number, _), result in in_parallel(play_job, numbered, run.workers):
            results[number] = result
            self.report.advance(counts[number])
        return [results[number] for number in range(len(jobs))]

    def _play_survey(self, recipes: RecipeTable, number: int) -> Played:
        """Play round `number` of the survey."""
        config = self.config
        env = {**self._env, "num_queries": SURVEY_QUERIES, "budget_s": AMPLE_S}
        env["metrics_poll_s"] = SELDOM_S
        rates, policy = np.full(config.rows, config.idle_rate_per_min), RecipePolicy(recipes)
        parts = range(-(-config.survey[number].queries // (config.rows * SURVEY_QUERIES)))
        seeds = [self._seeds(config.rows, SURVEY, 1000 * number + part) for part in parts]
        return joined(self._play([Job(env, own, rates, policy) for own in seeds], "idle"))

    def estimated(self) -> BidPriceModel:
        """Survey the recipes, play under load, and return all but the prices."""
        config, spec, embeddings = self.config, self.spec, self.spec.task_embeddings
        code = DOMAINS.index("Code") in self._simulation.tasks.domain
        listed = candidates(
            spec.num_models, spec.num_strategies, code=code, single_calls=config.single_calls
        )
        recipes = tabulate(listed, spec.num_strategies)
        for number, survey_round in enumerate(config.survey[:-1]):
            survey = surveyed(self._play_survey(recipes, number), recipes, spec)
            rng, patience_s = self._rng(SURVEY, number), config.choice.patience_s
            keep = survey_round.keep or len(recipes)
            kept = worth_keeping(survey, recipes.needs, keep, patience_s, rng)
            recipes = recipes.select(kept)
        played = self._play_survey(recipes, len(config.survey) - 1)
        survey = surveyed(played, recipes, spec)
        if not survey.known.path_s.any(axis=2).all():
            raise ConfigError(
                f"survey: its last round leaves some of {len(recipes)} recipes unplayed. Give it "
                "more `queries`, or the round before it a smaller `keep`."
            )
        easiness = easiness_of_questions(played, survey.right, len(embeddings))
        weights, centres = ease_of_questions(played, easiness, embeddings)
        score = (embeddings.astype(np.float64) @ weights)[played.records["task"]]
        ease = score - centres[played.records["domain"]]
        calls = first_calls(recipes, played)
        idle_s = seconds_of_calls(calls, spec.num_models, spec.num_strategies)
        timed = np.isfinite(idle_s)
        total_s, count = np.where(timed, idle_s, 0.0).sum(axis=(0, 2)), timed.sum(axis=(0, 2))
        call_s = np.where(count > 0, total_s / np.maximum(count, 1), survey.known.call_s)
        logit = log_odds(played, survey.right, ease)
        model = BidPriceModel(
            models=spec.models,
            strategies=spec.num_strategies,
            recipes=recipes,
            known=survey.known._replace(logit=logit, call_s=call_s),
            prices=self._random_prices(1, 0),
            rates_per_min=np.ones(1),
            ease_weights=weights,
            ease_centres=centres,
        )
        return self._with_load(model, idle_s)

    def _random_prices(self, count: int, part: int) -> Prices:
        """Return prices (count, 1), which rise with the load at random slopes."""
        rng, (median, sd) = self._rng(LOAD, part), RANDOM_PRICES
        random = sd * rng.standard_normal((count, 1, 1 + self.spec.num_models))
        choice = self.config.choice.model_dump()
        numbers = {name: np.full((count, 1), value) for name, value in choice.items()}
        numbers["load"] = np.exp(random[..., 0])
        return Prices(**numbers, base=math.log(median) + random[..., 1:])

    def _with_load(self, model: BidPriceModel, idle_s: Array) -> BidPriceModel:
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
        calls, budget_s = first_calls(model.recipes, played), played.records["budget_s"]
        slowdown, turns = congestion(
            calls, played.in_flight, budget_s, idle_s, known.slots, known.budgets_s
        )
        return replace(model, known=known._replace(slowdown=slowdown, turns=turns))

    def priced(self, model: BidPriceModel) -> BidPriceModel:
        """Return the model with prices by linear programming."""
        config, simulation = self.config, self._simulation
        domain, ease = np.array(simulation.tasks.domain), model.ease(self.spec.task_embeddings)
        demand = demand_of(
            np.bincount(domain, minlength=len(DOMAINS)) / len(domain),
            [ease[domain == d, d] for d in range(len(DOMAINS))],
            self.spec.budget_tiers_s,
            config.choice.patience_s,
        )
        gpus = np.array([len(one.all_gpus) for one in simulation.pool.models], np.float64)
        work = work_of_slots(model.known, gpus)
        problem = model.known, model.recipes.needs, demand, config.choice, work
        planner = Planner(*problem)
        rates = planner.capacity_per_min() * np.array(config.loads)
        if config.work_cap_s is not None:
            planner = Planner(*problem, config.work_cap_s)
        plans = [planner.plan(rate) for rate in rates.tolist()]
        prices = prices_of(plans, model.known.slots, config.choice)
        return replace(model, prices=prices, rates_per_min=rates)

    def validated(self, model: BidPriceModel) -> dict[str, float]:
        """Play on the split "val"; return means over all rates, and goodput by load."""
        config, loads = self.config.validation, self.config.loads
        env = {**self._env, "num_queries": config.queries, "split": "val"}
        seeds = self._seeds(config.episodes, VALIDATION, 0) * len(loads)
        rates = np.repeat(model.rates_per_min, config.episodes)
        by_rate = partial(means_by_group, np.repeat(np.arange(len(loads)), config.episodes))
        (means,) = self._play([Job(env, seeds, rates, BidPricePolicy(model=model), by_rate)])
        result = dict(zip(MEASURES, means.mean(axis=0).tolist(), strict=True))
        goodput = zip(loads, means[:, 0].tolist(), strict=True)
        result |= {f"goodput_{load:g}": own for load, own in goodput}
        result |= {"capacity_per_min": float(model.rates_per_min[0]) / loads[0]}
        return {name: round(value, 6) for name, value in result.items()}

    def _rng(self, stage: int, place: int) -> np.random.Generator:
        """Return the generator of a place, for draws that are no seeds."""
        return np.random.default_rng([self.run.seed, stage, place, 1])

    def _seeds(self, rows: int, stage: int, place: int) -> list[int]:
        """Return seeds of `rows` episodes."""
        rng = np.random.default_rng([self.run.seed, stage, place])
        return [int(s) for s in rng.integers(2**31, size=rows)]
