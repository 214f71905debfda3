"""Estimates for bid prices: episodes that workers play, and what their records say.

All is estimated from the records of finished queries, which any router has: its own decisions,
whether the answer was right, and the time of each node. First recipes at idle servers (the survey),
then chances of right answers by question, then the effect of load.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from agents.runs import Array, episodes
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import PolicySpec
from inframind_gym.policies.bid_price import BY_RECIPE, Estimates, Prices, choose, edges
from inframind_gym.policies.recipes import Recipe, RecipePolicy, RecipeTable
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES, distinct_plans
from inframind_gym.tasks import DOMAINS

_MAX_TEAMS: Final = 40  # choices of models that are tried for many agents
_MAX_DOUBLE: Final = 4  # agents that are tried with roles that answer twice
_PRIOR_QUERIES: Final = 10.0  # of average success, added to every recipe's own
_MIN_SPREAD: Final = 0.15  # of log latency, where few queries happened to agree
_SITUATIONS: Final = 4000  # prices, loads and budgets for which recipes are compared
_REFLECTION: Final = TOPOLOGIES.index("Reflection")
_RIDGES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_ROUNDS: Final = 12  # of the fit of the item-response model
_NEWTON_STEPS: Final = 4
_PRECISION: Final = 0.25  # of the normal prior of easiness: its standard deviation is 2
_MAX_STEP: Final = 1.0
_MIN_FREE: Final = 200  # calls from which the effect of busy models is estimated
_MIN_FULL: Final = 100  # calls from which waiting is estimated, for all budgets or for one
_MIN_TURNS: Final = 0.02


def candidates(
    num_models: int, num_strategies: int, *, code: bool = True, single_calls: bool = False
) -> list[Recipe]:
    """Return every recipe that is worth a trial.

    These are all teams of up to three agents, and a sample of the larger ones. Where there are
    several waves the order within a team is the pool's or its reverse. In a debate one model
    answers for all agents in the second round, whatever their models were in the first.

    Args:
        num_models: models of the pool.
        num_strategies: strategies.
        code: whether the answer of some tasks is code; else CODER is the same as SINGLE.
        single_calls: only recipes of one agent that makes one call.
    """
    if single_calls:
        routes = itertools.product(range(num_models), range(num_strategies))
        io = TOPOLOGIES.index("IO")
        return [Recipe(io, (model,), strategy, RoleRule.SINGLE) for model, strategy in routes]
    recipes = []
    for topology, agents in distinct_plans():
        name = TOPOLOGIES[topology]
        rules = [
            rule
            for rule in RoleRule
            if (rule != RoleRule.DOUBLE or (name != "Reflection" and agents <= _MAX_DOUBLE))
            and (rule != RoleRule.CODER or code)
        ]
        teams = list(itertools.combinations_with_replacement(range(num_models), agents))
        if len(teams) > _MAX_TEAMS:
            order = np.random.default_rng([topology, agents]).permutation(len(teams))
            teams = [teams[i] for i in np.sort(order[:_MAX_TEAMS])]
        for team in teams:
            node_models = [team]  # choices of a model for every node
            if name == "Debate":
                node_models = [team + (second,) * len(team) for second in range(num_models)]
            elif name in ("Chain", "FullConnected"):
                node_models = list(dict.fromkeys((team, team[::-1])))
            choices = itertools.product(node_models, range(num_strategies), rules)
            recipes += [Recipe(topology, team, strategy, rule) for team, strategy, rule in choices]
    return recipes


class Played(NamedTuple):
    """n finished queries."""

    row: Array  # (n,) of the environment
    recipe: Array  # (n,)
    in_flight: Array  # (n, M) calls at each model when the query was planned
    records: Array  # (n,) COMPLETED


@dataclass(frozen=True)
class Job:
    """Episodes to play in lockstep; it can be pickled."""

    env: dict[str, Any]  # arguments of the environment, JSON values
    seeds: list[int]  # (rows,)
    rates_per_min: Array  # (rows,) arrival rates
    policy: RecipePolicy  # plays all rows
    result: Callable[[Played], Any] | None = None  # of the finished queries; None returns them


def environment(num_envs: int, arguments: dict[str, Any]) -> StreamVectorEnv:
    """Return an environment with these arguments; the last ones are reused."""
    return _environment(num_envs, json.dumps(arguments, sort_keys=True))


@lru_cache(maxsize=2)
def _environment(num_envs: int, arguments: str) -> StreamVectorEnv:
    return StreamVectorEnv(num_envs, **json.loads(arguments))


def play_job(numbered: tuple[int, Job]) -> Any:
    """Play one episode in every row; return the result of a job, which comes with its number."""
    _, job = numbered
    env, policy = environment(len(job.seeds), job.env), job.policy
    row, records = episodes(env, policy, job.seeds, job.rates_per_min)
    at = row, records["query"]
    played = Played(row, policy.assigned[at], policy.in_flight[at], records)
    return played if job.result is None else job.result(played)


def joined(parts: Sequence[Played]) -> Played:
    """Concatenate the queries of several jobs."""
    return Played(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Surveyed(NamedTuple):
    """Survey of R recipes in D domains.

    In the estimates load slows nothing down, and calls wait for every round of slots that is ahead.
    A domain without queries gets the average of the others.
    """

    queries: Array  # (D, R) that were played
    right: Array  # (D, R) right answers, as the domain's where few were played
    known: Estimates  # at idle servers


def surveyed(played: Played, recipes: RecipeTable, spec: PolicySpec) -> Surveyed:
    """Average over the queries of each recipe.

    The slowest line of calls takes of each wave the slowest node, and at the end the deciding call,
    which took what is left of the latency.
    """
    records, queries = played.records, np.arange(len(played.records))
    models, shape = spec.num_models, (len(DOMAINS), len(recipes))
    deep, size = (*shape, models), len(DOMAINS) * len(recipes)
    cell = np.ravel_multi_index((records["domain"].astype(np.int64), played.recipe), shape)
    model, node_s = records["model"].astype(np.int64), records["node_latency_s"].astype(np.float64)
    number = np.bincount(cell, minlength=size).reshape(shape).astype(np.float64)
    count = np.maximum(number, 1.0)

    def mean(values: Any) -> Array:
        return np.bincount(cell, values, size).reshape(shape) / count

    def by_model(rows: Any, used: Any, values: Any = None) -> Array:
        total = np.bincount(cell[rows] * models + used, values, size * models)
        return total.reshape(deep) / count[:, :, None]

    path_s, path_calls, work_s = np.zeros((3, *deep))
    on_path_s = np.zeros(len(records))
    waves = recipes.waves[played.recipe]  # (n, nodes)
    for node in range(MAX_NODES):
        rows = np.flatnonzero(model[:, node] >= 0)
        work_s += by_model(rows, model[rows, node], node_s[rows, node])
    for wave in range(int(waves.max()) + 1):
        inside = np.where(waves == wave, node_s, -1.0)
        slowest = inside.argmax(axis=1)
        rows = np.flatnonzero(inside[queries, slowest] >= 0.0)
        used, seconds = model[rows, slowest[rows]], inside[rows, slowest[rows]]
        path_s += by_model(rows, used, seconds)
        path_calls += by_model(rows, used)
        on_path_s[rows] += seconds
    final = records["final_model"].astype(np.int64)
    final_s = by_model(queries, final, np.maximum(records["latency_s"] - on_path_s, 0.0))
    solved, played_in = mean(records["solved"]) * number, number.sum(axis=1, keepdims=True)
    average = solved.sum(axis=1, keepdims=True) / np.maximum(played_in, 1.0)
    right = (solved + _PRIOR_QUERIES * average) / (number + _PRIOR_QUERIES)
    log_latency = np.log(records["latency_s"])
    variance = mean(log_latency**2) - mean(log_latency) ** 2
    p = right.clip(0.005, 0.995)
    tables = {
        "logit": np.log(p / (1.0 - p)),
        "log_latency": mean(log_latency),
        "spread": np.sqrt(np.maximum(variance, _MIN_SPREAD**2)),
        "path_s": path_s + final_s,
        "path_calls": path_calls + by_model(queries, final),
        "work_s": work_s + final_s,
    }
    seen = played_in[:, 0] > 0
    for table in tables.values():
        table[~seen] = table[seen].mean(axis=0)
    budgets_s = np.unique(spec.budget_tiers_s)
    known = Estimates(
        **tables,
        call_s=spec.expected_call_s.astype(np.float64),
        slots=spec.max_num_seqs.astype(np.float64),
        slowdown=np.zeros((models, models + 1)),
        budgets_s=budgets_s,
        turns=np.ones((len(budgets_s), models)),
    )
    return Surveyed(number, right, known)


def worth_keeping(
    found: Surveyed,  # of R recipes
    needs: Array,  # (R,) bit masks of the models that they use
    keep: int,  # most recipes, shared among the domains; at least one each
    patience_s: float,  # budgets above count as this
    rng: np.random.Generator,  # of the situations
) -> Array:
    """Return the recipes that are chosen under some prices, some load and some budget.

    Such situations are drawn. The recipes chosen in them are kept, the most often chosen first,
    then those that are chosen when the former are left out, until there are enough.

    Returns:
        (at most keep,) recipes, in their order.
    """
    known, n = found.known, _SITUATIONS
    models = len(known.slots)
    known = known._replace(
        slowdown=np.column_stack([np.zeros((models, models)), np.ones(models)]),
        turns=np.zeros_like(known.turns),
    )
    seen = np.flatnonzero(found.queries.sum(axis=1) > 0)
    kept: list[int] = []
    for d in seen.tolist():
        level = rng.uniform(np.log(1e-4), np.log(0.1), (n, 1))
        zero, budget_s = np.zeros(n), rng.choice(known.budgets_s, n)
        base = level + rng.normal(0.0, 1.5, (n, models))
        prices = Prices(zero, zero, zero, zero + patience_s, zero, base).packed()
        in_flight = rng.uniform(size=(n, models)) * known.slots
        left, wanted = np.flatnonzero(found.queries[d] > 0), max(1, keep // len(seen))
        while wanted and len(left):
            tables = {name: np.take(getattr(known, name), left, axis=1) for name in BY_RECIPE}
            chosen = choose(
                known._replace(**tables),
                prices,
                needs[left],
                in_flight,
                budget_s,
                np.full(n, d),
                zero,
                np.full(n, 2**models - 1, np.uint32),
            )
            best, times = np.unique(chosen, return_counts=True)
            best = best[np.argsort(-times, kind="stable")][:wanted]
            kept += left[best].tolist()
            left, wanted = np.delete(left, best), wanted - len(best)
    return np.unique(np.array(kept, np.int64))


def easiness_of_questions(
    played: Played,
    right: Array,  # (D, R) share of right answers of the recipes, see `Surveyed`
    num_tasks: int,  # T, of the split
) -> Array:
    """Fit an item-response model, by turns for the questions and for the recipes.

    The log odds of a right answer are the recipe's ability plus the question's easiness. Each
    recipe's mean chance over the questions that it was asked is its share of right answers;
    questions are shrunk towards the mean of their domain. Source: G. Rasch, "Probabilistic Models
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
    model, strategy = (records[k][query, node].astype(np.int64) for k in ("model", "strategy"))
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
