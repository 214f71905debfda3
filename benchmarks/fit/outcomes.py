"""Measure difficulty from the outcomes of many models: ``python -m benchmarks.fit.outcomes``.

Reads outcomes (a CSV of id, model, correct, output_chars: 29 models on 3,000 questions of MMLU-Pro)
and the questions, and fits one Rasch model, P(right) = σ(ability - difficulty) with normal
difficulties, by marginal maximum likelihood. The quality model's constants of difficulty, of a cut
answer and of two calls of one model come from here. So does the direction of the embedding space
along which real questions get harder, which the package ships.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, cast

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit, log_expit, ndtr, ndtri

from benchmarks.fit.measured import OUTCOMES
from inframind_gym.errors import ConfigError, friendly
from inframind_gym.files import replace_text
from inframind_gym.tasks import load_tasks

Array = NDArray[np.float64]

# Two versions of a model, of one size and developer: the nearest in the data to two calls of one
# model. Not quite so near, so their agreement is a lower bound.
SIBLINGS: Final = (
    ("Meta-Llama-3-8B", "Meta-Llama-3_1-8B"),
    ("Meta-Llama-3-70B", "Meta-Llama-3_1-70B"),
    ("Mistral-7B-v0.1", "Mistral-7B-v0.2-hf"),
)
# Characters beyond which an answer has run into the limit of 2,048 tokens: most stay below 1,500.
CUT_CHARS: Final = 5000
RIDGE: Final = (1.0, 3.0, 10.0, 30.0, 100.0)  # penalties to choose from
FOLDS: Final = 5
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of M models on Q questions; NaN where a model was not asked."""

    models: tuple[str, ...]
    questions: tuple[str, ...]
    right: Array  # (M, Q) 0 or 1
    chars: Array  # (M, Q) length of the answer


@dataclass(frozen=True)
class Rasch:
    """P(right) = σ(ability - difficulty), difficulty normal with mean 0."""

    ability: Array  # (M,) logits
    difficulty_sd: float  # logits
    difficulty: Array  # (Q,) logits, posterior means

    def correlation(self, one: int, other: int, latent: float = 0.0) -> float:
        """Return the correlation of two models' outcomes over the questions.

        Args:
            one: A model.
            other: Another one.
            latent: Correlation of the normal latents behind the two, at one difficulty.
        """
        right = expit(self.ability[[one, other], None] - self.difficulty_sd * _NODES)  # (2, K)
        mean = right @ _WEIGHTS
        shared, own = math.sqrt(latent), math.sqrt(1.0 - latent)
        given = ndtr((ndtri(right)[:, :, None] - shared * _NODES) / own)  # (2, K, K)
        both = _WEIGHTS @ (given[0] * given[1]) @ _WEIGHTS
        return float((both - mean.prod()) / math.sqrt(float(np.prod(mean * (1.0 - mean)))))


def read_outcomes(path: Path) -> Outcomes:
    """Read outcomes from a CSV, gzipped or not.

    Raises:
        ConfigError: The file cannot be read or lacks a column.
    """
    try:
        opened: Any = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        models, place = np.unique([row["model"] for row in rows], return_inverse=True)
        questions, column = np.unique([row["id"] for row in rows], return_inverse=True)
        right, chars = np.full((2, len(models), len(questions)), np.nan)
        right[place, column] = [float(row["correct"]) for row in rows]
        chars[place, column] = [float(row["output_chars"]) for row in rows]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path}: wanted id, model, correct, output_chars ({error}).") from None
    if not rows:
        raise ConfigError(f"{path}: holds no outcome.")
    return Outcomes(tuple(models.tolist()), tuple(questions.tolist()), right, chars)


