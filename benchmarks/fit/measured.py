"""Fit the constants of pool and workloads to measured runs: ``python -m benchmarks.fit.measured``.

Reads measured cells (`inframind_gym.calibration.measured_runs`), and writes the numbers into copies
of the shipped YAML files; their comments state the origin of each constant. The cells of the
oblivious method `mas` give latencies (mean and quantiles) and accuracies; those of the adaptive one
give token counts, and accuracies at a lower weight. Its latencies decide nothing here (but see
`replay_choices.ROUTE_AFFINITY`).

The constants are few, and each is a quantity of the testbed or of its models: the cost of an engine
step, how co-located models slow each other, how long a model's answers are on a dataset and how
they spread, how long instructions are, how able a model is. None belongs to a cell.

Two fits alternate, because proven code shortens workflows: the constants of time, then those of
quality. Means over thousands of queries are smooth, so damped Gauss-Newton steps fit them. (SciPy's
`least_squares` has no Huber loss with a quadratic prior, nor a limit on each step.)
`--cross-validate` also fits without each of the arrival rates in turn and predicts it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from benchmarks.fit.posterior import DRAWS, Posterior, draw, report, to_csv
from benchmarks.fit.quality import (
    QualityLayout,
    accuracy_noise,
    accuracy_residuals,
    outcomes,
    with_gains,
)
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.fit import Vector
from inframind_gym.calibration.measured_runs import MeasuredCell, read_runs
from inframind_gym.calibration.replay import (
    Constants,
    Prediction,
    RunBatch,
    batches,
    load_constants,
    predict,
)
from inframind_gym.calibration.replay_choices import HARNESSES, mean_agents
from inframind_gym.calibration.report import cell_rows, summarise
from inframind_gym.configs import find_config
from inframind_gym.errors import friendly
from inframind_gym.files import read_json, replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import AgentProfile, PlannerMix

FITTED: Final = Path(__file__).resolve().parent / "fitted"  # the fits on file
POOL: Final = "b200-2gpu"  # the servers of the measured runs
SEEDS: Final = 3  # episodes of an oblivious cell; adaptive ones have one

# Starting points of the fit, and standard deviations of their logarithms. A step with one sequence,
# and what each further sequence adds to it (times one fitted factor): time per output token on an
# H200 at batch 1 and 16, as AIConfigurator estimates it, less the reads of the KV cache. The
# testbed's B200 reads 1.7 times as fast, but a step has costs of its own.
BASE_S: Final = {
    "deepseek-32b": 0.0184,
    "mistral-24b": 0.0128,
    "qwen-14b": 0.0087,
    "llama-8b": 0.0049,
    "llama-3b": 0.0027,
}
PER_SEQ_S: Final = {
    "deepseek-32b": 6.6e-5,
    "mistral-24b": 3.0e-5,
    "qwen-14b": 2.7e-5,
    "llama-8b": 2.0e-5,
    "llama-3b": 1.5e-5,
}
BASE_SD: Final = 0.5
# Constants of time that all share: value, sd.
SHARED: Final = {
    "per_seq_s: common factor": (1.0, 0.7),
    "colocation_slowdown": (1.0, 0.7),  # per other busy model: 1 where processes take turns
    "sigma_query": (None, 0.3),  # sd of log length between queries: from the outcomes
    "sigma_call": (0.35, 0.3),  # between the calls to a query
    "overhead_tokens": (250.0, 0.7),
}
# Measured seconds a call at 10 queries a minute, and the seconds a token under light load: their
# ratio is the mean length of an answer, of which the median is the given share (log-normal).
CALL_S: Final = {
    "math": (45.0, 6.7, 10.5, 4.8, 3.5),
    "mbpp": (42.0, 4.1, 6.7, 2.4, 2.3),
    "gsm_hard": (25.0, 4.8, 6.3, 2.6, 2.0),
    "humaneval": (37.0, 6.6, 5.1, 4.0, 3.6),
    "mmlu_pro": (32.0, 5.3, 5.6, 3.0, 1.2),
}
TOKEN_S: Final = (0.031, 0.018, 0.018, 0.010, 0.0075)
# Answers under a prompt strategy over those under plain prompts: within the measured ranges.
STRATEGY_FACTOR: Final = {"Flash": 0.94, "Concise": 0.87, "DeepThink": 1.18}
STRATEGY_FACTOR_SD: Final = 0.1
# The deciding call's answers relative to the agents', one factor a dataset.
FINAL_FACTOR_SD: Final = 0.5
MEDIAN_OF_MEAN: Final = 0.86
LENGTH_SD: Final = 0.5
# CALL_S is derived from all measured runs. Where a rate is left out, orders of magnitude instead: a
# reasoning model's answers and the others', on every dataset.
NEUTRAL_TOKENS: Final = (1000.0, 250.0, 250.0, 250.0, 250.0)
NEUTRAL_LENGTH_SD: Final = 1.0
# Share of the tasks that show tests to the agents: MBPP's prompt lists them (MasRouter's source),
# HumanEval's docstring has examples in 62 of 132 tasks.
VISIBLE_TESTS: Final = {"mbpp": 1.0, "humaneval": 0.47}

# Standard deviations of the residuals, of logarithms.
LATENCY_SD: Final = {"mean": 0.06, "p5": 0.4, "p25": 0.3, "median": 0.2, "p75": 0.12, "p95": 0.12}
TOKENS_SD: Final = 0.08
ROUNDS: Final = 2
TIME_ITERATIONS: Final = 8
QUALITY_ITERATIONS: Final = 4
TIME_STEP: Final = 0.08  # for derivatives
QUALITY_STEP: Final = 0.3


@dataclass(frozen=True)
class Layout:
    """Places of the constants in a vector: those of time first, then those of quality.

    Constants of time are logarithms; those of quality are as `QualityLayout` has them.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]  # of the datasets

    @property
    def quality(self) -> QualityLayout:
        """Places of the constants of quality, counted from `num_time`."""
        return QualityLayout(self.datasets, self.domains, self.models)

    @property
    def shared(self) -> int:
        """Number of constants of time that all datasets share."""
        return len(self.models) + len(SHARED) + len(STRATEGIES)

    @property
    def num_time(self) -> int:
        """Number of constants of time."""
        return self.shared + len(self.datasets) * (1 + len(self.models))

    def names(self) -> list[str]:
        """Return the name of each place."""
        per_dataset = [f"{dataset}: {model}" for dataset in self.datasets for model in self.models]
        return [
            *(f"{model}: base_s" for model in self.models),
            *SHARED,
            *(f"strategy_factor.{strategy}" for strategy in STRATEGIES),
            *(f"{dataset}: final_factor" for dataset in self.datasets),
            *(f"{pair}: output_tokens_median" for pair in per_dataset),
            *self.quality.names(),
        ]

    def values(self, x: Vector) -> dict[str, float]:
        """Return the constants of a vector by name, in their own units."""
        quality = self.quality.values(x[self.num_time :])
        values = np.concatenate([np.exp(x[: self.num_time]), quality])
        return dict(zip(self.names(), values.tolist(), strict=True))

    def vector(self, values: Mapping[str, float]) -> Vector:
        """Return the vector of constants by name; what is missing is as in the prior."""
        time = time_prior(self)[0]
        for index, name in enumerate(self.names()[: self.num_time]):
            if name in values:
                time[index] = math.log(values[name])
        return np.concatenate([time, self.quality.vector(values)])


