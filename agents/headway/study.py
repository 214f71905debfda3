"""From experience to knowledge: which recipes are worth keeping, and what is known of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.headway.choice import Knowledge, edges
from agents.headway.recipes import RecipeBook
from agents.headway.survey import Played, Sums
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES
from inframind_gym.tasks import DOMAINS

_PRIOR_QUERIES: Final = 10.0  # of average success, added to every recipe's own
_LEAST_SPREAD: Final = 0.15  # of log latency: fewer queries do not make anybody surer
_REFLECTION: Final = TOPOLOGIES.index("Reflection")
_RIDGES: Final = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_FOLDS: Final = 5
_LEAST_FREE: Final = 200  # calls from which the effect of busy models is learned
_LEAST_FULL: Final = 100  # calls from which waiting is learned, for all budgets or for one
_LEAST_TURNS: Final = 0.02


def success(sums: Sums) -> NDArray[np.float64]:
    """Share of right answers, (D, R), drawn towards the domain's average where little was seen."""
    seen = sums.queries.sum(axis=1, keepdims=True)
    average = sums.solved.sum(axis=1, keepdims=True) / np.maximum(seen, 1.0)
    share: NDArray[np.float64] = (sums.solved + _PRIOR_QUERIES * average) / (
        sums.queries + _PRIOR_QUERIES
    )
    return share