def fit_rasch(outcomes: Outcomes) -> Rasch:
    """Fit abilities and the spread of difficulty by marginal maximum likelihood."""
    asked = ~np.isnan(outcomes.right)
    right = np.nan_to_num(outcomes.right)
    models = len(outcomes.models)

    def posterior(point: Array) -> tuple[Array, Array, float]:
        """Return for the nodes P(right) (M, K), each question's weights (Q, K); log-likelihood."""
        logit = point[:models, None] - math.exp(point[models]) * _NODES
        wrong = asked * (1.0 - right)
        joint = right.T @ log_expit(logit) + wrong.T @ log_expit(-logit) + np.log(_WEIGHTS)
        top = joint.max(axis=1, keepdims=True)
        weight = np.exp(joint - top)
        total = weight.sum(axis=1, keepdims=True)
        return expit(logit), weight / total, float((np.log(total) + top).sum())

    def loss(point: Array) -> tuple[float, Array]:
        p, weight, log_likelihood = posterior(point)
        excess = right @ weight - (asked @ weight) * p
        spread = excess @ (math.exp(point[models]) * _NODES)
        return -log_likelihood, np.append(-excess.sum(axis=1), spread.sum())

    found = minimize(loss, np.zeros(models + 1), jac=True, method="L-BFGS-B").x
    sd = math.exp(found[models])
    return Rasch(found[:models], sd, posterior(found)[1] @ (sd * _NODES))


def same_model_correlation(outcomes: Outcomes, rasch: Rasch) -> float:
    """Return the mean correlation of latents at which two models agree as siblings do."""
    found = []
    for names in SIBLINGS:
        one, other = (outcomes.models.index(name) for name in names)
        measured = _phi(outcomes, one, other)

        def excess(
            latent: float, one: int = one, other: int = other, of: float = measured
        ) -> float:
            return rasch.correlation(one, other, latent) - of

        found.append(brentq(excess, 0.0, 0.99) if excess(0.0) < 0.0 else 0.0)
    return float(np.mean(found))


def _phi(outcomes: Outcomes, one: int, other: int) -> float:
    both = ~np.isnan(outcomes.right[one] + outcomes.right[other])
    return float(np.corrcoef(outcomes.right[one, both], outcomes.right[other, both])[0, 1])


def cut_right_frac(outcomes: Outcomes, rasch: Rasch) -> tuple[float, int]:
    """Return the share of cut answers that are right over the expected share, and their number.

    Expected at their questions' difficulty, from answers that do not run into the limit.
    """
    asked = ~np.isnan(outcomes.right + outcomes.chars)
    cut = asked & (np.nan_to_num(outcomes.chars) > CUT_CHARS)
    expected = expit(rasch.ability[:, None] - rasch.difficulty)
    return float(outcomes.right[cut].sum() / expected[cut].sum()), int(cut.sum())


def log_lengths(outcomes: Outcomes) -> Array:
    """Return (Q,) mean log lengths of the answers to a question, less each model's own mean."""
    log = np.log(np.maximum(outcomes.chars, 1.0))
    return np.asarray(np.nanmean(log - np.nanmean(log, axis=1, keepdims=True), axis=0))


def ridge(features: Array, target: Array, penalty: float) -> Array:
    """Return (D,) weights of a ridge regression on centred features (n, D)."""
    centred = features - features.mean(axis=0)
    gram = centred.T @ centred + penalty * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(gram, centred.T @ (target - target.mean())))


def cross_validated_r2(features: Array, target: Array, seed: int = 0) -> tuple[float, float]:
    """Return the R² of ridge regression out of sample, and the best penalty."""
    fold = np.random.default_rng(seed).permutation(len(target)) % FOLDS
    best = -math.inf, RIDGE[0]
    for penalty in RIDGE:
        predicted = np.zeros(len(target))
        for k in range(FOLDS):
            seen, unseen = fold != k, fold == k
            weights = ridge(features[seen], target[seen], penalty)
            level = target[seen].mean() - features[seen].mean(axis=0) @ weights
            predicted[unseen] = features[unseen] @ weights + level
        r2 = 1.0 - float(np.mean((target - predicted) ** 2) / target.var())
        best = max(best, (r2, penalty))
    return best


