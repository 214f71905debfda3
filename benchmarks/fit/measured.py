"""Fit the constants of pool and workloads to measured runs: ``python -m benchmarks.fit.measured``.

Reads a file of measured cells (`inframind_gym/calibration/measured.py`) and nothing else
that was measured, and writes the pool and the workloads as YAML, with the provenance of every
constant beside it. The cells of the oblivious method `mas` give latencies (mean and quantiles) and
accuracies; those of the adaptive one give token counts, and accuracies at a lower weight. Its
latencies decide nothing here (but see `ROUTE_AFFINITY` in `replay_choices.py`).

Two fits alternate, because proven code shortens workflows: the constants of time, then those of
quality. `--cross-validate` also fits without each of the arrival rates in turn and predicts it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.fit.constants import (
    Layout,
    check_known,
    middle_cost_rate,
    quality_prior,
    time_prior,
    with_constants,
    with_facts,
)
from benchmarks.fit.solver import Problem, minimise
from benchmarks.fit.yaml_files import pool_yaml, workload_yaml
from inframind_gym.benchmark.cli import friendly
from inframind_gym.benchmark.progress import say
from inframind_gym.calibration.measured import MeasuredCell, read_runs
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.calibration.replay_report import compare, summarise
from inframind_gym.calibration.replay_runs import (
    Constants,
    Prediction,
    batches,
    load_constants,
    predict,
)
from inframind_gym.files import replace_text
from inframind_gym.simulator.workload import load_workload

Vector = NDArray[np.float64]

# Standard deviations of what is compared: of logarithms, and of accuracies beyond sampling.
LATENCY_SD: Final = {"mean": 0.06, "p5": 0.4, "p25": 0.3, "median": 0.2, "p75": 0.12, "p95": 0.12}
TOKENS_SD: Final = 0.08
ACCURACY_SD: Final = 0.01
ADAPTIVE_WEIGHT: Final = 0.2  # of an adaptive cell's accuracy: its choices depend on the query
ROUNDS: Final = 2
TIME_ITERATIONS: Final = 8
QUALITY_ITERATIONS: Final = 4


class Fit:
    """Measured cells, simulated again and again with other constants.

    Args:
        cells: oblivious ones to be fitted, and adaptive ones for their tokens.
        start: constants whose fitted places are overwritten.
        seeds: sweeps of an oblivious cell; adaptive ones have one.
        neutral: let the priors know nothing of the measured runs.
    """

    def __init__(
        self,
        cells: Sequence[MeasuredCell],
        start: Constants,
        seeds: int,
        *,
        neutral: bool = False,
    ) -> None:
        self.cells = list(cells)
        self.start = start
        self.neutral = neutral
        self.layout = Layout(tuple(start.profiles), start.pool.aliases)
        self._adaptive = [HARNESSES[cell.method].adaptive for cell in self.cells]
        self._batches = []
        for adaptive in (False, True):
            chosen = [i for i, of in enumerate(self._adaptive) if of is adaptive]
            parts = batches([self.cells[i] for i in chosen], start, 1 if adaptive else seeds)
            self._batches += [([chosen[i] for i in group], batch) for group, batch in parts]

    def run(self) -> Vector:
        """Fit all constants; returns them (`Layout`)."""
        mean, precision = time_prior(self.layout, neutral=self.neutral)
        able, able_precision = quality_prior(self.layout)
        x = np.concatenate([mean, able])
        places, n = self.layout.names(), self.layout.num_time
        for _ in range(ROUNDS):
            x[:n], _ = minimise(
                self._problem(x, slice(0, n), mean, precision, places[:n], self._time_residuals),
                x[:n],
                iterations=TIME_ITERATIONS,
                tell=lambda i, loss: say(f"  time {i}: {loss:.1f}"),
            )
            x[n:], _ = minimise(
                self._problem(
                    x, slice(n, None), able, able_precision, places[n:], self._accuracy_residuals
                ),
                x[n:],
                iterations=QUALITY_ITERATIONS,
                tell=lambda i, loss: say(f"  quality {i}: {loss:.1f}"),
            )
        return x

    def _problem(
        self,
        x: Vector,
        part: slice,
        mean: Vector,
        precision: NDArray[np.float64],
        places: list[str],
        residuals: Any,
    ) -> Problem:
        fixed = x.copy()

        def of(values: Vector) -> Vector:
            point = fixed.copy()
            point[part] = values
            return np.asarray(residuals(self._simulate(point))[0])

        _, datasets, weights = residuals(self._simulate(x))
        owner = [place.split(": ") for place in places]
        local = [words[0] in self.layout.datasets for words in owner]
        touches = np.array(
            [
                [not here or words[0] == dataset for dataset in datasets]
                for words, here in zip(owner, local, strict=True)
            ]
        )
        together: dict[tuple[str, ...], list[int]] = {}
        for index, (words, here) in enumerate(zip(owner, local, strict=True)):
            together.setdefault(tuple(words[1:] if here else words), []).append(index)
        quality = part.stop is None
        return Problem(
            residuals=of,
            weights=np.asarray(weights),
            prior_mean=mean,
            prior_precision=precision,
            together=list(together.values()),
            touches=touches,
            step=0.3 if quality else 0.08,
            central=quality,
            longest_step=1.0 if quality else 0.5,
        )

    def _simulate(self, x: Vector) -> list[Prediction]:
        constants = with_constants(self.start, self.layout, x)
        out: dict[int, Prediction] = {}
        for indices, batch in self._batches:
            batch.set_constants(constants)
            out.update(zip(indices, batch.run(), strict=True))
        return [out[index] for index in range(len(self.cells))]

    def _time_residuals(
        self, predictions: list[Prediction]
    ) -> tuple[list[float], list[str], list[float]]:
        """Residuals, the dataset of each and their weights."""
        residuals, datasets = [], []
        for cell, said, adaptive in zip(self.cells, predictions, self._adaptive, strict=True):
            if adaptive:
                pairs = [
                    (said.prompt_tokens, cell.prompt_tokens, TOKENS_SD),
                    (said.completion_tokens, cell.completion_tokens, TOKENS_SD),
                ]
            else:
                pairs = [
                    (said.latency_s[key], cell.latency_s.get(key), sd)
                    for key, sd in LATENCY_SD.items()
                ]
            known = [(a, b, sd) for a, b, sd in pairs if b]
            residuals += [float(np.log(a / b)) / sd for a, b, sd in known]
            datasets += [cell.dataset] * len(known)
        return residuals, datasets, [1.0] * len(residuals)

    def _accuracy_residuals(
        self, predictions: list[Prediction]
    ) -> tuple[list[float], list[str], list[float]]:
        residuals, weights = [], []
        for cell, said, adaptive in zip(self.cells, predictions, self._adaptive, strict=True):
            variance = max(cell.accuracy * (1.0 - cell.accuracy), 0.02) / (cell.num_queries or 500)
            sd = float(np.sqrt(variance + ACCURACY_SD**2))
            residuals.append((said.accuracy - cell.accuracy) / sd)
            weights.append(ADAPTIVE_WEIGHT if adaptive else 1.0)
        return residuals, [cell.dataset for cell in self.cells], weights


def fitted(
    cells: Sequence[MeasuredCell], start: Constants, seeds: int, *, neutral: bool = False
) -> tuple[Constants, dict[str, float]]:
    """Fit to some cells, with priors that know the measured runs or are `neutral`.

    Returns:
        The constants, and the values of the fitted ones by name.
    """
    fit = Fit(cells, start, seeds, neutral=neutral)
    x = fit.run()
    named = {name: float(f"{value:.4g}") for name, value in fit.layout.values(x).items()}
    return with_constants(start, fit.layout, x), named


def prior(start: Constants) -> Constants:
    """Where the fit starts: the means of the priors, whatever constants `start` has."""
    layout = Layout(tuple(start.profiles), start.pool.aliases)
    means = [time_prior(layout)[0], quality_prior(layout)[0]]
    return with_constants(start, layout, np.concatenate(means))


def left_out(
    cells: Sequence[MeasuredCell], start: Constants, seeds: int, rate_per_min: float
) -> dict[str, Any]:
    """Errors on the cells of a rate, of constants that are fitted to all others."""
    rest = [cell for cell in cells if cell.arrival_rate_per_min != rate_per_min]
    constants, _ = fitted(rest, with_facts(start, rest), seeds, neutral=True)
    return errors([cell for cell in cells if cell.arrival_rate_per_min == rate_per_min], constants)


def write(constants: Constants, cells: Sequence[MeasuredCell], out: Path) -> Constants:
    """Write pool and workloads as YAML; returns them as they are read again."""
    (out / "pools").mkdir(parents=True, exist_ok=True)
    (out / "workloads").mkdir(exist_ok=True)
    pool = out / "pools" / f"{constants.pool.name}.yaml"
    pool.write_text(pool_yaml(constants.pool), "utf-8")
    for dataset, profile in constants.profiles.items():
        router = middle_cost_rate([cell for cell in cells if cell.dataset == dataset])
        rates = ", ".join(f"{cell.arrival_rate_per_min:g}" for cell in router)
        mixes = f"mean over the measured cells at cost rate {router[0].cost_rate:g} ({rates}/min)"
        text = workload_yaml(load_workload(profile.name), profile, mixes)
        (out / "workloads" / f"{dataset}.yaml").write_text(text, "utf-8")
    return load_constants(pool, list(constants.profiles), out / "workloads")


def main(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.")],
    out: Annotated[Path, typer.Option(help="Folder for the YAML files and fit.json.")],
    pool: Annotated[str, typer.Option(help="Pool to start from: a name or a path.")] = "b200-2gpu",
    seeds: Annotated[int, typer.Option(help="Sweeps an oblivious cell.")] = 3,
    cross_validate: Annotated[
        bool, typer.Option(help="Also leave out each arrival rate in turn.")
    ] = False,
) -> None:
    """Fit pool and workloads to measured runs."""
    began = time.monotonic()
    with friendly():
        cells = read_runs(runs, ["mas", "inframind"])
        before = load_constants(pool, [cell.dataset for cell in cells])
        check_known(list(before.profiles), before.pool.aliases)
        start = with_facts(before, cells)
        constants, values = fitted(cells, start, seeds)
        constants = write(constants, cells, out)
        report: dict[str, Any] = {
            "parameters": len(values),
            "values": values,
            "prior": errors(cells, prior(start)),
            "fit": errors(cells, constants),
            "left_out": {},
        }
        replace_text(out / "fit.json", json.dumps(report, indent=1) + "\n")
        for rate in sorted({c.arrival_rate_per_min for c in cells}) if cross_validate else ():
            say(f"without {rate:g} queries/min")
            report["left_out"][f"{rate:g}"] = left_out(cells, before, seeds, rate)
            replace_text(out / "fit.json", json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("prior", "fit", "left_out")}, indent=1))
    say(f"{len(values)} constants fitted in {time.monotonic() - began:.0f} s")


def errors(cells: Sequence[MeasuredCell], constants: Constants) -> dict[str, Any]:
    """Summary of the errors, by method."""
    return summarise(compare(cells, predict(cells, constants)))


if __name__ == "__main__":
    typer.run(main)
