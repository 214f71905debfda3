"""A workload from a table of outcomes: who got which question right, and in how many tokens.

The Rasch model, P(right) = σ(ability - difficulty) with normal difficulties, is fitted by marginal
maximum likelihood (Bock and Aitkin, Psychometrika 46, 1981). Newton steps use the observed
information (Louis, JRSS B 44, 1982), whose inverse gives the standard errors.

What one call's outcomes cannot show (the gains of strategies, roles and several agents, a router's
mixes) is taken from a shipped workload of the same domain, and the file says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, did_you_mean, shortened, unknown
from inframind_gym.files import read_csv
from inframind_gym.simulator.item_response import NODES, WEIGHTS, accuracy, sigmoid
from inframind_gym.simulator.workload import Domain, load_workload
from inframind_gym.tasks import DOMAINS as TASK_DOMAINS
from inframind_gym.tasks import load_tasks

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
# Shipped workloads from which that is taken which a table of single calls does not show.
LIKE: Final[Mapping[Domain, str]] = {"Math": "math", "Code": "mbpp", "Commonsense": "mmlu_pro"}


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of M models on Q questions; NaN where a model was not asked."""

    models: tuple[str, ...]
    questions: tuple[str, ...]
    right: Array  # (M, Q) 0 or 1
    length: Array  # (M, Q) of the answer, in `unit`; NaN where it is not known
    unit: str = "tokens"  # or "characters"
    prompt_tokens: float | None = None  # mean


@dataclass(frozen=True)
class Rasch:
    """P(right) = σ(ability - difficulty), difficulty normal with mean 0."""

    ability: Array  # (M,) logits
    ability_error: Array  # (M,) standard errors
    difficulty_sd: float  # logits
    difficulty_sd_error: float  # standard error
    posterior: Array  # (Q, K) weights of NODES, which times `difficulty_sd` are difficulties

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

        def wrong(
            meaning: str, wanted: str, line: int = line, text: Mapping[str, str] = text
        ) -> ConfigError:
            name = shortened(header[place[meaning]], 40)
            found = shortened(text[meaning], 40)
            return ConfigError(f"{path}:{line}: column {name}: {found!r} is not {wanted}.")

        def count(meaning: str, text: Mapping[str, str] = text, wrong: Any = wrong) -> float:
            try:
                number = float(text[meaning] or "nan")
            except ValueError:
                number = -1.0
            if number < 0.0 or math.isinf(number) or (text[meaning] and math.isnan(number)):
                raise wrong(meaning, "a number, 0 or more (empty: not known)")
            return number

        for meaning in ("query", "model"):
            if not text[meaning]:
                raise wrong(meaning, "a text")
        right = _RIGHT.get(text["correct"].lower())
        if right is None:
            scores = "(of scores between 0 and 1, say what counts as right)"
            raise wrong("correct", f"0, 1, true or false {scores}")
        of = domain or DOMAINS.get(text["domain"].lower())
        if of is None:
            known = unknown("domain", text["domain"], DOMAINS.values())
            raise wrong("domain", f"known ({known}) Rename it, or give --domain for all rows")
        key, own = (text["model"], text["query"]), cells.setdefault(of, {})
        if key in own:
            raise ConfigError(
                f"{path}:{line}: model {shortened(key[0])!r} on {shortened(key[1], 40)!r} is given "
                f"twice, first in line {own[key][0]}. Keep one."
            )
        own[key] = line, right, count("length")
        if "prompt" in place and not math.isnan(tokens := count("prompt")):
            prompts.setdefault(of, []).append(tokens)
    if not cells:
        raise ConfigError(f"{path}: holds no outcome.")
    unit = "characters" if "char" in header[place["length"]].lower() else "tokens"
    found = {}
    for of, own in cells.items():
        models, index = np.unique([model for model, _ in own], return_inverse=True)
        questions, column = np.unique([question for _, question in own], return_inverse=True)
        if len(models) * len(questions) > MOST_CELLS:
            raise ConfigError(
                f"{path}: {len(models):,} models times {len(questions):,} questions are more than "
                f"{MOST_CELLS:,}. Is the column of the model right? Else split the table."
            )
        correct, length = np.full((2, len(models), len(questions)), np.nan)
        _, correct[index, column], length[index, column] = np.array(list(own.values())).T
        known_tokens = prompts.get(of, [])
        mean = sum(known_tokens) / len(known_tokens) if known_tokens else None
        names = tuple(models.tolist()), tuple(questions.tolist())
        found[of] = Outcomes(*names, correct, length, unit, mean)
    return found


