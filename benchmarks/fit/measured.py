"""Fit the constants of pool and workloads to measured runs: ``python -m benchmarks.fit.measured``.

Reads measured cells (`measured_runs.py`), and writes the numbers into copies
of the shipped YAML files; their comments state the origin of each constant. The fit begins with the
means of its priors, so the same cells give the same files whatever is shipped. ``--cross-validate``
also fits without each of the arrival rates in turn and predicts it. The folder that it writes holds
pools, workloads with the draws of their quality, and ``fit.json``, which is kept as
``benchmarks/fit/fitted/b200-2gpu.json``.

The cells of the oblivious method `mas` give latencies (mean and quantiles) and accuracies; those of
the adaptive one give token counts, and accuracies at a lower weight; those of `moa` and `gptswarm`
give accuracies, and a factor on the lengths of their answers. The latencies of the adaptive method
decide nothing (but see `replay.ROUTE_AFFINITY`).

Two fits alternate: the constants of time, whose lengths decide also what is cut and therefore
wrong, then those of quality. Means over thousands of queries are smooth, so derivatives are
differences of simulations on common random numbers. Constants that touch different residuals are
moved in one simulation. Measured accuracies leave many constants of quality open: their Laplace
approximation about the best constants, with the Hessian of Gauss and Newton, gives the draws of
``envs_configs/workloads/posterior.csv``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from benchmarks.fit.constants import Layout, with_constants, with_facts
from benchmarks.fit.measured_runs import MeasuredCell, Prediction, cell_rows, read_runs, summarise
from benchmarks.fit.replay import (
    FITTED_AT_PER_MIN,
    HARNESSES,
    Constants,
    RunBatch,
    batches,
    factors_used,
    fit_lengths,
    load_constants,
    predict,
)
from inframind_gym.calibration.server_card import Vector
from inframind_gym.configs import find_config
from inframind_gym.errors import friendly
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.runner import in_parallel
from inframind_gym.files import replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.workflow.topology import STRUCTURES

FITTED: Final = Path(__file__).resolve().parent / "fitted"  # the fits on file
POOL: Final = "b200-2gpu"  # the servers of the measured runs
# Episodes of a cell, by method: for times, for accuracies, for their slopes. Where the model misses
# a cell by more than its noise (BASELINE_SD, ADAPTIVE_SD), more episodes tell no more.
TIME_SEEDS: Final = {"mas": 3, "inframind": 1}
QUALITY_SEEDS: Final = {"mas": 8, "inframind": 2, "moa": 2, "gptswarm": 2}
SLOPE_SEEDS: Final = {"mas": 3, "inframind": 1, "moa": 1, "gptswarm": 1}
LENGTH_SEEDS: Final = 2

# Standard deviations of the residuals, of logarithms.
LATENCY_SD: Final = {"mean": 0.06, "p5": 0.4, "p25": 0.3, "median": 0.2, "p75": 0.12, "p95": 0.12}
TOKENS_SD: Final = 0.08
ROUNDS: Final = 2
TIME_STEP: Final = 0.08  # for derivatives
QUALITY_STEP: Final = 0.3

Batches = list[tuple[list[int], RunBatch]]  # indices of cells, and their episodes
Predictions = Mapping[int, Prediction]  # by index of the cell
# Standard deviations of accuracies beyond sampling: of a cell of `mas`; of `moa` and `gptswarm`,
# who have other prompts; and of an adaptive router, which chooses models by the question: of a
# cell, and of all cells of a dataset.
ACCURACY_SD: Final = 0.01
BASELINE_SD: Final = 0.03
ADAPTIVE_SD: Final = 0.02
ADAPTIVE_OFFSET_SD: Final = 0.02
DRAWS: Final = 144  # so many that their covariance can be exact: twice the constants
_HEADER: Final = (
    "# Joint draws from the posterior of the workloads' quality: Laplace approximation about their"
    " YAML values, python -m benchmarks.fit.measured. Draws 2n and 2n + 1 mirror each other."
)


def accuracy_noise(cells: Sequence[MeasuredCell]) -> Vector:
    """Return the covariance (R, R) of measured accuracies less simulated ones.

    Binomial noise of a measured share, what the model leaves out of a cell, and what it leaves out
    of all cells of a dataset under an adaptive router.
    """
    adaptive = np.array([HARNESSES[cell.method].adaptive for cell in cells])
    share = np.array([cell.accuracy for cell in cells])
    queries = np.array([cell.num_queries or 500 for cell in cells])
    alone = np.maximum(share * (1.0 - share), 0.02) / queries
    has_roles = [HARNESSES[cell.method].has_roles for cell in cells]
    beyond = np.where(adaptive, ADAPTIVE_SD, np.where(has_roles, ACCURACY_SD, BASELINE_SD))
    alone = alone + beyond**2
    datasets = [cell.dataset for cell in cells]
    together = np.equal.outer(datasets, datasets) & np.logical_and.outer(adaptive, adaptive)
    return np.asarray(np.diag(alone) + ADAPTIVE_OFFSET_SD**2 * together, np.float64)


# The solver: damped Gauss-Newton steps for a Huber loss with a normal prior. SciPy has neither that
# loss, nor a limit on each step; Broyden's rank-one updates stand between simulated derivatives.


@dataclass(frozen=True)
class Problem:
    """Constants (P,) whose residuals (R,), in standard deviations, and prior are to be small."""

    residuals: Callable[[Vector], Vector]
    jacobian: Callable[[Vector, Vector], Vector]  # (R, P) at constants with these residuals
    mean: Vector  # (P,) of the normal prior
    precision: Vector  # (P, P)
    iterations: int  # at most
    jacobian_every: int  # iterations
    longest_step: float  # of a constant in one iteration
    outlier: float  # residuals beyond count linearly

    def loss(self, r: Vector, x: Vector) -> float:
        """Return the Huber loss, linear beyond `outlier`, less the log prior."""
        size, away = np.abs(r), x - self.mean
        huber = np.where(
            size < self.outlier, 0.5 * r * r, self.outlier * (size - 0.5 * self.outlier)
        )
        return float(huber.sum() + 0.5 * away @ self.precision @ away)

    def hessian(self, jacobian: Vector, r: Vector) -> Vector:
        """Return the Hessian (P, P) of the loss, by Gauss and Newton."""
        return np.asarray(jacobian.T @ (jacobian * self.weights(r)[:, None]) + self.precision)

    def weights(self, r: Vector) -> Vector:
        """Return (R,) weights that make squares of the Huber loss."""
        return self.outlier / np.maximum(np.abs(r), self.outlier)


def minimise(problem: Problem, start: Vector) -> tuple[Vector, list[float]]:
    """Return constants of little loss, by Levenberg-Marquardt steps from `start`, and the losses.

    The losses are those of the start and after every step that was taken.
    """
    x = start.copy()
    r = problem.residuals(x)
    best, damping = problem.loss(r, x), 0.3
    losses = [best]
    jacobian, age = problem.jacobian(x, r), 0
    for _ in range(problem.iterations):
        if age >= problem.jacobian_every:
            jacobian, age = problem.jacobian(x, r), 0
        hessian = problem.hessian(jacobian, r)
        gradient = jacobian.T @ (problem.weights(r) * r)
        gradient = gradient + problem.precision @ (x - problem.mean)
        gain = 0.0
        for _ in range(5):
            step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            step = np.clip(step, -problem.longest_step, problem.longest_step)
            nearby = problem.residuals(x + step)
            gain = best - problem.loss(nearby, x + step)
            # Broyden's update is good wherever the step ends.
            jacobian = jacobian + np.outer(nearby - r - jacobian @ step, step) / (step @ step)
            if gain > 0.0:
                x, r, best = x + step, nearby, best - gain
                losses.append(best)
                damping = max(0.25 * damping, 1e-3)
                break
            damping *= 4.0
        age += 1
        if gain < 0.3:  # a step that gains less is the last
            if age == 1:
                break
            age = problem.jacobian_every  # the derivatives may be stale: once more with new ones
    return x, losses


class Fit:
    """Measured cells, simulated again and again with other constants.

    Args:
        cells: Of any methods.
        start: Constants whose fitted places are overwritten.
        neutral: Use priors that take nothing from the measured runs.
    """

    def __init__(
        self, cells: Sequence[MeasuredCell], start: Constants, *, neutral: bool = False
    ) -> None:
        self.cells, self.start = list(cells), start
        domains = tuple(profile.domain for profile in start.profiles.values())
        self.layout = Layout(tuple(start.profiles), start.pool.aliases, domains)
        time, quality = self.layout.time_prior(neutral=neutral), self.layout.quality_prior()
        self._x = np.concatenate([time[0], quality[0]])
        self._of_time = slice(self.layout.num_time)
        self._of_quality = slice(self.layout.num_time, None)
        self._able = False  # abilities are no longer those of the prior
        self._noise = accuracy_noise(self.cells)
        self._time = Problem(
            lambda x: self._time_residuals(self._said(self._of_time, x, self._timing)),
            self._time_jacobian,
            *time,
            iterations=9,
            jacobian_every=3,
            longest_step=0.5,
            outlier=1.0,
        )
        self._quality = Problem(
            self._accuracy_residuals,
            lambda x, _: self._whitened(self.accuracy_slopes(x, sides=(1,))),
            *quality,
            iterations=5,
            jacobian_every=3,
            longest_step=1.0,
            outlier=2.5,
        )
        self._timing = list(batches(self.cells, start, TIME_SEEDS))
        self._all = list(batches(self.cells, start, QUALITY_SEEDS))
        # For each cell the one whose accuracy moves as its own: that at the lowest rate.
        keys: list[object] = [
            (cell.dataset, cell.cost_rate) if cell.method == "mas" else index
            for index, cell in enumerate(self.cells)
        ]
        lowest: dict[object, int] = {}
        for index, (key, cell) in enumerate(zip(keys, self.cells, strict=True)):
            first = self.cells[lowest.setdefault(key, index)]
            if cell.arrival_rate_per_min < first.arrival_rate_per_min:
                lowest[key] = index
        self._like = [lowest[key] for key in keys]
        few = sorted(set(self._like))
        parts = batches([self.cells[i] for i in few], start, SLOPE_SEEDS)
        self._few = [([few[i] for i in group], batch) for group, batch in parts]

    def run(self) -> None:
        """Fit all constants; the lengths of methods without roles, where they were measured."""
        rates = {c.arrival_rate_per_min for c in self.cells if not HARNESSES[c.method].has_roles}
        for number in range(1, ROUNDS + 1):
            self._minimise("time", self._time, self._of_time)
            if number == ROUNDS and FITTED_AT_PER_MIN in rates:
                found = fit_lengths(self.cells, self.constants(), FITTED_AT_PER_MIN, LENGTH_SEEDS)
                self.start = replace(self.start, length_factors=found.length_factors)
            self._minimise("quality", self._quality, self._of_quality)
            self._able = True

    def laplace(self) -> Posterior:
        """Return the normal distribution with the Hessian of the loss, by Gauss and Newton."""
        x = self._x[self._of_quality].copy()
        slope = self.accuracy_slopes(x)
        residuals = self._quality.residuals(x)
        hessian = self._quality.hessian(self._whitened(slope), residuals)
        return Posterior(self.layout, x, np.asarray(np.linalg.inv(hessian), np.float64))

    def values(self) -> dict[str, float]:
        """Return the constants by name."""
        return self.layout.values(self._x)

    def constants(self) -> Constants:
        """Return the fitted constants, and those of the start that are not fitted."""
        return with_constants(self.start, self.values())

    def _minimise(self, name: str, problem: Problem, place: slice) -> None:
        self._x[place], losses = minimise(problem, self._x[place])
        say(f"  {len(self.cells)} cells, {name}: {' -> '.join(f'{loss:.1f}' for loss in losses)}")

    def _together(self, place: slice) -> list[list[tuple[int, str | None]]]:
        """Return constants that one simulation moves: index, and dataset if of one."""
        found: dict[str, list[tuple[int, str | None]]] = {}
        for index, name in enumerate(self.layout.names()[place]):
            owner, _, rest = name.partition(": ")
            local = owner in self.layout.datasets
            found.setdefault(rest if local else name, []).append((index, owner if local else None))
        return list(found.values())

    def _time_jacobian(self, x: Vector, found: Vector) -> Vector:
        out = np.zeros((len(found), len(x)))
        for moved in self._together(self._of_time):
            shift = np.zeros(len(x))
            shift[[index for index, _ in moved]] = TIME_STEP
            said = self._said(self._of_time, x + shift, self._timing)
            slope = (self._time_residuals(said) - found) / TIME_STEP
            counts = [len(self._of_cell(index, said)) for index in sorted(said)]
            datasets = np.repeat([self.cells[index].dataset for index in sorted(said)], counts)
            for index, dataset in moved:
                touched = slice(None) if dataset is None else datasets == dataset
                out[touched, index] = slope[touched]
        return out

    def _whitened(self, values: Vector) -> Vector:
        return np.asarray(np.linalg.solve(np.linalg.cholesky(self._noise), values), np.float64)

    def accuracy_slopes(self, x: Vector, sides: Sequence[int] = (1, -1)) -> Vector:
        """Return (R, P) derivatives of the accuracies, by differences to one side or both.

        Cells of `mas` that differ in the arrival rate alone have those of the lowest rate.
        """
        out = np.zeros((len(self.cells), len(x)))
        here = self._said(self._of_quality, x, self._few) if len(sides) == 1 else {}
        for moved in self._together(self._of_quality):
            shift = np.zeros(len(x))
            shift[[index for index, _ in moved]] = QUALITY_STEP
            ends = [self._said(self._of_quality, x + side * shift, self._few) for side in sides]
            first, last = ends[0], (ends[1] if len(ends) > 1 else here)
            width = QUALITY_STEP * (sides[0] - (sides[1] if len(sides) > 1 else 0))
            for cell, like in enumerate(self._like):
                own = [i for i, dataset in moved if dataset == self.cells[cell].dataset]
                out[cell, own] = (first[like].accuracy - last[like].accuracy) / width
        return out

    def _said(self, place: slice, values: Vector, batches: Batches) -> Predictions:
        """Simulate batches with other constants in some places."""
        point = self._x.copy()
        point[place] = values
        constants = with_constants(self.start, self.layout.values(point))
        out: dict[int, Prediction] = {}
        for indices, batch in batches:
            batch.set_constants(constants)
            out.update(zip(indices, batch.run(), strict=True))
        return out

    def _time_residuals(self, said: Predictions) -> Vector:
        return np.concatenate([np.array(self._of_cell(index, said)) for index in sorted(said)])

    def _of_cell(self, index: int, predictions: Predictions) -> list[float]:
        """Return residuals of a cell: tokens if it is adaptive, else latencies and accuracy."""
        cell, said = self.cells[index], predictions[index]
        if HARNESSES[cell.method].adaptive:
            pairs = [
                (said.prompt_tokens, cell.prompt_tokens, TOKENS_SD),
                (said.completion_tokens, cell.completion_tokens, TOKENS_SD),
            ]
            return [float(np.log(a / b)) / sd for a, b, sd in pairs if b]
        pairs = [
            (said.latency_s[key], cell.latency_s.get(key), sd) for key, sd in LATENCY_SD.items()
        ]
        residuals = [float(np.log(a / b)) / sd for a, b, sd in pairs if b]
        if self._able:  # accuracies tell something of lengths only once abilities are fitted
            sd = float(np.sqrt(self._noise[index, index]))
            residuals.append((said.accuracy - cell.accuracy) / sd)
        return residuals

    def _accuracy_residuals(self, x: Vector) -> Vector:
        said = self._said(self._of_quality, x, self._all)
        off = [said[index].accuracy - cell.accuracy for index, cell in enumerate(self.cells)]
        return self._whitened(np.array(off))


# The posterior of quality


class Posterior(NamedTuple):
    """Normal posterior of the P constants of quality."""

    layout: Layout
    mean: Vector  # (P,)
    covariance: Vector  # (P, P)


def draw(posterior: Posterior, count: int, seed: int = 0) -> Vector:
    """Return (count, P) draws in pairs that mirror each other.

    So the mean of any number of pairs is exact; with at least P pairs, so is the covariance of all.
    """
    half = count // 2
    z = np.random.default_rng(seed).standard_normal((half, len(posterior.mean)))
    if half >= len(posterior.mean):
        left, _, right = np.linalg.svd(z, full_matrices=False)
        z = left @ right * np.sqrt(half)  # the nearest one whose columns are orthogonal
    away = z @ np.linalg.cholesky(posterior.covariance).T
    pairs = np.stack([away, -away], axis=1).reshape(2 * half, -1)
    return np.asarray(posterior.mean + pairs, np.float64)


def to_csv(layout: Layout, draws: Vector) -> str:
    """Return the draws (N, P) as the text of a CSV file: a row a draw and workload."""
    columns: dict[str, dict[str, str]] = {dataset: {} for dataset in layout.datasets}
    for name in layout.quality_names():  # keys of a workload's YAML, by the names
        dataset, _, rest = name.partition(": ")
        model, _, ability = rest.partition(": ")
        if rest != "aggregation_gain":
            key = f"models.{model}.{ability}" if ability else f"quality.{rest}"
            columns[dataset][name] = key
    lines = [_HEADER, ",".join(("draw", "workload", *columns[layout.datasets[0]].values()))]
    for number, x in enumerate(draws):
        drawn = layout.quality_values(x).tolist()
        values = dict(zip(layout.quality_names(), drawn, strict=True))
        for dataset in layout.datasets:
            row = (f"{values[name]:.4f}" for name in columns[dataset])
            lines.append(",".join((str(number), dataset, *row)))
    return "\n".join(lines) + "\n"


def gains_table(posterior: Posterior) -> dict[str, dict[str, dict[str, float]]]:
    """Return mean and sd (logits) of the gains by dataset, and by domain over its datasets.

    Also the sd that the prior has, and the probability that the gain is positive.
    """
    layout, names = posterior.layout, posterior.layout.quality_names()
    prior = np.linalg.inv(layout.quality_prior()[1])
    rows = [f"structure_gain.{name}" for name in STRUCTURES] + ["aggregation_gain"]
    groups = {dataset: [dataset] for dataset in layout.datasets}
    for domain in dict.fromkeys(layout.domains):
        own = zip(layout.datasets, layout.domains, strict=True)
        groups[domain] = [dataset for dataset, of in own if of == domain]
    table: dict[str, dict[str, dict[str, float]]] = {}
    for group, datasets in groups.items():
        for row in rows:
            weight = np.zeros(len(names))
            weight[[names.index(f"{dataset}: {row}") for dataset in datasets]] = 1 / len(datasets)
            table.setdefault(group, {})[row.removeprefix("structure_gain.")] = {
                "mean": round(float(weight @ posterior.mean), 3),
                "sd": round(float(np.sqrt(weight @ posterior.covariance @ weight)), 3),
                "prior_sd": round(float(np.sqrt(weight @ prior @ weight)), 3),
            }
    return table


# Copies of the shipped files


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


# Command


def errors(cells: Sequence[MeasuredCell], constants: Constants) -> dict[str, Any]:
    """Return the summary of the errors, by method."""
    return summarise(cell_rows(cells, predict(cells, constants)))


def left_out(
    cells: Sequence[MeasuredCell], start: Constants, rate_per_min: float
) -> dict[str, Any]:
    """Return the errors on the cells of a rate, of constants that are fitted to all others.

    Methods that were measured at no other rate are left out on both sides.
    """
    say(f"without {rate_per_min:g} queries/min")
    rest = [cell for cell in cells if cell.arrival_rate_per_min != rate_per_min]
    fit = Fit(rest, with_facts(start, rest), neutral=True)
    fit.run()
    seen = {cell.method for cell in rest}
    own = [c for c in cells if c.arrival_rate_per_min == rate_per_min and c.method in seen]
    return errors(own, fit.constants())


def main(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.")],
    out: Annotated[Path, typer.Option(help="Folder for YAML files, posterior.csv and fit.json.")],
    cross_validate: Annotated[
        bool, typer.Option(help="Also leave out each arrival rate in turn.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes for the fits that leave out a rate.")
    ] = 1,
) -> None:
    """Fit pool and workloads to measured runs."""
    with friendly():
        cells = read_runs(runs, list(HARNESSES))
        start = load_constants(POOL, [cell.dataset for cell in cells])
        start = replace(start, length_factors={})
        fit = Fit(cells, with_facts(start, cells))
        fit.run()
        written, posterior = write(fit.constants(), out), fit.laplace()
        draws = to_csv(posterior.layout, draw(posterior, DRAWS))
        replace_text(out / "workloads" / "posterior.csv", draws)
        read = replace(fit.constants(), pool=written.pool, profiles=written.profiles)
        figures: dict[str, Any] = {
            "values": {name: float(f"{value:.6g}") for name, value in fit.values().items()},
            "length_factors": factors_used(cells, read),
            "posterior": {"gains": gains_table(posterior)},
            "fitted": errors(cells, read),
        }
        rates = sorted({c.arrival_rate_per_min for c in cells}) if cross_validate else []
        folds = dict(in_parallel(partial(left_out, cells, start), rates, workers))
        figures["left_out"] = {f"{rate:g}": folds[rate] for rate in rates}
        replace_text(out / "fit.json", json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
