"""Measure difficulty from the outcomes of many models: ``python -m benchmarks.fit.outcomes``.

Reads outcomes (a CSV of id, model, correct, output_chars: 29 models on 3,000 questions of MMLU-Pro)
and the questions, and fits one Rasch model (`inframind_gym.calibration.outcomes`). The quality
model's constants of difficulty, of a cut answer and of two calls of one model come from here. So
does the direction of the embedding space along which real questions get harder, which the package
ships.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, cast

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri

from benchmarks.fit.constants import OUTCOMES
from inframind_gym.calibration.outcomes import Outcomes, Rasch, fit_rasch
from inframind_gym.calibration.outcomes import read_outcomes as read_table
from inframind_gym.errors import ConfigError, friendly
from inframind_gym.files import replace_text
from inframind_gym.simulator.item_response import NODES, WEIGHTS
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
PRICES: Final = np.geomspace(0.01, 3.0, 60)  # of the largest model's cost, right answers
# Pools to choose a model from, and billions of parameters, which stand for seconds of a GPU.
POOLS: Final = {
    "sizes": {
        "Meta-Llama-3_1-70B-Instruct": 70.0,
        "Meta-Llama-3_1-8B-Instruct": 8.0,
        "Phi-3-mini-4k-instruct": 3.8,
    },
    "specialists": {  # of one level, but for the first: what differs is what they are good at
        "Qwen1.5-72B-Chat": 72.0,
        "Yi-34B": 34.0,
        "Mixtral-8x7B-Instruct-v0.1": 13.0,
        "mathstral-7B": 7.0,
        "Phi-3-mini-4k-instruct": 3.8,
    },
}


def read_outcomes(path: Path) -> Outcomes:
    """Read outcomes of MMLU-Pro with the characters of the answers.

    Raises:
        ConfigError: The file cannot be read or lacks a column.
    """
    return read_table(path, {"length": "output_chars"}, "Commonsense")["Commonsense"]


def correlation(rasch: Rasch, one: int, other: int, latent: float = 0.0) -> float:
    """Return the correlation of two models' outcomes over the questions.

    Args:
        rasch: Of the models.
        one: A model.
        other: Another one.
        latent: Correlation of the normal latents behind the two, at one difficulty.
    """
    right = expit(rasch.ability[[one, other], None] - rasch.difficulty_sd * NODES)  # (2, K)
    mean = right @ WEIGHTS
    shared, own = math.sqrt(latent), math.sqrt(1.0 - latent)
    given = ndtr((ndtri(right)[:, :, None] - shared * NODES) / own)  # (2, K, K)
    both = WEIGHTS @ (given[0] * given[1]) @ WEIGHTS
    return float((both - mean.prod()) / math.sqrt(float(np.prod(mean * (1.0 - mean)))))


def same_model_correlation(outcomes: Outcomes, rasch: Rasch) -> float:
    """Return the mean correlation of latents at which two models agree as siblings do."""
    found = []
    for names in SIBLINGS:
        one, other = (outcomes.models.index(name) for name in names)
        measured = _phi(outcomes, one, other)

        def excess(
            latent: float, one: int = one, other: int = other, of: float = measured
        ) -> float:
            return correlation(rasch, one, other, latent) - of

        found.append(brentq(excess, 0.0, 0.99) if excess(0.0) < 0.0 else 0.0)
    return float(np.mean(found))


def _phi(outcomes: Outcomes, one: int, other: int) -> float:
    both = ~np.isnan(outcomes.right[one] + outcomes.right[other])
    return float(np.corrcoef(outcomes.right[one, both], outcomes.right[other, both])[0, 1])


def cut_right_frac(outcomes: Outcomes, rasch: Rasch) -> tuple[float, int]:
    """Return the share of cut answers that are right over the expected share, and their number.

    Expected at their questions' difficulty, from answers that do not run into the limit.
    """
    asked = ~np.isnan(outcomes.right + outcomes.length)
    cut = asked & (np.nan_to_num(outcomes.length) > CUT_CHARS)
    expected = expit(rasch.ability[:, None] - rasch.difficulty)
    return float(outcomes.right[cut].sum() / expected[cut].sum()), int(cut.sum())


def log_lengths(outcomes: Outcomes) -> Array:
    """Return (Q,) mean log lengths of the answers to a question, less each model's own mean."""
    log = np.log(np.maximum(outcomes.length, 1.0))
    return np.asarray(np.nanmean(log - np.nanmean(log, axis=1, keepdims=True), axis=0))


