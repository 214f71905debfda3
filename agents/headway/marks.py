"""Chances of a right answer to each question that was surveyed: what the search judges by.

Whether a sweep's answers happened to be right is mostly luck, the same for no two recipes. The
survey has asked every question of the split many times, so its records tell how likely a right
answer is; with these chances in place of luck the same number of sweeps tells prices apart far
better. What is in time is still what was seen in the sweep; that being right and being in time are
independent, given the question and the recipe, is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.headway.survey import Played

_ROUNDS: Final = 12
_PRECISION: Final = 0.25  # of the normal prior of easiness: its standard deviation is 2
_LARGEST_STEP: Final = 1.0


class Marks(NamedTuple):
    """An item response model with one parameter a question: log odds are ability plus easiness.

    Source: G. Rasch, "Probabilistic Models for Some Intelligence and Attainment Tests", 1960.
    """

    ability: NDArray[np.float64]  # (D, R) log odds of a recipe for a question of no difficulty
    easiness: NDArray[np.float64]  # (T,) of a question; 0 where it was never asked

    def chances(self, recipe: NDArray[np.int64], records: NDArray[Any]) -> NDArray[np.float64]:
        """Of n queries, (n,): that a recipe answers its question rightly."""
        domain = records["domain"].astype(np.int64)
        return _logistic(self.ability[domain, recipe] + self.easiness[records["task"]])

    def to_tensors(self) -> dict[str, NDArray[np.float64]]:
        """What a training keeps."""
        return {f"marks.{name}": array for name, array in self._asdict().items()}


def marks_from(tensors: Mapping[str, NDArray[Any]]) -> Marks:
    """The inverse of `Marks.to_tensors`."""
    return Marks(*(np.array(tensors[f"marks.{name}"], np.float64) for name in Marks._fields))


def marks_of(played: Played, right: NDArray[np.float64], num_tasks: int) -> Marks:
    """Fit the model, by turns for the questions and for the recipes.

    Recipes meet their share of right answers on the average over the questions that they were
    asked; questions are drawn towards the average of their domain.

    Args:
        played: queries.
        right: (D, R) success of the recipes, see `study.success`.
        num_tasks: of the split.
    """
    records, recipe = played.records, played.recipe
    domain, task = records["domain"].astype(np.int64), records["task"].astype(np.int64)
    solved = records["solved"].astype(np.float64)
    cell = np.ravel_multi_index((domain, recipe), right.shape)
    count = np.bincount(cell, minlength=right.size)
    wanted = right.clip(0.005, 0.995).ravel()
    ability = np.log(wanted / (1.0 - wanted))
    easiness = np.zeros(num_tasks)
    of_domain = np.full(num_tasks, -1)
    of_domain[task] = domain
    for _ in range(_ROUNDS):
        p = _logistic(ability[cell] + easiness[task])
        slope = np.bincount(task, p * (1.0 - p), num_tasks) + _PRECISION
        step = (np.bincount(task, solved - p, num_tasks) - _PRECISION * easiness) / slope
        easiness += step.clip(-_LARGEST_STEP, _LARGEST_STEP)
        for d in range(len(right)):
            own = of_domain == d
            if own.any():
                easiness[own] -= easiness[own].mean()
        p = _logistic(ability[cell] + easiness[task])
        slope = np.bincount(cell, p * (1.0 - p), right.size) / np.maximum(count, 1)
        mean = np.bincount(cell, p, right.size) / np.maximum(count, 1)
        step = (wanted - mean) / np.maximum(slope, 0.005)
        ability += np.where(count > 0, step.clip(-_LARGEST_STEP, _LARGEST_STEP), 0.0)
    return Marks(ability.reshape(right.shape), easiness)


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    out: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return out