def _places(path: Path, header: list[str], columns: Mapping[str, str]) -> dict[str, int]:
    """Return the column of each meaning."""
    if not header:
        raise ConfigError(f"{path}: holds no outcome.")
    names = [name.lower() for name in header]
    place, missing, options = {}, [], []
    for meaning, usual in COLUMNS.items():
        given = columns.get(meaning)
        wanted = usual if given is None else (given.lower(),)
        column = next((names.index(name) for name in wanted if name in names), None)
        if column is not None:
            place[meaning] = column
        elif given is not None or meaning not in ("domain", "prompt"):
            asked = given if given is not None else f"of {meaning} ({', '.join(usual)})"
            hint = did_you_mean(given, header) if given is not None else ""
            missing.append(f"there is no column {asked}.{hint}")
            options.append(f"--column {meaning}=NAME")
    if missing and len(header) == 1 and (mark := next((m for m in ";\t|" if m in header[0]), "")):
        raise ConfigError(f"{path}:1: columns are separated by {mark!r}. Write commas.")
    if missing:
        found = shortened(", ".join(header), 200)
        raise ConfigError(
            f"{path}:1: {' '.join(missing)} Found: {found}. Name: {' '.join(options)}."
        )
    return place


# Fits


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
    shown = replace(outcomes, right=np.where(held_out, np.nan, outcomes.right))
    chances = fit_rasch(shown).chances()
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
    least = np.maximum(count, 1)[:, None].astype(np.float64)
    log = np.log(np.where(known, length, 1.0))
    middle = np.array(
        [np.median(own[of]) if of.any() else np.nan for own, of in zip(log, known, strict=True)]
    )
    residual = np.where(known, log - log.sum(axis=1, where=known, keepdims=True) / least, 0)
    spread = np.sqrt((residual**2).sum(axis=1) / least[:, 0])
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


@dataclass(frozen=True)
class DomainFit:
    """Abilities and answer lengths of M models, fitted to the outcomes of one domain."""

    domain: Domain
    outcomes: Outcomes
    rasch: Rasch
    lengths: Lengths
    checked: HeldOut

    @property
    def asked(self) -> Any:
        """Outcomes of each model, (M,)."""
        return (~np.isnan(self.outcomes.right)).sum(axis=1)


def fit_domain(domain: Domain, outcomes: Outcomes, holdout: float) -> DomainFit:
    """Fit the outcomes of one domain, and check on a share of them that is held out.

    Raises:
        ConfigError: There are too few questions, or a model has no length.
    """
    if len(outcomes.questions) < LEAST_QUESTIONS:
        raise ConfigError(
            f"{domain}: {len(outcomes.questions)} questions are too few; at least "
            f"{LEAST_QUESTIONS} are needed."
        )
    rasch = fit_rasch(outcomes)
    lengths = fit_lengths(outcomes, rasch)
    for model, median in zip(outcomes.models, lengths.median, strict=True):
        if not math.isfinite(median):
            raise ConfigError(f"{domain}: model {model!r} has no answer with a length.")
    return DomainFit(domain, outcomes, rasch, lengths, hold_out(outcomes, holdout))


# The workload and its report


