"""Estimates from records of finished queries: chances of right answers, and effects of load."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from agents.bid_price.survey import Played
from agents.runs import Array
from inframind_gym.policies.bid_price import edges
from inframind_gym.policies.recipes import RecipeTable
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS

_REFLECTION: Final = TOPOLOGIES.index("Reflection")
_RIDGES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_ROUNDS: Final = 12  # of the fit of the item-response model
_NEWTON_STEPS: Final = 4
_PRECISION: Final = 0.25  # of the normal prior of easiness: its standard deviation is 2
_MAX_STEP: Final = 1.0
_MIN_FREE: Final = 200  # calls from which the effect of busy models is estimated
_MIN_FULL: Final = 100  # calls from which waiting is estimated, for all budgets or for one
_MIN_TURNS: Final = 0.02


def easiness_of_questions(
    played: Played,
    right: Array,  # (D, R) share of right answers of the recipes, see `survey.Surveyed`
    num_tasks: int,  # T, of the split
) -> Array:
    """Fit an item-response model, by turns for the questions and for the recipes.

    The log odds of a right answer are the recipe's ability plus the question's easiness. Each
    recipe's mean chance over the questions that it was asked is its share of right answers;
    questions are drawn towards the average of their domain. Source: G. Rasch, "Probabilistic Models
    for Some Intelligence and Attainment Tests", 1960.

    Returns:
        Easiness (T,); 0 of a question that was never asked.
    """
    records, task = played.records, played.records["task"].astype(np.int64)
    cell = _cells(played, right)
    wanted = right.clip(0.005, 0.995).ravel()
    ability = np.log(wanted / (1.0 - wanted))
    easiness = np.zeros(num_tasks)
    of_domain = np.full(num_tasks, -1)
    of_domain[task] = records["domain"]
    for _ in range(_ROUNDS):
        p = _logistic(ability[cell] + easiness[task])
        slope = np.bincount(task, p * (1.0 - p), num_tasks) + _PRECISION
        step = (np.bincount(task, records["solved"] - p, num_tasks) - _PRECISION * easiness) / slope
        easiness += step.clip(-_MAX_STEP, _MAX_STEP)
        for d in np.unique(records["domain"]).tolist():
            easiness[of_domain == d] -= easiness[of_domain == d].mean()
        ability = _newton_step(ability, easiness[task], cell, wanted)
    return easiness


def log_odds(played: Played, right: Array, ease: Array) -> Array:
    """Return each recipe's log odds of a right answer to a question of mean ease, (D, R).

    Each recipe's mean chance over the questions that it was asked, of `ease` (n,), is its share of
    right answers (D, R).
    """
    cell, wanted = _cells(played, right), right.clip(0.01, 0.99).ravel()
    logit = np.log(wanted / (1.0 - wanted))
    for _ in range(_NEWTON_STEPS):
        logit = _newton_step(logit, ease, cell, wanted)
    return np.asarray(logit.reshape(right.shape), np.float64)


def _newton_step(logit: Array, ease: Array, cell: Array, wanted: Array) -> Array:
    """Move the log odds of each cell towards those whose mean chance is the wanted one."""
    p, cells = _logistic(logit[cell] + ease), len(logit)
    count = np.bincount(cell, minlength=cells)
    mean = np.bincount(cell, p, cells) / np.maximum(count, 1)
    slope = np.bincount(cell, p * (1.0 - p), cells) / np.maximum(count, 1)
    step = ((wanted - mean) / np.maximum(slope, 0.005)).clip(-_MAX_STEP, _MAX_STEP)
    return np.asarray(logit + np.where(count > 0, step, 0.0), np.float64)


def _cells(played: Played, right: Array) -> Array:
    """Position of each query's domain and recipe in the flattened table (D, R)."""
    domain = played.records["domain"].astype(np.int64)
    return np.asarray(np.ravel_multi_index((domain, played.recipe), right.shape), np.int64)


def _logistic(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)), np.float64)


def ease_of_questions(
    played: Played, easiness: Array, task_embeddings: Array
) -> tuple[Array, Array]:
    """Estimate from embeddings (T, 384) how easy questions look, by ridge regression.

    It explains the easiness (T,) within the domains. The penalty is the one with the smallest error
    on tasks that are left out, one at a time.

    Returns:
        Weights (384,) and the mean score of each domain's tasks (D,).
    """
    task, first = np.unique(played.records["task"], return_index=True)
    domain = played.records["domain"][first].astype(np.int64)
    x, y = task_embeddings[task].astype(np.float64), easiness[task].copy()
    for d in np.unique(domain).tolist():
        x[domain == d] -= x[domain == d].mean(axis=0)
        y[domain == d] -= y[domain == d].mean()
    gram, moment = x.T @ x, x.T @ y
    weights: Array = np.zeros(x.shape[1])
    error = float((y**2).sum())  # of no weights: the text says nothing
    for ridge in _RIDGES:
        inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
        leverage = np.einsum("ij,jk,ik->i", x, inverse, x, optimize=True)
        left_out = (y - x @ (inverse @ moment)) / (1.0 - leverage)
        if (left_out**2).sum() < error:
            weights, error = inverse @ moment, float((left_out**2).sum())
    centres = np.zeros(len(DOMAINS))
    scores = task_embeddings[task].astype(np.float64) @ weights
    for d in np.unique(domain).tolist():
        centres[d] = scores[domain == d].mean()
    return weights, centres