def measure(outcomes: Outcomes, ids: Sequence[str], embeddings: Array) -> tuple[Any, Array]:
    """Return all quantities, and the direction (D,) of the embedding in which difficulty rises.

    Args:
        outcomes: Of the models.
        ids: (n,) questions with a text.
        embeddings: (n, D) of their texts.
    """
    rasch = fit_rasch(outcomes)
    column = {name: index for index, name in enumerate(outcomes.questions)}
    known = [i for i, name in enumerate(ids) if name in column]
    if not known:
        raise ConfigError("the questions have no id in common with the outcomes.")
    places = [column[ids[i]] for i in known]
    features = np.asarray(embeddings, np.float64)[known]
    difficulty, lengths = rasch.difficulty, log_lengths(outcomes)
    r2, penalty = cross_validated_r2(features, difficulty[places])
    pairs = list(combinations(range(len(outcomes.models)), 2))
    frac, cuts = cut_right_frac(outcomes, rasch)
    standard = (difficulty - difficulty.mean()) / difficulty.std()
    quantities = {
        "difficulty_sd": (
            rasch.difficulty_sd,
            "spread of difficulty, logits (Rasch model, marginal maximum likelihood)",
            "quality.difficulty_sd of all workloads",
        ),
        "model_correlation_measured": (
            float(np.mean([_phi(outcomes, *pair) for pair in pairs])),
            f"mean correlation of two models' outcomes ({len(pairs)} pairs)",
            "check: it is not fitted",
        ),
        "model_correlation_predicted": (
            float(np.mean([rasch.correlation(*pair) for pair in pairs])),
            "the same, as this spread of difficulty implies it",
            "check: it is not fitted",
        ),
        "latent_correlation": (
            same_model_correlation(outcomes, rasch),
            "of the normal latents of two siblings at one difficulty: for two calls of one model",
            "quality.latent_correlation of all workloads",
        ),
        "truncated_right_frac": (
            frac,
            f"right among {cuts} answers that ran into the limit, over the expected share",
            "quality.truncated_right_frac of all workloads",
        ),
        "difficulty_slope": (
            float(np.polyfit(standard, lengths, 1)[0]),
            "log answer length per standard deviation of difficulty",
            "output.difficulty_slope of all workloads",
        ),
        "length_sd_between_questions": (
            float(lengths.std()),
            "sd of the mean log answer length between questions",
            "prior of output.sigma_query",
        ),
        "embedding_difficulty_r2": (
            r2,
            f"of difficulty, 5-fold ridge regression on the embedding, {len(known)} questions",
            "tasks.difficulty.VISIBLE_R2 is chosen to give it",
        ),
    }
    table = {
        name: {"value": float(f"{value:.4g}"), "what": what, "used_for": used}
        for name, (value, what, used) in quantities.items()
    }
    direction = ridge(features, difficulty[places], penalty)
    return table, direction / np.linalg.norm(direction)


def main(
    outcomes: Annotated[Path, typer.Argument(help="CSV: id, model, correct, output_chars.")],
    tasks: Annotated[Path, typer.Argument(help="Folder with the questions (mmlu_pro).")],
    out: Annotated[Path, typer.Option(help="Quantities, JSON.")] = OUTCOMES,
    direction: Annotated[
        Path, typer.Option(help="Direction of rising difficulty: float16 (384,), .npy.")
    ] = Path("inframind_gym/tasks/data/difficulty_direction.npy"),
) -> None:
    """Measure difficulty, cut answers and agreement from the outcomes of many models."""
    with friendly():
        questions = load_tasks(tasks, datasets=["mmlu_pro"], split="all")
        table, weights = measure(
            read_outcomes(outcomes), questions.ids, cast(Array, questions.embeddings)
        )
        replace_text(out, json.dumps(table, indent=1) + "\n")
    np.save(direction, weights.astype(np.float16), allow_pickle=False)


if __name__ == "__main__":
    typer.run(main)