def worth_keeping(
    sums: Sums,
    budgets_s: NDArray[np.float64],
    keep: int,
    rng: np.random.Generator,
    *,
    draws: int = 4000,
    top: int | None = None,
) -> NDArray[np.int64]:
    """Recipes that are among the best for some prices, some load and some budget.

    Prices of a slot's second, slowdowns and budgets are drawn; for each draw the `top` recipes get
    a vote. What no circumstances call for goes.

    Args:
        sums: what was seen of R recipes.
        budgets_s: (B,) that queries have.
        keep: at most so many, shared among the domains; at least one each.
        rng: of the draws.
        draws: how many.
        top: votes in each; by default the more, the more are to be kept.

    Returns:
        (at most keep,) recipes, in their order.
    """
    right = success(sums)
    votes_each = max(3, keep // 32) if top is None else top
    most = min(votes_each, right.shape[1]) - 1
    seen = np.flatnonzero(sums.queries.sum(axis=1) > 0)
    models = sums.work_s.shape[2]
    chosen: set[int] = set()
    for d in seen.tolist():
        count = np.maximum(sums.queries[d], 1.0)
        mean = sums.log_latency[d] / count
        spread = _spread(sums, d)
        path_s, work_s = sums.path_s[d] / count[:, None], sums.work_s[d] / count[:, None]
        votes = np.zeros(len(count), np.int64)
        for _ in range(draws):
            price = np.exp(rng.uniform(np.log(1e-4), np.log(0.1)) + rng.normal(0.0, 1.5, models))
            slow = np.exp(rng.uniform(0.0, 1.0, models))
            budget_s = budgets_s[rng.integers(len(budgets_s))]
            stretch = (path_s @ slow) / np.maximum(path_s.sum(axis=1), 1e-9)
            on_time = _normal_cdf(
                (np.log(budget_s) - mean - np.log(np.maximum(stretch, 1e-9))) / spread
            )
            score = np.where(sums.queries[d] > 0, right[d] * on_time - work_s @ price, -np.inf)
            votes[np.argpartition(-score, most)[: most + 1]] += 1
        best = np.argsort(-votes, kind="stable")[: max(1, keep // len(seen))]
        chosen |= set(best[votes[best] > 0].tolist())
    return np.array(sorted(chosen), np.int64)


def _normal_cdf(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normal distribution function, to 3e-4: enough for a vote."""
    out: NDArray[np.float64] = 0.5 + 0.5 * np.tanh(0.7978846 * (z + 0.044715 * z**3))
    return out


def _spread(sums: Sums, d: int) -> NDArray[np.float64]:
    count = np.maximum(sums.queries[d], 1.0)
    variance = sums.log_latency_squared[d] / count - (sums.log_latency[d] / count) ** 2
    spread: NDArray[np.float64] = np.sqrt(np.maximum(variance, _LEAST_SPREAD**2))
    return spread


def ease_of_questions(
    played: Played, right: NDArray[np.float64], task_embeddings: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How much easier a question's embedding makes it look: ridge regression over the tasks.

    A task's own ease is one Newton step of a logistic model with the recipes' success as offset:
    sum of (solved - p) over sum of p(1 - p), which is also its precision. The penalty is chosen by
    cross-validation over tasks.

    Args:
        played: queries.
        right: (D, R) success of the recipes.
        task_embeddings: (T, 384).

    Returns:
        Weights (384,) and the mean score of each domain's tasks (D,).
    """
    records = played.records
    task, domain = records["task"], records["domain"].astype(np.int64)
    p = right[domain, played.recipe].clip(0.02, 0.98)
    tasks = len(task_embeddings)
    precision = np.bincount(task, p * (1.0 - p), tasks).astype(np.float64)
    residual = np.bincount(task, records["solved"] - p, tasks).astype(np.float64)
    known = np.flatnonzero(precision > 1.0)
    of_domain = np.zeros(tasks, np.int64)
    of_domain[task] = domain
    x = task_embeddings[known].astype(np.float64)
    y, weight, group = residual[known] / precision[known], precision[known], of_domain[known]
    for d in np.unique(group).tolist():
        rows = group == d
        x[rows] -= np.average(x[rows], axis=0, weights=weight[rows])
        y[rows] -= np.average(y[rows], weights=weight[rows])
    weight /= weight.mean()
    fold = np.arange(len(known)) % _FOLDS
    errors = []
    for ridge in _RIDGES:
        error = 0.0
        for k in range(_FOLDS):
            inside, outside = fold != k, fold == k
            guess = x[outside] @ _ridge(x[inside], y[inside], weight[inside], ridge)
            error += float((weight[outside] * (y[outside] - guess) ** 2).sum())
        errors.append(error)
    weights: NDArray[np.float64] = np.zeros(x.shape[1])
    if min(errors) < float((weight * y**2).sum()):  # else the text says nothing
        weights = _ridge(x, y, weight, _RIDGES[int(np.argmin(errors))])
    centres = np.zeros(len(DOMAINS))
    scores = task_embeddings[known].astype(np.float64) @ weights
    for d in np.unique(group).tolist():
        centres[d] = scores[group == d].mean()
    return weights, centres


def _ridge(
    x: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64], ridge: float
) -> NDArray[np.float64]:
    gram = (x * weight[:, None]).T @ x
    solution = np.linalg.solve(gram + ridge * np.eye(len(gram)), x.T @ (weight * y))
    return np.asarray(solution, np.float64)


def log_odds(
    played: Played, right: NDArray[np.float64], ease: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log odds of success of each recipe for a question of average ease, (D, R).

    Such that success is met on average over the questions that were asked, whose ease differs.

    Args:
        played: queries.
        right: (D, R) success.
        ease: (n,) of the question of each query.
    """
    p = right.clip(0.01, 0.99)
    logit: NDArray[np.float64] = np.log(p / (1.0 - p))
    domain = played.records["domain"].astype(np.int64)
    for _ in range(4):  # Newton
        guess = 1.0 / (1.0 + np.exp(-(logit[domain, played.recipe] + ease)))
        shape = right.shape
        cell = np.ravel_multi_index((domain, played.recipe), shape)
        count = np.bincount(cell, minlength=right.size).reshape(shape)
        mean = np.bincount(cell, guess, right.size).reshape(shape) / np.maximum(count, 1)
        slope = np.bincount(cell, guess * (1 - guess), right.size).reshape(shape)
        slope = np.maximum(slope / np.maximum(count, 1), 0.01)
        step = ((p - mean) / slope).clip(-1.0, 1.0)
        logit += np.where(count > 0, step, 0.0)
    return logit


def first_calls(book: RecipeBook, played: Played) -> dict[str, NDArray[np.float64]]:
    """Single calls that were sent when their query was planned.

    Returns:
        Columns of equal length: `seconds`, `model`, `strategy`, `domain` and `query` (the row of
        `played`).
    """
    once = (book.topology != _REFLECTION) & (book.roles != RoleRule.DOUBLE)
    columns: dict[str, list[NDArray[np.float64]]] = {
        name: [] for name in ("seconds", "model", "strategy", "domain", "query")
    }
    records = played.records
    for node in range(MAX_NODES):
        rows = np.flatnonzero(once[played.recipe] & (book.waves[played.recipe, node] == 0))
        columns["seconds"].append(records["node_latency_s"][rows, node].astype(np.float64))
        columns["model"].append(records["model"][rows, node].astype(np.float64))
        columns["strategy"].append(records["strategy"][rows, node].astype(np.float64))
        columns["domain"].append(records["domain"][rows].astype(np.float64))
        columns["query"].append(rows.astype(np.float64))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def seconds_of_calls(
    calls: dict[str, NDArray[np.float64]], num_models: int, num_strategies: int
) -> NDArray[np.float64]:
    """Mean seconds of a call at idle servers, (D, M, S); NaN where none was made."""
    shape = (len(DOMAINS), num_models, num_strategies)
    keys = tuple(calls[name].astype(np.int64) for name in ("domain", "model", "strategy"))
    cell = np.ravel_multi_index(keys, shape)
    size = int(np.prod(shape))
    with np.errstate(invalid="ignore"):
        mean = np.bincount(cell, calls["seconds"], size) / np.bincount(cell, minlength=size)
    return mean.reshape(shape)


def congestion(
    calls: dict[str, NDArray[np.float64]],
    in_flight: NDArray[np.float64],
    budget_s: NDArray[np.float64],
    idle_s: NDArray[np.float64],
    slots: NDArray[np.float64],
    budgets_s: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How load stretches calls: see `choice.Knowledge.slowdown` and `.turns`.

    The log of a call's seconds over those at idle servers is regressed on which models are busy and
    how full its own batch is, where a slot was free; where none was, what is beyond that is
    waiting, and is regressed on the rounds of slots that were ahead. How long one waits depends on
    the budget, too: servers may take the earliest deadline first.

    Args:
        calls: see `first_calls`.
        in_flight: (n, M) of the queries of `calls["query"]`.
        budget_s: (n,) of the same.
        idle_s: (D, M, S) seconds at idle servers.
        slots: (M,).
        budgets_s: (B,) for which waiting is learned; a call counts for the nearest.

    Returns:
        Slowdown (M, M + 1) and turns (B, M).
    """
    models = len(slots)
    keys = [calls[name].astype(np.int64) for name in ("domain", "model", "strategy")]
    usual_s = idle_s[keys[0], keys[1], keys[2]]
    of = calls["query"].astype(np.int64)
    load = in_flight[of]
    tier = np.searchsorted(edges(budgets_s), budget_s[of])
    model = keys[1]
    slowdown = np.zeros((models, models + 1))
    turns = np.ones((len(budgets_s), models))
    for m in range(models):
        rows = np.flatnonzero((model == m) & np.isfinite(usual_s))
        x, seconds, usual = load[rows], calls["seconds"][rows], usual_s[rows]
        features = np.minimum(0.5 * x, 1.0)
        features[:, m] = np.minimum(x[:, m] / slots[m], 1.0)
        free = x[:, m] <= 0.75 * slots[m]
        if free.sum() < _LEAST_FREE:
            continue
        design = np.column_stack([features[free], np.ones(free.sum())])
        y = np.log(seconds[free] / usual[free])
        gram = design.T @ design + np.diag([1.0] * models + [1e-6])
        beta = np.linalg.solve(gram, design.T @ y)
        slowdown[m, :models] = np.maximum(beta[:models], 0.0)
        slowdown[m, models], slowdown[m, m] = slowdown[m, m], 0.0
        full = np.flatnonzero(x[:, m] >= 1.25 * slots[m])
        if len(full) < _LEAST_FULL:
            continue
        log_slow = features[full] @ np.maximum(beta[:models], 0.0)
        call_s = usual[full] * np.exp(log_slow)
        ahead_s = (x[full, m] + 1.0 - slots[m]) / slots[m] * call_s
        waited_s = seconds[full] - call_s
        turns[:, m] = _slope(ahead_s, waited_s)
        for b in range(len(budgets_s)):
            own = tier[rows[full]] == b
            if own.sum() >= _LEAST_FULL:
                turns[b, m] = _slope(ahead_s[own], waited_s[own])
    return slowdown, turns


def _slope(ahead_s: NDArray[np.float64], waited_s: NDArray[np.float64]) -> float:
    """Seconds of waiting per second of work ahead, by least squares through the origin."""
    return max(float((ahead_s * waited_s).sum() / (ahead_s**2).sum()), _LEAST_TURNS)


def knowledge(
    sums: Sums,
    logit: NDArray[np.float64],
    call_s: NDArray[np.float64],
    slots: NDArray[np.float64],
    slowdown: NDArray[np.float64],
    budgets_s: NDArray[np.float64],
    turns: NDArray[np.float64],
) -> Knowledge:
    """Everything in the form that a choice reads; a domain that was never seen gets the average."""
    seen = sums.queries.sum(axis=1) > 0
    count = np.maximum(sums.queries, 1.0)
    tables = {
        "logit": logit,
        "log_latency": sums.log_latency / count,
        "spread": np.array([_spread(sums, d) for d in range(len(seen))]),
        "path_s": sums.path_s / count[:, :, None],
        "path_calls": sums.path_calls / count[:, :, None],
        "work_s": sums.work_s / count[:, :, None],
    }
    for table in tables.values():
        table[~seen] = table[seen].mean(axis=0)
    return Knowledge(
        **tables,
        call_s=call_s,
        slots=slots,
        slowdown=slowdown,
        budgets_s=budgets_s,
        turns=turns,
    )