class Calls(NamedTuple):
    """k single calls, sent when their query was planned."""

    seconds: Array  # (k,)
    domain: Array  # (k,)
    model: Array  # (k,)
    strategy: Array  # (k,)
    query: Array  # (k,) row of the queries that were played


def first_calls(recipes: RecipeTable, played: Played) -> Calls:
    """Return the calls of first waves by nodes that make a single one."""
    records, recipe = played.records, played.recipe
    once = (recipes.topology != _REFLECTION) & (recipes.roles != RoleRule.DOUBLE)
    query, node = np.nonzero(once[recipe][:, None] & (recipes.waves[recipe] == 0))
    seconds = records["node_latency_s"][query, node].astype(np.float64)
    domain = records["domain"][query].astype(np.int64)
    model, strategy = (records[of][query, node].astype(np.int64) for of in ("model", "strategy"))
    return Calls(seconds, domain, model, strategy, query)


def seconds_of_calls(calls: Calls, num_models: int, num_strategies: int) -> Array:
    """Return the mean seconds of a call at idle servers, (D, M, S); NaN where none was made."""
    shape = (len(DOMAINS), num_models, num_strategies)
    cell = np.ravel_multi_index((calls.domain, calls.model, calls.strategy), shape)
    size = int(np.prod(shape))
    with np.errstate(invalid="ignore"):
        mean = np.bincount(cell, calls.seconds, size) / np.bincount(cell, minlength=size)
    return mean.reshape(shape)


def congestion(
    calls: Calls,  # see `first_calls`
    in_flight: Array,  # (n, M) of the queries of `calls.query`
    budget_s: Array,  # (n,) of the same
    idle_s: Array,  # (D, M, S) seconds at idle servers
    slots: Array,  # (M,)
    budgets_s: Array,  # (B,) for which waiting is estimated; a call counts for the nearest
) -> tuple[Array, Array]:
    """Estimate how load stretches calls: see `Estimates.slowdown` and `.turns`.

    Where a slot was free, the log of a call's seconds over those at idle servers is regressed on
    the models that are busy and on the fill of its own batch. Where none was, the rest is waiting,
    which is regressed on the rounds of slots that were ahead. Waiting depends on the budget too:
    servers may take the earliest deadline first.

    Returns:
        Slowdown (M, M + 1) and turns (B, M).
    """
    models = len(slots)
    usual_s = idle_s[calls.domain, calls.model, calls.strategy]
    load = in_flight[calls.query]
    tier = np.searchsorted(edges(budgets_s), budget_s[calls.query])
    slowdown = np.zeros((models, models + 1))
    turns = np.ones((len(budgets_s), models))
    for m in range(models):
        rows = np.flatnonzero((calls.model == m) & np.isfinite(usual_s))
        x, seconds, usual = load[rows], calls.seconds[rows], usual_s[rows]
        features = np.minimum(0.5 * x, 1.0)
        features[:, m] = np.minimum(x[:, m] / slots[m], 1.0)
        free = x[:, m] <= 0.75 * slots[m]
        if free.sum() < _MIN_FREE:
            continue
        design = np.column_stack([features[free], np.ones(free.sum())])
        y = np.log(seconds[free] / usual[free])
        gram = design.T @ design + np.diag([1.0] * models + [1e-6])
        beta = np.maximum(np.linalg.solve(gram, design.T @ y)[:models], 0.0)
        slowdown[m, :models] = beta
        slowdown[m, models], slowdown[m, m] = beta[m], 0.0
        full = np.flatnonzero(x[:, m] >= 1.25 * slots[m])
        if len(full) < _MIN_FULL:
            continue
        call_s = usual[full] * np.exp(features[full] @ beta)
        ahead_s = (x[full, m] + 1.0 - slots[m]) / slots[m] * call_s
        waited_s = seconds[full] - call_s
        turns[:, m] = _slope(ahead_s, waited_s)
        for b in range(len(budgets_s)):
            own = tier[rows[full]] == b
            if own.sum() >= _MIN_FULL:
                turns[b, m] = _slope(ahead_s[own], waited_s[own])
    return slowdown, turns


def _slope(ahead_s: Array, waited_s: Array) -> float:
    """Seconds of waiting per second of work ahead, by least squares through the origin."""
    return max(float((ahead_s * waited_s).sum() / (ahead_s**2).sum()), _MIN_TURNS)
