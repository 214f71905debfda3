"""Abilities, difficulty and answer lengths from a table of outcomes: who got which question right.

The Rasch model, P(right) = σ(ability - difficulty) with normal difficulties, is fitted by marginal
maximum likelihood (Bock and Aitkin, Psychometrika 46, 1981). Newton steps use the observed
information (Louis, JRSS B 44, 1982), whose inverse gives the standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, did_you_mean, shortened, unknown
from inframind_gym.files import read_csv
from inframind_gym.simulator.item_response import NODES, WEIGHTS, sigmoid
from inframind_gym.simulator.workload import Domain

Array = NDArray[np.float64]

# Names under which tables publish a column, in the order in which they are looked for.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "query": (
        *("id", "query_id", "question_id", "sample_id", "prompt_id", "query", "question", "prompt"),
        "text",
    ),
    "model": ("model", "model_name", "model_id", "llm"),
    "correct": ("correct", "is_correct", "right", "solved", "score", "label"),
    "domain": ("domain",),
    "length": (
        *("completion_tokens", "output_tokens", "generated_tokens", "num_output_tokens"),
        *("output_chars", "completion_chars", "response_chars"),
    ),
    "prompt": ("prompt_tokens", "input_tokens", "context_tokens", "num_input_tokens"),
}
DOMAINS: Final[Mapping[str, Domain]] = {name.lower(): name for name in get_args(Domain)}
_OPTIONAL: Final = ("domain", "prompt")
_RIGHT: Final = {"1": 1.0, "1.0": 1.0, "true": 1.0, "0": 0.0, "0.0": 0.0, "false": 0.0}
CHARS_PER_TOKEN: Final = 4.0  # as `inframind_gym.tasks.estimate_tokens`
MOST_CELLS: Final = 20_000_000  # models x questions
LEAST_QUESTIONS: Final = 20

# Weak priors: they decide where a table says nothing (a model that is always right; the spread of
# difficulty from one model alone). 29 models on MMLU-Pro have a spread of 1.97 logits.
TYPICAL_SD: Final = 1.97
_LOG_SD_SD: Final = 0.5
_ABILITY_SD: Final = 5.0
_STEPS: Final = 50
_CONVERGED: Final = 1e-8  # of the log-likelihood, relative


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of M models on Q questions; NaN where a model was not asked."""

    models: tuple[str, ...]
    questions: tuple[str, ...]
    right: Array  # (M, Q) 0 or 1
    length: Array  # (M, Q) of the answer, in `unit`; NaN where it is not known
    unit: str = "tokens"  # or "characters"
    prompt_tokens: float | None = None  # mean

    def without(self, held_out: NDArray[np.bool_]) -> Outcomes:
        """Return the outcomes with some cells (M, Q) taken away."""
        return replace(self, right=np.where(held_out, np.nan, self.right))


@dataclass(frozen=True)
class Rasch:
    """P(right) = σ(ability - difficulty), difficulty normal with mean 0."""

    ability: Array  # (M,) logits
    ability_error: Array  # (M,) standard errors
    difficulty_sd: float  # logits
    difficulty_sd_error: float  # standard error
    posterior: Array  # (Q, K) weights of NODES, which times `difficulty_sd` are difficulties

    @property
    def difficulty(self) -> Array:
        """Posterior means of the questions' difficulties, (Q,) logits."""
        return np.asarray(self.difficulty_sd * (self.posterior @ NODES))

    def chances(self) -> Array:
        """Return P(right) of each model on each question, (M, Q)."""
        by_node = sigmoid(self.ability[:, None] - self.difficulty_sd * NODES)
        return np.asarray(by_node @ self.posterior.T)