def layout_of(start: Constants) -> Layout:
    """Return the places of the constants of the profiles of `start`."""
    domains = tuple(profile.domain for profile in start.profiles.values())
    return Layout(tuple(start.profiles), start.pool.aliases, domains)


def time_prior(layout: Layout, *, neutral: bool = False) -> tuple[Vector, Vector]:
    """Return means (P,) and inverse covariance (P, P) of the constants of time.

    Args:
        layout: Places of the constants.
        neutral: Take nothing from the measured runs, not even starting points of the lengths.
    """
    of = outcomes()
    hidden = of["length_sd_between_questions"] ** 2 - of["difficulty_slope"] ** 2
    sigma_query = math.sqrt(hidden)  # the part that difficulty does not explain
    light = np.array(TOKEN_S)
    tokens = [
        np.array(NEUTRAL_TOKENS if neutral else np.array(CALL_S[d]) / light) * MEDIAN_OF_MEAN
        for d in layout.datasets
    ]
    starts = [sigma_query if start is None else start for start, _ in SHARED.values()]
    bases = [BASE_S[model] for model in layout.models]
    factors = [*STRATEGY_FACTOR.values(), *([1.0] * len(layout.datasets))]
    mean = np.log([*bases, *starts, *factors, *np.concatenate(tokens)])
    sd = [BASE_SD] * len(bases) + [sd for _, sd in SHARED.values()]
    sd += [STRATEGY_FACTOR_SD] * len(STRATEGIES) + [FINAL_FACTOR_SD] * len(layout.datasets)
    sd += [NEUTRAL_LENGTH_SD if neutral else LENGTH_SD] * (layout.num_time - len(sd))
    return mean, np.diag(1.0 / np.array(sd) ** 2)


