"""Constants of answers' quality: their priors, and what measured accuracies say of them.

Of a dataset: abilities and spread of difficulty, gains by structure of a workflow and by prompt
strategy, and the gain of the aggregating call of `moa` and `gptswarm`. Measured accuracies do not
identify all of them, so the priors are normal, and gains of any sign are hierarchical: datasets of
a domain share a part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.fit import Vector
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import Prediction
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.simulator.item_response import ability_of
from inframind_gym.simulator.workflow.topology import STRUCTURES
from inframind_gym.simulator.workload import QualityProfile

OUTCOMES: Final = Path(__file__).resolve().parent / "fitted" / "outcomes.json"

# Accuracy of one call: from model cards and EvalPlus and, where there are none, in their order. All
# models of a dataset move together by OFFSET_SD logits (other prompts, other subsets), each alone
# by ABILITY_SD.
ACCURACY: Final = {
    "math": (0.90, 0.70, 0.57, 0.50, 0.43),
    "mbpp": (0.88, 0.79, 0.83, 0.69, 0.55),
    "gsm_hard": (0.62, 0.60, 0.58, 0.47, 0.38),
    "humaneval": (0.96, 0.89, 0.90, 0.75, 0.60),
    "mmlu_pro": (0.68, 0.60, 0.51, 0.44, 0.34),
}
OFFSET_SD: Final = 0.3
ABILITY_SD: Final = 0.35
# Spread of difficulty: the one that was measured on MMLU-Pro is where other datasets start (sd of a
# logarithm). How much several agents gain on one of them decides.
SPREAD_SD: Final = {"mmlu_pro": 0.03}
OTHER_SPREAD_SD: Final = 0.5
# Gains in logits. Of a structure, and of the aggregating call: any sign; the part that the datasets
# of a domain share, and their own. Of a strategy: assumed means by domain; for knowledge for the
# 9-19 points that reasoning brings on MMLU-Pro by the models' cards, for code less than for
# mathematics, since agents hand on code and not a chain of thought.
STRUCTURE_SD: Final = (0.6, 0.5)
AGGREGATION_SD: Final = (1.0, 0.5)
STRATEGY_GAIN: Final = {
    "Math": {"Flash": -0.3, "DeepThink": 0.2},
    "Code": {"Flash": -0.15, "DeepThink": 0.1},
    "Commonsense": {"Flash": -0.6, "DeepThink": 0.3},
}
GAINING: Final = ("Flash", "DeepThink")  # against the third strategy
STRATEGY_SD: Final = 0.2

# Standard deviations of accuracies beyond sampling: of a cell of `mas`; of `moa` and `gptswarm`,
# who have other prompts; and of an adaptive router, which chooses models by the question: of a
# cell, and of all cells of a dataset.
ACCURACY_SD: Final = 0.01
BASELINE_SD: Final = 0.03
ADAPTIVE_SD: Final = 0.02
ADAPTIVE_OFFSET_SD: Final = 0.02


class Gains(NamedTuple):
    """Constants of quality of the datasets."""

    ability: Vector  # (D, M) logits
    difficulty_sd: Vector  # (D,) logits
    structure: Vector  # (D, STRUCTURES) logits
    strategy: Vector  # (D, GAINING) logits
    aggregation: Vector  # (D,) logits


@dataclass(frozen=True)
class QualityLayout:
    """Places of the constants of quality in a vector.

    Abilities are logits above the ability that gives the published accuracy at the dataset's spread
    of difficulty, which is a logarithm; gains are logits.
    """

    datasets: tuple[str, ...]
    domains: tuple[str, ...]  # of the datasets
    models: tuple[str, ...]

    def names(self) -> list[str]:
        """Return the name of each place, `dataset: constant`."""
        return [
            *(f"{dataset}: {model}: ability" for dataset in self.datasets for model in self.models),
            *(f"{dataset}: difficulty_sd" for dataset in self.datasets),
            *(f"{d}: structure_gain.{name}" for d in self.datasets for name in STRUCTURES),
            *(f"{d}: strategy_gain.{name}" for d in self.datasets for name in GAINING),
            *(f"{dataset}: aggregation_gain" for dataset in self.datasets),
        ]

    def gains(self, x: Vector) -> Gains:
        """Return the constants of a vector in their own units."""
        count = len(self.datasets)
        widths = (len(self.models), 1, len(STRUCTURES), len(GAINING), 1)
        ends = np.cumsum([count * width for width in widths])
        more, spread, structure, strategy, aggregation = (
            part.reshape(count, -1) for part in np.split(x, ends[:-1])
        )
        sds = np.exp(spread[:, 0])
        published = [
            [ability_of(accuracy, sd) for accuracy in ACCURACY[dataset]]
            for dataset, sd in zip(self.datasets, sds.tolist(), strict=True)
        ]
        return Gains(np.array(published) + more, sds, structure, strategy, aggregation[:, 0])

    def values(self, x: Vector) -> Vector:
        """Return the constants of a vector in the order of `names`, in their own units."""
        parts = [np.ravel(part) for part in self.gains(x)]
        return np.asarray(np.concatenate(parts), np.float64)

    def vector(self, values: Mapping[str, float]) -> Vector:
        """Return the vector of constants by name; what is missing is as in the prior."""
        mean, _ = self.prior()
        out = mean.copy()
        for index, name in enumerate(self.names()):
            if name not in values:
                continue
            dataset, _, rest = name.partition(": ")
            value = values[name]
            if rest == "difficulty_sd":
                value = math.log(value)
            elif rest.endswith(": ability"):
                sd = values.get(f"{dataset}: difficulty_sd", outcomes()["difficulty_sd"])
                model = self.models.index(rest.partition(":")[0])
                value -= ability_of(ACCURACY[dataset][model], sd)
            out[index] = value
        return out

    def prior(self) -> tuple[Vector, Vector]:
        """Return means (P,) and inverse covariance (P, P)."""
        count, models = len(self.datasets), len(self.models)
        own = np.eye(count)
        together = np.equal.outer(self.domains, self.domains).astype(float)

        def hierarchical(shared_sd: float, own_sd: float) -> Vector:
            return shared_sd**2 * together + own_sd**2 * own

        spread = [SPREAD_SD.get(dataset, OTHER_SPREAD_SD) ** 2 for dataset in self.datasets]
        blocks = [
            np.kron(own, ABILITY_SD**2 * np.eye(models) + OFFSET_SD**2),
            np.diag(spread),
            np.kron(hierarchical(*STRUCTURE_SD), np.eye(len(STRUCTURES))),
            np.kron(own, STRATEGY_SD**2 * np.eye(len(GAINING))),
            hierarchical(*AGGREGATION_SD),
        ]
        mean = np.concatenate(
            [
                np.zeros(count * models),
                np.full(count, math.log(outcomes()["difficulty_sd"])),
                np.zeros(count * len(STRUCTURES)),
                *([STRATEGY_GAIN[domain][name] for name in GAINING] for domain in self.domains),
                np.zeros(count),
            ]
        )
        precision = np.zeros((len(mean), len(mean)))
        first = 0
        for block in blocks:
            place = slice(first, first + len(block))
            precision[place, place] = np.linalg.inv(block)
            first += len(block)
        return mean, precision


def outcomes() -> dict[str, float]:
    """Return the quantities measured by ``python -m benchmarks.fit.outcomes``, by name."""
    table = json.loads(OUTCOMES.read_text("utf-8"))
    return {name: float(of["value"]) for name, of in table.items()}


def with_gains(quality: QualityProfile, gains: Gains, dataset: int) -> QualityProfile:
    """Return the quality of a dataset with its constants among `gains`."""
    strategy = dict(zip(GAINING, gains.strategy[dataset].tolist(), strict=True))
    update: dict[str, Any] = {
        "difficulty_sd": float(gains.difficulty_sd[dataset]),
        "structure_gain": dict(zip(STRUCTURES, gains.structure[dataset].tolist(), strict=True)),
        "strategy_gain": {**quality.strategy_gain, **strategy},
    }
    return quality.model_copy(update=update)


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


def accuracy_residuals(
    cells: Sequence[MeasuredCell], predictions: Sequence[Prediction]
) -> NDArray[np.float64]:
    """Return (R,) differences of simulated and measured accuracies, with covariance 1."""
    apart = [said.accuracy - c.accuracy for c, said in zip(cells, predictions, strict=True)]
    whitened = np.linalg.solve(np.linalg.cholesky(accuracy_noise(cells)), np.array(apart))
    return np.asarray(whitened, np.float64)