def read_outcomes(
    path: Path, columns: Mapping[str, str] | None = None, domain: Domain | None = None
) -> dict[Domain, Outcomes]:
    """Read outcomes from a CSV file with a header, gzipped or not.

    Args:
        path: One row for each model and question.
        columns: Meaning (a key of `COLUMNS`) -> name of the column; the others are found by their
            usual names.
        domain: Of all questions; None reads it from the column.

    Returns:
        Domain -> its outcomes.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or has a row that makes no sense; the
            message names line and column.
    """
    rows = read_csv(path)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    place = _places(path, header, columns or {})
    if not place:
        raise ConfigError(f"{path}: holds no outcome.")
    if domain is None and "domain" not in place:
        raise ConfigError(
            f"{path}:1: there is no column domain. Say what is asked: --domain Math (numbers, "
            "formulas), Code (programs) or Commonsense (knowledge, choices)."
        )
    cells: dict[Domain, dict[tuple[str, str], tuple[int, float, float]]] = {}
    prompts: dict[Domain, list[float]] = {}
    for line, row in rows:
        if not any(row):
            continue
        if len(row) < len(header):
            raise ConfigError(f"{path}:{line}: has {len(row)} columns, the header {len(header)}.")
        text = {meaning: row[column].strip() for meaning, column in place.items()}
        for meaning in ("query", "model"):
            if not text[meaning]:
                raise _wrong(path, line, header[place[meaning]], "", "a text")
        right = _RIGHT.get(text["correct"].lower())
        if right is None:
            name = header[place["correct"]]
            wanted = "0, 1, true or false (of scores between 0 and 1, say what counts as right)"
            raise _wrong(path, line, name, text["correct"], wanted)
        length = _count(path, line, header[place["length"]], text["length"])
        key = text["model"], text["query"]
        of = domain or DOMAINS.get(text["domain"].lower())
        if of is None:
            raise ConfigError(
                f"{path}:{line}: column {header[place['domain']]}: "
                f"{unknown('domain', text['domain'], DOMAINS.values())} Rename it in the table, or "
                "give one for all rows: --domain Math, Code or Commonsense."
            )
        own = cells.setdefault(of, {})
        if key in own:
            raise ConfigError(
                f"{path}:{line}: model {shortened(key[0])!r} on {shortened(key[1], 40)!r} is given "
                f"twice, first in line {own[key][0]}. Keep one."
            )
        own[key] = line, right, length
        if "prompt" in place:
            prompt = _count(path, line, header[place["prompt"]], text["prompt"])
            prompts.setdefault(of, []).append(prompt)
    if not cells:
        raise ConfigError(f"{path}: holds no outcome.")
    unit = "characters" if "char" in header[place["length"]].lower() else "tokens"
    found = {}
    for of, own in cells.items():
        made = _table(path, own)
        known = [tokens for tokens in prompts.get(of, ()) if not math.isnan(tokens)]
        mean = sum(known) / len(known) if known else None
        found[of] = replace(made, unit=unit, prompt_tokens=mean)
    return found


def _places(path: Path, header: list[str], columns: Mapping[str, str]) -> dict[str, int]:
    """Return the column of each meaning; nothing for an empty file."""
    names = [name.lower() for name in header]
    place, missing, options = {}, [], []
    for meaning, usual in COLUMNS.items():
        given = columns.get(meaning)
        wanted = usual if given is None else (given.lower(),)
        column = next((names.index(name) for name in wanted if name in names), None)
        if column is not None:
            place[meaning] = column
        elif header and (given is not None or meaning not in _OPTIONAL):
            asked = given if given is not None else f"of {meaning} ({', '.join(usual)})"
            hint = did_you_mean(given, header) if given is not None else ""
            missing.append(f"there is no column {asked}.{hint}")
            options.append(f"--column {meaning}=NAME")
    if missing:
        other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
        if other is not None:
            raise ConfigError(f"{path}:1: columns are separated by {other!r}. Write commas.")
        found = shortened(", ".join(header), 200)
        raise ConfigError(
            f"{path}:1: {' '.join(missing)} Found: {found}. Name: {' '.join(options)}."
        )
    return place


def _count(path: Path, line: int, column: str, text: str) -> float:
    """Return a number of tokens or characters; NaN for an empty cell."""
    try:
        number = float(text) if text else math.nan
    except ValueError:
        number = -1.0
    if number < 0.0 or math.isinf(number) or (text and math.isnan(number)):
        raise _wrong(path, line, column, text, "a number, 0 or more (empty: not known)")
    return number