def with_constants(start: Constants, layout: Layout, x: Vector) -> Constants:
    """Return the constants of `start` with those of the vector `x` in their places."""
    values = layout.values(x)
    gains = layout.quality.gains(x[layout.num_time :])
    pool = start.pool
    factor, slowdown, sigma_query, sigma_call, overhead = (values[name] for name in SHARED)
    models = []
    for model in pool.models:
        step = _updated(
            model.server.step,
            base_s=values[f"{model.alias}: base_s"],
            per_seq_s=PER_SEQ_S[model.alias] * factor,
        )
        models.append(_updated(model, server=_updated(model.server, step=step)))
    gpus = [_updated(gpu, colocation_slowdown=slowdown) for gpu in pool.gpus]
    profiles = {}
    for index, dataset in enumerate(layout.datasets):
        profile = start.profiles[dataset]
        profiles[dataset] = _updated(
            profile,
            output=_updated(
                profile.output,
                sigma_query=sigma_query,
                sigma_call=sigma_call,
                strategy_factor={of: values[f"strategy_factor.{of}"] for of in STRATEGIES},
                final_factor=values[f"{dataset}: final_factor"],
            ),
            prompt=_updated(profile.prompt, overhead_tokens=round(overhead)),
            quality=with_gains(profile.quality, gains, index),
            models={
                alias: _updated(
                    of,
                    output_tokens_median=values[f"{dataset}: {alias}: output_tokens_median"],
                    ability=values[f"{dataset}: {alias}: ability"],
                )
                for alias, of in profile.models.items()
            },
        )
    return replace(
        start,
        pool=_updated(pool, models=tuple(models), gpus=tuple(gpus)),
        profiles=profiles,
        aggregation_gains=dict(zip(layout.datasets, gains.aggregation.tolist(), strict=True)),
    )


def with_facts(start: Constants, cells: Sequence[MeasuredCell]) -> Constants:
    """Return the constants with those not fitted here: routers' mixes, agents' rules, outcomes.

    The mixes are the means over the oblivious cells with the middle cost rate (the one of the
    published comparison) and, of the strategies, over the cells that have any.
    """
    profiles, measured = {}, outcomes()
    names = {model.name: model.alias for model in start.pool.models}
    for dataset, profile in start.profiles.items():
        own = [cell for cell in cells if cell.dataset == dataset]
        router = middle_cost_rate(own)
        share = _mean([cell.model_share for cell in router])
        of_alias = {names.get(name, name): value for name, value in share.items()}
        topologies = _mean([cell.topology_share for cell in router])
        strategies = _mean([cell.strategy_share for cell in own]) or profile.strategy_mix
        agents = {round(mean_agents(cell, profile)): 1.0 for cell in router}
        profiles[dataset] = _updated(
            profile,
            planner=PlannerMix(
                num_agents=agents if len(agents) == 1 else profile.planner.num_agents,
                topologies={name: topologies.get(name, 0.0) for name in TOPOLOGIES},
            ),
            strategy_mix={name: strategies.get(name, 0.0) for name in STRATEGIES},
            models={
                alias: _updated(of, share=of_alias.get(alias, 0.0))
                for alias, of in profile.models.items()
            },
            agents=AgentProfile(role_calls=True, visible_tests=VISIBLE_TESTS.get(dataset, 0.0)),
            output=_updated(profile.output, difficulty_slope=measured["difficulty_slope"]),
            quality=_updated(
                profile.quality,
                latent_correlation=measured["latent_correlation"],
                truncated_right_frac=measured["truncated_right_frac"],
            ),
        )
    return replace(start, profiles=profiles)