def ridge(features: Array, target: Array, penalty: float) -> Array:
    """Return (D,) weights of a ridge regression on centred features (n, D)."""
    centred = features - features.mean(axis=0)
    gram = centred.T @ centred + penalty * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(gram, centred.T @ (target - target.mean())))


def cross_validated(features: Array, target: Array, seed: int = 0) -> tuple[Array, float, float]:
    """Return what ridge regression predicts out of sample (n,), its R², and the best penalty."""
    fold = np.random.default_rng(seed).permutation(len(target)) % FOLDS
    best = target, -math.inf, RIDGE[0]
    for penalty in RIDGE:
        predicted = np.zeros(len(target))
        for k in range(FOLDS):
            seen, unseen = fold != k, fold == k
            weights = ridge(features[seen], target[seen], penalty)
            level = target[seen].mean() - features[seen].mean(axis=0) @ weights
            predicted[unseen] = features[unseen] @ weights + level
        r2 = 1.0 - float(np.mean((target - predicted) ** 2) / target.var())
        if r2 > best[1]:
            best = predicted, r2, penalty
    return best


def reading_gain(right: Array, features: Array, cost: Array) -> tuple[float, float]:
    """Return the right answers that reading a question adds, and knowing its outcomes would.

    At a price each question goes to the model with the best balance of its chance, by ridge
    regression on the embedding or by the outcomes, and its cost. Who does not read draws among
    models, for the same mean cost. The price with the largest difference on one half of the
    questions is judged on the other.

    Args:
        right: (M, n) outcomes, nan where a model was not asked.
        features: (n, D) embeddings.
        cost: (M,) of an answer.
    """
    asked = ~np.isnan(right).any(axis=0)
    right, cost = right[:, asked], cost / cost.max()
    chances = np.array([cross_validated(features[asked], row)[0] for row in right])
    gains = np.zeros((2, 2, len(PRICES)))  # of what is known, half, price
    for k, known in enumerate((chances, right)):
        for half in range(2):
            asked_of, chance = right[:, half::2], known[:, half::2]
            for i, price in enumerate(PRICES):
                chosen = (chance - price * cost[:, None]).argmax(axis=0)
                paid = cost[chosen].mean()
                # By duality, the best mixture of models that costs as much.
                blind = (asked_of.mean(axis=1) + PRICES[:, None] * (paid - cost)).max(axis=1).min()
                solved = asked_of[chosen, np.arange(len(chosen))].mean()
                gains[k, half, i] = solved - blind
    best = gains[:, ::-1].argmax(axis=2)  # on the other half
    reading, knowing = np.take_along_axis(gains, best[:, :, None], axis=2).mean(axis=(1, 2))
    return float(reading), float(knowing)


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
    _, r2, penalty = cross_validated(features, difficulty[places])
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
            float(np.mean([correlation(rasch, *pair) for pair in pairs])),
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
            "tasks.taskset.VISIBLE_R2 is chosen to give it",
        ),
    }
    for pool, sizes in POOLS.items():
        right = outcomes.right[[outcomes.models.index(name) for name in sizes]][:, places]
        reading, knowing = reading_gain(right, features, np.array(list(sizes.values())))
        about = f"right answers more at the same cost, {', '.join(sizes)}, at the best price"
        for name, value in {"reading_gain": reading, "knowing_gain": knowing}.items():
            quantities[f"{name}_{pool}"] = value, about, "docs/concepts/quality_model.md"
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