def workload_yaml(
    fit: DomainFit, source: str, name: str, dataset: str, aliases: Mapping[str, str]
) -> str:
    """Return a workload as YAML, with the origin and the errors of its numbers in comments.

    It has the models of `aliases`: alias -> name in the table.
    """
    like = load_workload(LIKE[fit.domain]).profile
    index = [fit.outcomes.models.index(model) for model in aliases.values()]
    rasch, lengths, asked = fit.rasch, fit.lengths, fit.asked
    models = []
    for alias, m in zip(aliases, index, strict=True):
        key = json.dumps(alias, ensure_ascii=False)
        median, ability = f"{lengths.median[m]:.4g}", f"{rasch.ability[m]:.3f}"
        models.append(
            f"  {key}: {{output_tokens_median: {median}, ability: {ability}}}"
            f"  # ± {lengths.median_error[m]:.2g}, ± {rasch.ability_error[m]:.2f}; "
            f"{asked[m]} outcomes"
        )
    taken = like.model_dump(include={"planner", "strategy_mix", "prompt", "agents"})
    taken["agents"]["visible_tests"] = 0.0
    prompts = fit.outcomes.prompt_tokens
    if prompts is not None:  # beyond the task's own text
        tasks = load_tasks("builtin", split="all")
        own = tasks.prompt_tokens[tasks.domain == TASK_DOMAINS.index(fit.domain)].mean()
        taken["prompt"]["overhead_tokens"] = max(0, round(prompts - float(own)))
    output = {
        "sigma_query": round(lengths.sigma_query, 3),
        "sigma_call": round(lengths.sigma_call, 3),
        "difficulty_slope": round(lengths.slope_pooled, 4),
        "strategy_factor": like.output.strategy_factor,
        "final_factor": like.output.final_factor,
    }
    quality = {
        **like.quality.model_dump(mode="json"),
        "discrimination": 1.0,
        "difficulty_sd": round(rasch.difficulty_sd, 4),
    }
    chars = "; tokens are characters / 4 (an estimate)" if fit.outcomes.unit != "tokens" else ""
    overhead = "the table's mean prompt less the built-in tasks' own" if prompts else "as there"
    head = {"name": name, "description": f"Fitted to {source}", "num_queries": 500}
    return "\n".join(
        [
            f"# Fitted by `inframind workload fit` to {source}:",
            f"# {len(fit.outcomes.models)} models, {len(fit.outcomes.questions)} questions, "
            f"{asked.sum()} outcomes.",
            plain_yaml(head | {"dataset": dataset, "domain": fit.domain}),
            f"# Assumed, as the shipped workload {like.name} has it: a table of single calls does "
            "not show it.",
            f"# overhead_tokens: {overhead}. visible_tests: none.",
            plain_yaml(taken),
            "# Fitted: median answer length and ability (Rasch model), each with its standard "
            f"error{chars}.",
            f"# Add a model without outcomes by its score (percent right) on {dataset}:",
            f"#   my-model: {{output_tokens_median: 300, ability_from: {{{dataset}: 52.1}}}}",
            "models:",
            *models,
            "",
            "# Fitted: sigma_query, sigma_call, difficulty_slope (log length). Assumed: "
            "strategy_factor, final_factor.",
            plain_yaml({"output": output}),
            f"# Fitted: difficulty_sd, ± {rasch.difficulty_sd_error:.2g}. Assumed: the gains and "
            "the other numbers.",
            plain_yaml({"quality": quality}),
        ]
    )


def plain_yaml(sections: Mapping[str, Any]) -> str:
    """Return sections of a workload as YAML."""
    return yaml.safe_dump(dict(sections), sort_keys=False, allow_unicode=True, width=100)


def figures(fit: DomainFit) -> dict[str, Any]:
    """Return the figures of a fit, as JSON; shares are fractions, spreads those of log length."""
    rasch, lengths, checked = fit.rasch, fit.lengths, fit.checked
    columns = {
        "outcomes": fit.asked,
        "accuracy": np.nanmean(fit.outcomes.right, axis=1),
        "accuracy_fitted": accuracy(rasch.ability, rasch.difficulty_sd),
        "ability": rasch.ability,
        "ability_error": rasch.ability_error,
        "tokens_median": lengths.median,
        "tokens_median_error": lengths.median_error,
        "length_spread": lengths.spread,
        "length_slope": lengths.slope,
        "held_out": checked.count,
        "held_out_measured": checked.measured,
        "held_out_predicted": checked.predicted,
        "held_out_chance_sd": checked.chance_sd,
    }
    rows: list[dict[str, Any]] = [{"model": model} for model in fit.outcomes.models]
    for name, values in columns.items():
        for row, value in zip(rows, values.tolist(), strict=True):
            row[name] = float(f"{value:.6g}") if math.isfinite(value) else None
    error = 100.0 * np.abs(checked.predicted - checked.measured)[checked.count > 0]
    chance = 100.0 * checked.chance_sd[checked.count > 0]
    mean, square, by_chance = (
        float(of.mean()) if len(of) else 0.0 for of in (error, error**2, chance**2)
    )
    return {
        "domain": fit.domain,
        "questions": len(fit.outcomes.questions),
        "difficulty_sd": rasch.difficulty_sd,
        "difficulty_sd_error": rasch.difficulty_sd_error,
        "output": {
            "sigma_query": lengths.sigma_query,
            "sigma_call": lengths.sigma_call,
            "difficulty_slope": lengths.slope_pooled,
        },
        "held_out_points": {
            "mean_abs": mean,
            "rms": math.sqrt(square),
            "rms_by_chance": math.sqrt(by_chance),
            "worst": float(error.max(initial=0.0)),
            "within_2": int((error <= 2.0).sum()),
            "models": len(error),
        },
        "models": rows,
    }