def _wrong(path: Path, line: int, column: str, text: str, wanted: str) -> ConfigError:
    return ConfigError(
        f"{path}:{line}: column {shortened(column, 40)}: {shortened(text, 40)!r} is not {wanted}. "
        "Correct or remove the line."
    )


def _table(path: Path, cells: Mapping[tuple[str, str], tuple[int, float, float]]) -> Outcomes:
    models, place = np.unique([model for model, _ in cells], return_inverse=True)
    questions, column = np.unique([question for _, question in cells], return_inverse=True)
    if len(models) * len(questions) > MOST_CELLS:
        raise ConfigError(
            f"{path}: {len(models):,} models times {len(questions):,} questions are more than "
            f"{MOST_CELLS:,}. Is the column of the model right? Else split the table."
        )
    right, length = np.full((2, len(models), len(questions)), np.nan)
    _, right[place, column], length[place, column] = np.array(list(cells.values())).T
    return Outcomes(tuple(models.tolist()), tuple(questions.tolist()), right, length)


def fit_rasch(outcomes: Outcomes) -> Rasch:
    """Fit abilities and the spread of difficulty by marginal maximum likelihood."""
    asked = ~np.isnan(outcomes.right)
    right = np.nan_to_num(outcomes.right)
    models = len(outcomes.models)
    precision = np.append(np.full(models, _ABILITY_SD**-2), _LOG_SD_SD**-2)
    centre = np.append(np.zeros(models), math.log(TYPICAL_SD))
    point = centre.copy()
    posterior, value = _posterior(point, right, asked)
    value -= 0.5 * float(precision @ (point - centre) ** 2)
    for _ in range(_STEPS):
        score, certain, information = _derivatives(point, right, asked, posterior)
        score -= precision * (point - centre)
        information[np.diag_indices(models + 1)] += precision
        if np.linalg.eigvalsh(information)[0] <= 0.0:  # far from the maximum
            information = certain + np.diag(precision)
        step, before = np.linalg.solve(information, score), value
        for halving in range(30):
            tried = point + 0.5**halving * step
            posterior, value = _posterior(tried, right, asked)
            value -= 0.5 * float(precision @ (tried - centre) ** 2)
            if value >= before:
                break
        point = tried
        if value - before < _CONVERGED * abs(value):
            break
    information = _derivatives(point, right, asked, posterior)[2] + np.diag(precision)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    sd = math.exp(point[models])
    return Rasch(point[:models], errors[:models], sd, sd * float(errors[models]), posterior)


def _posterior(point: Array, right: Array, asked: NDArray[np.bool_]) -> tuple[Array, float]:
    """Return each question's weights of the nodes (Q, K), and the log-likelihood."""
    logit = point[:-1, None] - math.exp(point[-1]) * NODES  # (M, K)
    wrong = asked * (1.0 - right)
    joint = -right.T @ np.logaddexp(0.0, -logit) - wrong.T @ np.logaddexp(0.0, logit)
    joint += np.log(WEIGHTS)
    top = joint.max(axis=1, keepdims=True)
    weight = np.exp(joint - top)
    total = weight.sum(axis=1, keepdims=True)
    return weight / total, float((np.log(total) + top).sum())


def _derivatives(
    point: Array, right: Array, asked: NDArray[np.bool_], posterior: Array
) -> tuple[Array, Array, Array]:
    """Return the score (M + 1,) of abilities and log spread, and two informations, (M + 1, M + 1).

    The first would hold if the difficulties were known; the second is the observed one.
    """
    slope = -math.exp(point[-1]) * NODES  # (K,) of the logit, by the log spread
    p = sigmoid(point[:-1, None] + slope)  # (M, K)
    variance = (asked @ posterior) * p * (1.0 - p)  # (M, K), summed over the questions
    models = len(p)
    certain = np.diag(np.append(variance.sum(axis=1), variance.sum(axis=0) @ slope**2))
    certain[models, :models] = certain[:models, models] = variance @ slope
    each = np.zeros((right.shape[1], models + 1))  # scores of the questions
    square = np.zeros((models + 1, models + 1))
    for k in range(len(NODES)):
        own = np.empty_like(each)
        own[:, :models] = (right - asked * p[:, k, None]).T
        own[:, models] = own[:, :models].sum(axis=1) * slope[k]
        weighted = own * posterior[:, k, None]
        each += weighted
        square += weighted.T @ own
    curve = each[:, models].sum()  # the logit is exponential in the log spread
    certain[models, models] -= curve
    return each.sum(axis=0), certain, certain - square + each.T @ each


