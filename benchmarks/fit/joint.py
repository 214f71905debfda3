"""The joint fit of all constants to measured cells.

The cells of the oblivious method `mas` give latencies (mean and quantiles) and accuracies; those of
the adaptive one give token counts, and accuracies at a lower weight; those of `moa` and `gptswarm`
give accuracies, and a factor on the lengths of their answers. The latencies of the adaptive method
decide nothing (but see `replay_choices.ROUTE_AFFINITY`).

Two fits alternate: the constants of time, whose lengths decide also what is cut and therefore
wrong, then those of quality. Means over thousands of queries are smooth, so derivatives are
differences of simulations on common random numbers. Constants that touch different residuals are
moved in one simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.fit.layout import layout_of, time_prior, with_constants
from benchmarks.fit.posterior import Posterior
from benchmarks.fit.quality import accuracy_noise, accuracy_residuals
from benchmarks.fit.solver import Problem, minimise
from inframind_gym.calibration.fit import Vector
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import (
    FITTED_AT_PER_MIN,
    Constants,
    Prediction,
    RunBatch,
    batches,
    fit_lengths,
)
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.progress import say

# Episodes of a cell, by method: for times, for accuracies, for their slopes. Where the model misses
# a cell by more than its noise (`quality.BASELINE_SD`, ADAPTIVE_SD), more episodes tell no more.
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


class Fit:
    """Measured cells, simulated again and again with other constants.

    Args:
        cells: Of any methods.
        start: Constants whose fitted places are overwritten.
        neutral: Use priors that take nothing from the measured runs.
        first: Constants to begin with, by name; None: the means of the priors.
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
        time, quality = time_prior(self.layout, neutral=neutral), self.layout.quality.prior()
        self._x = np.concatenate([time[0], quality[0]])
        if first is not None:
            self._x = self.layout.vector(first)
        self._of_time = slice(self.layout.num_time)
        self._of_quality = slice(self.layout.num_time, None)
        self._able = False  # abilities are no longer those of the prior
        self._noise = accuracy_noise(self.cells)
        self._time = Problem(
            lambda x: self._time_residuals(self._timed(x)),
            self._time_jacobian,
            *time,
            iterations=9,
            jacobian_every=3,
            longest_step=0.5,
            outlier=1.0,
        )
        self._quality = Problem(
            lambda x: self._accuracy_residuals(self._judged(x, self._all)),
            lambda x, _: self._whitened(self.accuracy_slopes(x, sides=(1,))),
            *quality,
            iterations=5,
            jacobian_every=3,
            longest_step=1.0,
            outlier=2.5,
        )
        self._timing = self._batched(range(len(self.cells)), TIME_SEEDS)
        self._all = self._batched(range(len(self.cells)), QUALITY_SEEDS)
        self._like = self._alike()
        self._few = self._batched(sorted(set(self._like)), SLOPE_SEEDS)

    def _batched(self, wanted: Iterable[int], seeds: Mapping[str, int]) -> Batches:
        """Return batches of the cells with these indices whose method has seeds."""
        found: Batches = []
        by_method: dict[str, list[int]] = {}
        for index in wanted:
            by_method.setdefault(self.cells[index].method, []).append(index)
        for method, chosen in by_method.items():
            if method in seeds:
                parts = batches([self.cells[i] for i in chosen], self.start, seeds[method])
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

    def run(self) -> None:
        """Fit all constants."""
        for number in range(1, ROUNDS + 1):
            self._minimise("time", self._time, self._of_time)
            if number == ROUNDS:
                self._fit_lengths()
            self._minimise("quality", self._quality, self._of_quality)
            self._able = True

    def laplace(self) -> Posterior:
        """Return the normal distribution with the Hessian of the loss, by Gauss and Newton.

        About the constants that it began with, before `run`.
        """
        x = self._x[self._of_quality].copy()
        slope = self.accuracy_slopes(x)
        residuals = self._quality.residuals(x)
        hessian = self._quality.hessian(self._whitened(slope), residuals)
        covariance = np.asarray(np.linalg.inv(hessian), np.float64)
        return Posterior(self.layout.quality, x, covariance, self.accuracies(x), slope)

    def accuracies(self, quality: Vector) -> Vector:
        """Return simulated accuracies (R,) of the cells at constants of quality (P,)."""
        said = self._judged(quality, self._all)
        return np.array([said[index].accuracy for index in range(len(self.cells))])

    def values(self) -> dict[str, float]:
        """Return the constants by name."""
        return self.layout.values(self._x)

    def constants(self) -> Constants:
        """Return the fitted constants, and those of the start that are not fitted."""
        return with_constants(self.start, self.layout, self._x)

    def _minimise(self, name: str, problem: Problem, place: slice) -> None:
        self._x[place], losses = minimise(problem, self._x[place])
        say(f"  {len(self.cells)} cells, {name}: {' -> '.join(f'{loss:.1f}' for loss in losses)}")

    def _fit_lengths(self) -> None:
        """Fit the factor on the answers of each method without roles, where it was measured."""
        rates = {c.arrival_rate_per_min for c in self.cells if not HARNESSES[c.method].has_roles}
        if FITTED_AT_PER_MIN in rates:
            found = fit_lengths(self.cells, self.constants(), FITTED_AT_PER_MIN, LENGTH_SEEDS)
            self.start = replace(self.start, length_factors=found.length_factors)

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
            said = self._timed(x + shift)
            slope = (self._time_residuals(said) - found) / TIME_STEP
            datasets = np.array(self._time_datasets(said))
            for index, dataset in moved:
                touched = slice(None) if dataset is None else datasets == dataset
                out[touched, index] = slope[touched]
        return out

    def _whitened(self, slopes: Vector) -> Vector:
        return np.asarray(np.linalg.solve(np.linalg.cholesky(self._noise), slopes), np.float64)

    def accuracy_slopes(self, x: Vector, sides: Sequence[int] = (1, -1)) -> Vector:
        """Return (R, P) derivatives of the accuracies, by differences to one side or both.

        Cells of `mas` that differ in the arrival rate alone have those of the lowest rate.
        """
        out = np.zeros((len(self.cells), len(x)))
        here = self._judged(x, self._few) if len(sides) == 1 else {}
        for moved in self._together(self._of_quality):
            shift = np.zeros(len(x))
            shift[[index for index, _ in moved]] = QUALITY_STEP
            ends = [self._judged(x + side * shift, self._few) for side in sides]
            first, last = ends[0], (ends[1] if len(ends) > 1 else here)
            width = QUALITY_STEP * (sides[0] - (sides[1] if len(sides) > 1 else 0))
            for cell, like in enumerate(self._like):
                own = [i for i, dataset in moved if dataset == self.cells[cell].dataset]
                out[cell, own] = (first[like].accuracy - last[like].accuracy) / width
        return out

    def _timed(self, values: Vector) -> Predictions:
        return self._predictions(self._of_time, values, self._timing)

    def _judged(self, values: Vector, batches: Batches) -> Predictions:
        return self._predictions(self._of_quality, values, batches)

    def _predictions(self, place: slice, values: Vector, batches: Batches) -> Predictions:
        point = self._x.copy()
        point[place] = values
        constants = with_constants(self.start, self.layout, point)
        out: dict[int, Prediction] = {}
        for indices, batch in batches:
            batch.set_constants(constants)
            out.update(zip(indices, batch.run(), strict=True))
        return out

    def _time_residuals(self, predictions: Predictions) -> Vector:
        residuals = (self._of_cell(index, predictions) for index in sorted(predictions))
        return np.concatenate([np.array(of) for of in residuals])

    def _time_datasets(self, predictions: Predictions) -> list[str]:
        """Return the dataset of each of `_time_residuals`."""
        return [
            self.cells[index].dataset
            for index in sorted(predictions)
            for _ in self._of_cell(index, predictions)
        ]

    def _of_cell(self, index: int, predictions: Predictions) -> list[float]:
        """Return residuals of a cell: tokens if it is adaptive, else latencies and accuracy.

        Accuracies tell something of lengths only once abilities are fitted.
        """
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
        if self._able:
            sd = float(np.sqrt(self._noise[index, index]))
            residuals.append((said.accuracy - cell.accuracy) / sd)
        return residuals

    def _accuracy_residuals(self, predictions: Predictions) -> Vector:
        said = [predictions[index] for index in range(len(self.cells))]
        return accuracy_residuals(self.cells, said)