def middle_cost_rate(cells: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """Return the cells with the middle one of the cost rates that occur."""
    rates = sorted({cell.cost_rate for cell in cells if cell.cost_rate is not None})
    return [cell for cell in cells if rates and cell.cost_rate == rates[len(rates) // 2]]


def _mean(shares: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    tables = [table for table in shares if table]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: float(np.mean([table.get(name, 0.0) for table in tables])) for name in names}


def _updated(model: Any, **update: Any) -> Any:
    return model.model_copy(update=update)


class Residuals(NamedTuple):
    """Differences of simulation and measurement, in standard deviations."""

    values: Vector  # (R,)
    datasets: list[str]  # (R,)


@dataclass(frozen=True)
class Part:
    """Constants that are fitted while all others are held, and to what."""

    place: slice  # in the vector of all constants
    residuals: Callable[[Mapping[int, Prediction]], Residuals]
    methods: frozenset[str]  # whose cells it looks at
    mean: Vector  # (P,) of the normal prior
    precision: Vector  # (P, P)
    iterations: int
    longest_step: float  # of a constant in one iteration
    outlier: float  # residuals beyond count linearly
    # derivatives (R, P) of the residuals, given the constants and their residuals
    jacobian: Callable[[Vector, Residuals], Vector]


Batches = list[tuple[list[int], RunBatch]]  # indices of cells, and their episodes


class Fit:
    """Measured cells, simulated again and again with other constants.

    Residuals come from simulations on common random numbers, so differences of nearby points are
    smooth enough to be divided. Constants that touch different residuals are moved in one
    simulation, of which a step of up to 35 constants then takes some twenty.

    Args:
        cells: Those of `mas` give latencies, those of `inframind` token counts, all accuracies.
        start: Constants whose fitted places are overwritten.
        neutral: Use priors that take nothing from the measured runs.
        first: Constants to begin with, by name, where they are not those of the priors.
    """

    def __init__(
        self,
        cells: Sequence[MeasuredCell],
        start: Constants,
        *,
        neutral: bool = False,
        first: Mapping[str, float] | None = None,
    ) -> None:
        self.cells = list(cells)
        self.start = start
        self.layout = layout_of(start)
        n = self.layout.num_time
        time, quality = time_prior(self.layout, neutral=neutral), self.layout.quality.prior()
        self._x = np.concatenate([time[0], quality[0]])
        if first:
            self._x = self.layout.vector(first)
        routers = frozenset(("mas", "inframind"))
        self._time = Part(
            slice(n),
            self._time_residuals,
            routers,
            *time,
            TIME_ITERATIONS,
            longest_step=0.5,
            outlier=1.0,
            jacobian=self._time_jacobian,
        )
        self._quality = Part(
            slice(n, None),
            self._accuracy_residuals,
            frozenset(HARNESSES),
            *quality,
            QUALITY_ITERATIONS,
            longest_step=1.0,
            outlier=2.5,
            jacobian=self._quality_jacobian,
        )
        self._slopes = np.zeros((len(self.cells), 0))
        self._batches = self._batched(range(len(self.cells)))
        self._like = self._alike()
        self._few = self._batched(sorted(set(self._like)))

    def _batched(self, wanted: Iterable[int]) -> Batches:
        """Return batches of the cells with these indices."""
        found: Batches = []
        by_method: dict[str, list[int]] = {}
        for index in wanted:
            by_method.setdefault(self.cells[index].method, []).append(index)
        for method, chosen in by_method.items():
            seeds = 1 if HARNESSES[method].adaptive else SEEDS
            parts = batches([self.cells[i] for i in chosen], self.start, seeds)
            found += [([chosen[i] for i in group], batch) for group, batch in parts]
        return found

    def _alike(self) -> list[int]:
        """Return for each cell the one whose accuracy moves as its own: that at the lowest rate."""
        found: dict[tuple[object, ...], int] = {}
        keys: list[tuple[object, ...]] = []
        for index, cell in enumerate(self.cells):
            of: tuple[object, ...] = (cell.dataset, cell.cost_rate)
            keys.append(of if cell.method == "mas" else (index,))
            first = found.setdefault(keys[-1], index)
            if cell.arrival_rate_per_min < self.cells[first].arrival_rate_per_min:
                found[keys[-1]] = index
        return [found[key] for key in keys]

    def run(self, *, quality_alone: bool = False) -> Vector:
        """Fit all constants, or those of quality alone; returns all (`Layout`)."""
        for _ in range(1 if quality_alone else ROUNDS):
            for part in (self._quality,) if quality_alone else (self._time, self._quality):
                say(f"  loss {self._minimise(part):.1f}")
        return self._x

    def laplace(self) -> Posterior:
        """Return the normal distribution with the Hessian of the loss, by Gauss and Newton.

        Only after `run`.
        """
        part = self._quality
        x = self._x[part.place].copy()
        found = self._residuals(part, x)
        slope = self._slopes  # of the last iteration: they hardly change
        jacobian = np.linalg.solve(np.linalg.cholesky(accuracy_noise(self.cells)), slope)
        weights = part.outlier / np.maximum(np.abs(found.values), part.outlier)
        hessian = jacobian.T @ (jacobian * weights[:, None]) + part.precision
        covariance = np.asarray(np.linalg.inv(hessian), np.float64)
        return Posterior(self.layout.quality, x, covariance, self.accuracies(x), slope)

    def accuracies(self, quality: Vector) -> Vector:
        """Return simulated accuracies (R,) of the cells at constants of quality (P,)."""
        said = self._predictions(self._quality, quality)
        return np.array([said[index].accuracy for index in range(len(self.cells))])

    def constants(self) -> Constants:
        """Return the fitted constants, and those of the start that are not fitted."""
        return with_constants(self.start, self.layout, self._x)

    def _minimise(self, part: Part) -> float:
        """Move the constants of a part by Levenberg-Marquardt steps; return the least loss."""

        def loss(r: Vector, x: Vector) -> float:
            """Return the Huber loss, linear beyond `outlier`, less the log prior."""
            size, away, limit = np.abs(r), x - part.mean, part.outlier
            huber = np.where(size < limit, 0.5 * r * r, limit * (size - 0.5 * limit))
            return float(huber.sum() + 0.5 * away @ part.precision @ away)

        x = self._x[part.place].copy()
        found = self._residuals(part, x)
        best, damping = loss(found.values, x), 0.3
        for _ in range(part.iterations):
            jacobian = part.jacobian(x, found)
            r = found.values
            weights = part.outlier / np.maximum(np.abs(r), part.outlier)
            hessian = jacobian.T @ (jacobian * weights[:, None]) + part.precision
            gradient = jacobian.T @ (weights * r) + part.precision @ (x - part.mean)
            gain = 0.0
            for _ in range(5):
                step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
                nearby = x + np.clip(step, -part.longest_step, part.longest_step)
                found_nearby = self._residuals(part, nearby)
                gain = best - loss(found_nearby.values, nearby)
                if gain > 0.0:
                    x, found, best = nearby, found_nearby, best - gain
                    damping = max(0.25 * damping, 1e-3)
                    break
                damping *= 4.0
            if gain < 0.3:
                break
        self._x[part.place] = x
        return best

    def _together(self, place: slice) -> list[list[tuple[int, str | None]]]:
        """Return constants of a part that one simulation moves: index, and dataset if of one."""
        found: dict[str, list[tuple[int, str | None]]] = {}
        for index, name in enumerate(self.layout.names()[place]):
            owner, _, rest = name.partition(": ")
            local = owner in self.layout.datasets
            found.setdefault(rest if local else name, []).append((index, owner if local else None))
        return list(found.values())

    def _time_jacobian(self, x: Vector, found: Residuals) -> Vector:
        out = np.zeros((len(found.values), len(x)))
        datasets = np.array(found.datasets)
        for moved in self._together(self._time.place):
            shift = np.zeros(len(x))
            shift[[index for index, _ in moved]] = TIME_STEP
            slope = (self._residuals(self._time, x + shift).values - found.values) / TIME_STEP
            for index, dataset in moved:
                touched = slice(None) if dataset is None else datasets == dataset
                out[touched, index] = slope[touched]
        return out

    def _quality_jacobian(self, x: Vector, _: Residuals) -> Vector:
        colour = np.linalg.cholesky(accuracy_noise(self.cells))
        self._slopes = self.accuracy_slopes(x)
        return np.asarray(np.linalg.solve(colour, self._slopes), np.float64)

    def accuracy_slopes(self, x: Vector) -> Vector:
        """Return (R, P) derivatives of the accuracies, by differences to both sides.

        Cells of `mas` that differ in the arrival rate alone have those of the lowest rate.
        """
        out = np.zeros((len(self.cells), len(x)))
        for moved in self._together(self._quality.place):
            shift = np.zeros(len(x))
            shift[[index for index, _ in moved]] = QUALITY_STEP
            up, down = (
                self._predictions(self._quality, x + sign * shift, self._few) for sign in (1, -1)
            )
            for cell, like in enumerate(self._like):
                slope = (up[like].accuracy - down[like].accuracy) / (2.0 * QUALITY_STEP)
                own = [i for i, dataset in moved if dataset == self.cells[cell].dataset]
                out[cell, own] = slope
        return out

    def _residuals(self, part: Part, values: Vector) -> Residuals:
        return part.residuals(self._predictions(part, values))

    def _predictions(
        self, part: Part, values: Vector, batches: Batches | None = None
    ) -> dict[int, Prediction]:
        point = self._x.copy()
        point[part.place] = values
        constants = with_constants(self.start, self.layout, point)
        out: dict[int, Prediction] = {}
        for indices, batch in self._batches if batches is None else batches:
            if self.cells[indices[0]].method in part.methods:
                batch.set_constants(constants)
                out.update(zip(indices, batch.run(), strict=True))
        return out

    def _time_residuals(self, predictions: Mapping[int, Prediction]) -> Residuals:
        residuals, datasets = [], []
        for index, said in sorted(predictions.items()):
            cell = self.cells[index]
            if HARNESSES[cell.method].adaptive:
                pairs = [
                    (said.prompt_tokens, cell.prompt_tokens, TOKENS_SD),
                    (said.completion_tokens, cell.completion_tokens, TOKENS_SD),
                ]
            else:
                pairs = [
                    (said.latency_s[key], cell.latency_s.get(key), sd)
                    for key, sd in LATENCY_SD.items()
                ]
            known = [float(np.log(a / b)) / sd for a, b, sd in pairs if b]
            residuals += known
            datasets += [cell.dataset] * len(known)
        return Residuals(np.array(residuals), datasets)

    def _accuracy_residuals(self, predictions: Mapping[int, Prediction]) -> Residuals:
        said = [predictions[index] for index in range(len(self.cells))]
        datasets = [cell.dataset for cell in self.cells]
        return Residuals(accuracy_residuals(self.cells, said), datasets)


def prior(start: Constants) -> Constants:
    """Return the starting point of the fit: the means of the priors, whatever `start` has."""
    layout = layout_of(start)
    return with_constants(start, layout, layout.vector({}))


def left_out(
    cells: Sequence[MeasuredCell], start: Constants, rate_per_min: float
) -> dict[str, Any]:
    """Return the errors on the cells of a rate, of constants that are fitted to all others."""
    say(f"without {rate_per_min:g} queries/min")
    rest = [cell for cell in cells if cell.arrival_rate_per_min != rate_per_min]
    fit = Fit(rest, with_facts(start, rest), neutral=True)
    fit.run()
    return errors([c for c in cells if c.arrival_rate_per_min == rate_per_min], fit.constants())


def errors(cells: Sequence[MeasuredCell], constants: Constants) -> dict[str, Any]:
    """Return the summary of the errors, by method."""
    return summarise(cell_rows(cells, predict(cells, constants)))


def write(constants: Constants, out: Path) -> Constants:
    """Write copies of the shipped pool and workloads with these constants; return them read again.

    Comments and all other settings are those of the shipped files.
    """
    pool = constants.pool
    text = find_config("pools", pool.name).read_text("utf-8")
    for gpu in pool.gpus:
        slowdown = f"{gpu.colocation_slowdown:.3g}"
        text = _set(text, "colocation_slowdown", slowdown, after=f"- {{name: {gpu.name},")
    for model in pool.models:
        step, place = model.server.step, f"alias: {model.alias}\n"
        text = _set(text, "base_s", f"{step.base_s:.4g}", after=place)
        text = _set(text, "per_seq_s", f"{step.per_seq_s:.3e}", after=place)
    path = out / "pools" / f"{pool.name}.yaml"
    replace_text(path, text)
    for dataset, profile in constants.profiles.items():
        text = find_config("workloads", dataset).read_text("utf-8")
        for alias, of in profile.models.items():
            place = f"\n  {alias}:"
            text = _set(text, "share", f"{of.share:.3f}", after=place)
            tokens = f"{of.output_tokens_median:.0f}"
            text = _set(text, "output_tokens_median", tokens, after=place)
            text = _set(text, "ability", f"{of.ability:.2f}", after=place)
        agents = profile.planner.num_agents
        output, quality = profile.output, profile.quality
        for key, value in {
            "num_agents": f"{next(iter(agents))}" if len(agents) == 1 else _flow(agents),
            "topologies": _flow(profile.planner.topologies),
            "strategy_mix": _flow(profile.strategy_mix),
            "sigma_query": f"{output.sigma_query:.3f}",
            "sigma_call": f"{output.sigma_call:.3f}",
            "difficulty_slope": f"{output.difficulty_slope:g}",
            "final_factor": f"{output.final_factor:.3g}",
            "strategy_factor": _flow(output.strategy_factor),
            "overhead_tokens": f"{profile.prompt.overhead_tokens}",
            "role_calls": str(profile.agents.role_calls).lower(),
            "visible_tests": f"{profile.agents.visible_tests:g}",
            "difficulty_sd": f"{quality.difficulty_sd:g}",
            "latent_correlation": f"{quality.latent_correlation:g}",
            "truncated_right_frac": f"{quality.truncated_right_frac:g}",
            "strategy_gain": _flow(quality.strategy_gain),
            "structure_gain": _flow(quality.structure_gain),
        }.items():
            text = _set(text, key, value)
        replace_text(out / "workloads" / f"{dataset}.yaml", text)
    return load_constants(path, list(constants.profiles), out / "workloads")


def _set(text: str, key: str, value: str, *, after: str = "") -> str:
    """Replace the value of the first `key` after a place, outside of comments."""
    head, place, tail = text.partition(after) if after else ("", "", text)
    found = re.search(rf"(?m)^(?!#)(?:.*?\b)?{key}: *(\{{[^}}]*\}}|[^,}}\n]+)", tail)
    if found is None:
        raise BenchmarkError(f"the shipped file has no {key}{f' after {after!r}' if after else ''}")
    return head + place + tail[: found.start(1)] + value + tail[found.end(1) :]


def _flow(shares: Mapping[Any, float]) -> str:
    return "{" + ", ".join(f"{name}: {share:.3f}" for name, share in shares.items()) + "}"


def main(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.")],
    out: Annotated[Path, typer.Option(help="Folder for YAML files, posterior.csv and fit.json.")],
    begin: Annotated[
        Path | None, typer.Option(help="fit.json of an earlier fit, to begin with its constants.")
    ] = None,
    quality_alone: Annotated[
        bool, typer.Option(help="Keep the constants of time that the fit begins with.")
    ] = False,
    cross_validate: Annotated[
        bool, typer.Option(help="Also leave out each arrival rate in turn.")
    ] = False,
) -> None:
    """Fit pool and workloads to measured runs."""
    with friendly():
        cells = read_runs(runs, list(HARNESSES))
        before = load_constants(POOL, [cell.dataset for cell in cells])
        start = with_facts(before, cells)
        first = read_json(begin)["values"] if begin else None
        fit = Fit(cells, start, first=first)
        values = fit.layout.values(fit.run(quality_alone=quality_alone))
        write(fit.constants(), out)
        posterior = fit.laplace()
        draws = to_csv(posterior.layout, draw(posterior, DRAWS))
        replace_text(out / "workloads" / "posterior.csv", draws)
        rates = sorted({c.arrival_rate_per_min for c in cells}) if cross_validate else ()
        figures: dict[str, Any] = {
            "values": {name: float(f"{value:.4g}") for name, value in values.items()},
            "posterior": report(posterior, cells, fit.accuracies),
            "prior": errors(cells, prior(start)),
            "left_out": {f"{rate:g}": left_out(cells, before, rate) for rate in rates},
        }
        replace_text(out / "fit.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