@dataclass(frozen=True)
class HeldOut:
    """Prediction of outcomes that were not fitted, for M models."""

    count: NDArray[np.int64]  # (M,) outcomes
    measured: Array  # (M,) share of right answers; NaN where none was held out
    predicted: Array  # (M,)
    chance_sd: Array  # (M,) of their difference if the model is true: both shares are of a sample


def hold_out(outcomes: Outcomes, share: float, seed: int = 0) -> HeldOut:
    """Fit all but a random share of the outcomes, and predict that share.

    A question's difficulty is inferred from the other models that answered it.
    """
    drawn = np.random.default_rng(seed).random(outcomes.right.shape) < share
    asked = ~np.isnan(outcomes.right)
    held_out, fitted = drawn & asked, ~drawn & asked
    chances = fit_rasch(outcomes.without(held_out)).chances()
    count, others = held_out.sum(axis=1), fitted.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (chances * (1.0 - chances) * held_out).sum(axis=1) / count  # of one outcome
        return HeldOut(
            count=count,
            measured=(np.nan_to_num(outcomes.right) * held_out).sum(axis=1) / count,
            predicted=(chances * held_out).sum(axis=1) / count,
            chance_sd=np.sqrt(variance * (1.0 / count + 1.0 / others)),
        )


@dataclass(frozen=True)
class Lengths:
    """Log-normal lengths of answers, in tokens, of M models."""

    median: Array  # (M,) tokens; NaN for a model without a length
    median_error: Array  # (M,) standard errors, tokens
    spread: Array  # (M,) sd of log length
    slope: Array  # (M,) log length for each standard deviation of difficulty
    slope_pooled: float
    sigma_query: float  # sd of log length between questions, beyond difficulty
    sigma_call: float  # sd of log length between models on one question


def fit_lengths(outcomes: Outcomes, rasch: Rasch) -> Lengths:
    """Fit medians, spreads and the slope with difficulty.

    The slope is the regression on the posterior means of difficulty, which their uncertainty does
    not bias. Answers of different models to one question agree by `sigma_query` and the slope.
    """
    scale = CHARS_PER_TOKEN if outcomes.unit == "characters" else 1.0
    length = np.where(np.isnan(outcomes.right), np.nan, np.maximum(outcomes.length / scale, 1.0))
    known = ~np.isnan(length)
    count = known.sum(axis=1)
    log = np.log(np.where(known, length, 1.0))
    middle = np.array(
        [np.median(own[of]) if of.any() else np.nan for own, of in zip(log, known, strict=True)]
    )
    residual = np.where(known, log - log.sum(axis=1, where=known, keepdims=True) / _least(count), 0)
    spread = np.sqrt((residual**2).sum(axis=1) / _least(count)[:, 0])
    z = rasch.posterior @ NODES
    moments = residual @ z, known @ z**2
    slope = np.divide(*moments, out=np.zeros(len(count)), where=moments[1] > 0)
    pooled = float(moments[0].sum() / max(moments[1].sum(), 1e-9))
    answers = known.sum(axis=0)
    pairs = float((answers * (answers - 1)).sum())
    variance = float((residual**2).sum() / max(known.sum(), 1))
    between = ((residual.sum(axis=0) ** 2).sum() - (residual**2).sum()) / pairs if pairs else 0.5
    between = between if pairs else 0.5 * variance
    median = np.exp(middle)
    return Lengths(
        median=median,
        median_error=1.2533 * spread * median / np.sqrt(np.maximum(count, 1)),  # sqrt(π / 2)
        spread=spread,
        slope=slope,
        slope_pooled=pooled,
        sigma_query=math.sqrt(max(between - pooled**2, 0.0)),
        sigma_call=math.sqrt(max(variance - max(between, pooled**2), 0.0)),
    )


def _least(count: NDArray[np.int64]) -> Array:
    return np.maximum(count, 1)[:, None].astype(np.float64)
