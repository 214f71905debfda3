"""The untrained router: prices of GPU seconds and durations of calls, both learned online.

A query gets, on arrival, the recipe (plan, models, strategy) with the best balance

    P_r · Φ((ln left_s − bias − ln T_r) / spread) − Σ_calls price_m · seconds

P_r: chance of a right answer, from the models' abilities and the strategy. T_r: seconds of the
recipe's calls one after the other. The price of a second of a model's slot rises with the calls in
flight on its GPU, whose models take turns, and its level follows by dual ascent on how full that
GPU is: the subgradient step for the constraint that a GPU's seconds are not used twice. A toll is
added: a call slows the others on its GPU down, which costs some of them their deadline. Seconds of
calls are learned by ridge regression on those that were measured.

Bid prices: Talluri and van Ryzin (1998), "An Analysis of Bid-Price Controls for Network Revenue
Management". Online dual ascent: Balseiro, Lu and Mirrokni (2023), "The Best of Many Worlds". Tolls:
Pigou (1920), "The Economics of Welfare".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr

from inframind_gym.envs.core import Bools, Floats, Ints
from inframind_gym.policies import Completed, Contexts, PolicySpec
from inframind_gym.policies.base import with_room
from inframind_gym.policies.recipes import Recipe, RecipePolicy, RecipeTable, tabulate
from inframind_gym.policies.simple import DIFFICULTY_SD, STRATEGY_LOG_S, STRATEGY_LOGITS
from inframind_gym.simulator.item_response import NODES, WEIGHTS, sigmoid
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks import DOMAINS

_REFLECTION, _DEBATE = TOPOLOGIES.index("Reflection"), TOPOLOGIES.index("Debate")

# Beliefs before any measurement: abilities are of the workload, all else is the same everywhere.
FINAL_LOG_S: Final = 0.0  # of the call that decides
REVISION_LOG_S: Final = -0.3  # of a debate's second round
REFLECTION_LOGITS: Final = 0.15
DRAFT_GAIN, DRAFT_MIDDLE = 2.0, 0.62  # logits per chance of a right draft; the chance that gains 0
CODER_LOGITS: Final = 0.2  # for every coder of a debate: tests prove who is right

# Durations: ridge regression of log seconds, a regression for each model.
# Features: own load, that of others on the GPU, the question's domain, and the kind of the call: a
# strategy, a debate's second round, or the call that decides.
OWN, SHARED, FIRST_DOMAIN, FIRST_KIND = 0, 1, 2, 2 + len(DOMAINS)
PRIOR_WEIGHT: Final = 20.0  # measured calls that a prior coefficient counts as
FORGET: Final = 0.999  # weight of older errors, at every query
FINAL_STEP: Final = 0.05  # of the moving average of `_final`, at every query of one agent
LEAST_SERVED: Final = 0.3  # share of a call's seconds that is not waiting, at least
SPREAD_PRIOR: Final = 0.5  # standard deviation of log(measured / predicted)

# Prices: right answers per second of a slot.
START_PRICE: Final = 5e-3
PRICE_RANGE: Final = (1e-5, 1.0)
TARGET: Final = 1.3  # calls in flight per slot of a GPU's models that dual ascent aims at
ASCENT_S: Final = 60.0  # seconds in which a GPU one above the target multiplies its price by e
STEEP_FROM, STEEPNESS = 1.25, 2.0  # load from which prices rise faster
MOST_LOAD: Final = 4.0  # beyond which they rise no more
# A half-empty batch costs a shared GPU as many steps as a full one: its places cost more, up to 6
# times. In overload, between these loads, that ends, for every batch fills.
FADES_FROM, FADED = 2.0, 3.0
# Factor on the first-order cost of a call to those in flight; chosen on validation, where 4 to 8
# are alike. More than 1, because a call that is slowed stays longer and slows others in turn.
TOLL: Final = 4.0
WORTH_STEP: Final = 0.02  # of the moving average of `worth`, at every query

SHIFT_SD: Final = 1.0  # of the log odds of a model's answers around the believed ones


class Outlook(NamedTuple):
    """Expectations of n queries of R recipes."""

    chance: Floats  # (n, R) of a right answer
    in_time: Floats  # (n, R) probability of an answer within the budget
    slack: Floats  # (n, R) normal quantile of `in_time`
    log_s: Floats  # (n, R) log of the seconds until the answer
    cost: Floats  # (n, R) price of the slot-seconds that it uses, in right answers
    is_open: Bools  # (n, R) no model that it needs is down


class AdaptivePolicy(RecipePolicy):
    """Recipes by value, expected seconds and prices of GPUs that are learned while it plays.

    Args:
        prices: False is an ablation: work costs nothing.

    Attributes:
        log_price: (rows, GPUs) log of the price of a second at no load.
        worth: (rows, M) right answers that a query on a model loses by one more second, a moving
            average over the queries that were sent there.
    """

    name = "adaptive"
    version = 4
    toll: float = TOLL

    def __init__(self, *, prices: bool = True) -> None:
        self._has_prices = prices
        if not prices:
            self.toll = 0.0

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Forget what was learned and prepare for `len(seeds)` rows."""
        rows, models = len(seeds), spec.num_models
        self.recipes, self._chance, self._path, self._work = believed(spec)
        super().reset(spec, seeds)
        gpu = spec.gpu
        self._on_gpu = (gpu[:, None] == np.unique(gpu)).astype(np.float64)  # (M, G)
        self._together = (gpu[:, None] == gpu).astype(np.float64) - np.eye(models)  # (M, M)
        self._is_shared = self._together.any(axis=1)
        self._slots = spec.max_num_seqs.astype(np.float64)
        self.log_price = np.full((rows, self._on_gpu.shape[1]), math.log(START_PRICE))
        self.worth = np.zeros((rows, models))
        self._time_s = np.zeros(rows)
        # Ridge: precision A (F, F) and A·coefficients, for each row and model.
        by_strategy = [STRATEGY_LOG_S.get(s, 0.0) for s in spec.strategies]
        domains = [0.0] * len(DOMAINS)
        prior = np.array([0.3, 0.3, *domains, *by_strategy, REVISION_LOG_S, FINAL_LOG_S])
        size = len(prior)
        self._precision = np.tile(PRIOR_WEIGHT * np.eye(size), (rows, models, 1, 1))
        self._moment = np.tile(PRIOR_WEIGHT * prior, (rows, models, 1))
        self._coefficients = np.tile(prior, (rows, models, 1))
        # Count, sum and sum of squares of ln(measured / predicted) of queries.
        self._errors = np.tile([PRIOR_WEIGHT, 0.0, PRIOR_WEIGHT * SPREAD_PRIOR**2], (rows, 1))
        self._final = np.ones((rows, len(DOMAINS)))  # share of plans of one agent with a final call
        self._predicted = np.zeros((rows, 0))  # (rows, queries) log seconds
        names = ("log_price", "worth", "_time_s", "_precision", "_moment", "_coefficients")
        self._initial = {n: getattr(self, n)[0].copy() for n in (*names, "_errors", "_final")}

    def forget(self, rows: Ints) -> None:
        """Return rows to their values after `reset`: a new episode begins there."""
        for name, value in self._initial.items():
            getattr(self, name)[rows] = value

    def choose(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Ints:
        """Return recipes (n,) for queries that have just arrived, with calls in flight (n, M)."""
        outlook = self.outlook(in_flight, contexts, rows)
        score = np.where(outlook.is_open, outlook.chance * outlook.in_time - outlook.cost, -np.inf)
        return self.note(outlook, score.argmax(axis=1), contexts["query"], rows)

    def outlook(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Outlook:
        """Return what is expected of every recipe, with calls in flight (n, M)."""
        n, domain = len(rows), contexts["domain"].astype(np.int64)
        # Seconds of a call on idle servers and now, (n, M, kinds).
        own, beta = np.minimum(in_flight / self._slots, 1.0), self._coefficients[rows]
        of_domain = beta[np.arange(n), :, FIRST_DOMAIN + domain]  # (n, M)
        log_ratio = of_domain[..., None] + beta[..., FIRST_KIND:]
        idle_s = self.spec.expected_call_s[:, None] * np.exp(log_ratio)
        slow = np.exp(beta[..., OWN] * own + beta[..., SHARED] * (own @ self._together))
        idle_s[..., -1] *= self._final[rows, domain][:, None]
        wait_s = self.spec.expected_call_s * slow * self._rounds(in_flight, contexts)
        call_s = idle_s * slow[..., None] + wait_s[..., None] * (idle_s > 0.0)
        price = self._prices(in_flight, contexts["time_s"], rows) + self._tolls(in_flight, rows)
        log_s = np.log(call_s.reshape(n, -1) @ self._path)
        cost = (price[:, :, None] * idle_s).reshape(n, -1) @ self._work
        left_s = contexts["budget_s"] - (contexts["time_s"] - contexts["arrival_s"])
        bias, spread = self._error(rows)
        slack = np.log(np.maximum(left_s, 1e-3)) - bias
        slack = (slack[:, None] - log_s) / spread[:, None]
        is_open = (self.recipes.needs & ~contexts["models_up"][:, None]) == 0
        return Outlook(self._chance[domain], ndtr(slack), slack, log_s, cost, is_open)

    def note(self, outlook: Outlook, chosen: Ints, queries: Ints, rows: Ints) -> Ints:
        """Remember what was predicted for `chosen` (n,), update `worth`, and return `chosen`."""
        self._predicted = with_room(self._predicted, queries)
        at = np.arange(len(rows)), chosen
        self._predicted[rows, queries] = outlook.log_s[at]
        if self.toll:
            _, spread = self._error(rows)
            density = np.exp(-0.5 * outlook.slack[at] ** 2) / math.sqrt(2.0 * math.pi)
            worth = outlook.chance[at] * density / (spread * np.exp(outlook.log_s[at]))
            sent = rows, self.recipes.models[chosen, 0]
            self.worth[sent] += WORTH_STEP * (worth - self.worth[sent])
        return np.asarray(chosen, np.int64)

    def _error(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return mean and standard deviation (n,) of ln(measured / predicted) seconds."""
        count, total, squares = self._errors[rows].T
        bias = total / count
        return bias, np.sqrt(squares / count - bias**2)

    def _tolls(self, in_flight: Floats, rows: Ints) -> Floats:
        """Return what a second of a slot costs those in flight, (n, M), in right answers."""
        slower = np.maximum(self._coefficients[rows], 0.0)  # at one more load, (n, M, F)
        worth = np.minimum(in_flight, self._slots) * self.worth[rows]
        lost = worth * slower[..., OWN] + (worth * slower[..., SHARED]) @ self._together
        return np.asarray(self.toll * lost / self._slots)

    def _rounds(self, in_flight: Floats, contexts: Contexts) -> Floats:
        """Return full batches that are served before a call sent now, (n, M)."""
        ahead = np.maximum(in_flight + 1.0 - self._slots, 0.0) / self._slots
        if self.spec.scheduler == "fcfs":
            return ahead
        # Earliest deadline first: of the waiting calls those of shorter budgets go first.
        tiers = self.spec.budget_tiers_s
        budget = contexts["budget_s"][:, None]
        share = (0.5 * (tiers < budget) + 0.5 * (tiers <= budget)).mean(axis=1)
        return np.asarray(ahead * share[:, None], np.float64)

    def _prices(self, in_flight: Floats, time_s: Floats, rows: Ints) -> Floats:
        """Return the prices (n, M) of a second of a slot, after a step of dual ascent."""
        if not self._has_prices:
            return np.zeros(in_flight.shape)
        load = (in_flight / self._slots) @ self._on_gpu  # (n, G)
        passed_s = np.maximum(time_s - self._time_s[rows], 0.0)[:, None]
        step = np.clip(load - TARGET, -1.0, 1.0) * passed_s / ASCENT_S
        low, high = np.log(PRICE_RANGE)
        self.log_price[rows] = np.clip(self.log_price[rows] + step, low, high)
        self._time_s[rows] = time_s
        load = np.minimum(load, MOST_LOAD)
        steep = load + STEEPNESS * np.maximum(load - STEEP_FROM, 0.0)
        price = np.exp(self.log_price[rows] + steep) @ self._on_gpu.T
        alone = np.log(np.clip(0.5 * self._slots / (in_flight + 1.0), 0.5, 6.0))
        fading = np.clip((FADED - load) / (FADED - FADES_FROM), 0.0, 1.0) @ self._on_gpu.T
        return np.asarray(price * np.exp(np.where(self._is_shared, alone * fading, 0.0)))

    def observe(self, completed: Completed, row: int) -> None:
        """Learn seconds of calls from the queries of a row that have ended."""
        self.learn(completed, np.full(len(completed), row))

    def learn(self, completed: Completed, rows: Ints) -> None:
        """Learn seconds of calls from queries (k,) that have ended in `rows` (k,)."""
        measured = (completed["failed_calls"] == 0) & np.isfinite(completed["latency_s"])
        completed, rows = completed[measured], rows[measured]
        query, nodes = completed["query"].astype(np.int64), completed["num_nodes"]
        per_node = np.where(completed["topology"] == _REFLECTION, 2, 1)
        in_flight = self.in_flight[rows, query]
        rounds = self._rounds(in_flight, completed)
        own = np.minimum(in_flight / self._slots, 1.0)
        others = own @ self._together
        errors = np.log(np.maximum(completed["latency_s"], 1e-3)) - self._predicted[rows, query]
        decides = completed["calls"] > per_node
        for k, (row, domain) in enumerate(zip(rows, completed["domain"], strict=True)):
            if nodes[k] == 1:
                self._final[row, domain] += FINAL_STEP * (decides[k] - self._final[row, domain])
            self._errors[row] = FORGET * self._errors[row] + (1.0, errors[k], errors[k] ** 2)

        node_s = completed["node_latency_s"] / per_node[:, None]
        nth = np.arange(node_s.shape[1])
        each, node = np.nonzero((nth < nodes[:, None]) & (completed["model"] >= 0) & (node_s > 0.0))
        row, seconds = rows[each], node_s[each, node].astype(np.float64)
        revises = (completed["topology"] == _DEBATE)[each] & (2 * node >= nodes[each])
        m, s = (completed[name][each, node].astype(np.int64) for name in ("model", "strategy"))
        x = np.zeros((len(each), self._moment.shape[-1]))
        x[:, OWN], x[:, SHARED] = own[each, m], others[each, m]
        kind = np.where(revises, self.spec.num_strategies, s)
        x[np.arange(len(each)), FIRST_DOMAIN + completed["domain"][each]] = 1.0
        x[np.arange(len(each)), FIRST_KIND + kind] = 1.0
        loads = slice(OWN, SHARED + 1)
        slow = np.exp((self._coefficients[row, m, loads] * x[:, loads]).sum(axis=1))
        light_s = self.spec.expected_call_s[m]
        served_s = np.maximum(seconds - rounds[each, m] * light_s * slow, LEAST_SERVED * seconds)
        np.add.at(self._precision, (row, m), x[:, :, None] * x[:, None, :])
        np.add.at(self._moment, (row, m), np.log(served_s / light_s)[:, None] * x)
        row, m = np.unique(np.stack([row, m]), axis=1)
        self._coefficients[row, m] = np.linalg.solve(
            self._precision[row, m], self._moment[row, m, :, None]
        )[..., 0]


class AdaptiveFeedbackPolicy(AdaptivePolicy):
    """`adaptive` that corrects its beliefs about the models by the graded answers.

    The log odds of a right answer are the believed ones plus a shift of the model that answers last
    in the question's domain. Shifts are normal, 0 ± SHIFT_SD before any answer; each answer moves
    one by a step of online Bayesian logistic regression, v ← v / (1 + v·p·(1 - p)) and
    shift ← shift + v·(right - p). Without `observe` it chooses as `adaptive` does.

    Attributes:
        shift: (rows, M, domains) in log odds; `variance` of the same shape.
    """

    name = "adaptive_feedback"
    version = 1

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Forget what was learned and prepare for `len(seeds)` rows."""
        super().reset(spec, seeds)
        shape = (len(seeds), spec.num_models, len(DOMAINS))
        self.shift, self.variance = np.zeros(shape), np.full(shape, SHIFT_SD**2)
        self._initial |= {"shift": np.zeros(shape[1:]), "variance": self.variance[0].copy()}
        self._log_odds, models = logit(self._chance), self.recipes.models
        self._last = models[np.arange(len(models)), (models >= 0).sum(axis=1) - 1]

    def outlook(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Outlook:
        """Return what is expected of every recipe, with the shifts of these rows."""
        domain = contexts["domain"].astype(np.int64)
        shift = self.shift[rows, :, domain][:, self._last]
        chance = expit(self._log_odds[domain] + shift)
        return super().outlook(in_flight, contexts, rows)._replace(chance=chance)

    def learn(self, completed: Completed, rows: Ints) -> None:
        """Learn seconds of calls and shifts of models from queries (k,) that have ended."""
        super().learn(completed, rows)
        graded = completed["failed_calls"] == 0
        for row, query in zip(rows[graded].tolist(), completed[graded], strict=True):
            recipe, domain = self.assigned[row, query["query"]], query["domain"]
            at = row, self._last[recipe], domain
            p = expit(self._log_odds[domain, recipe] + self.shift[at])
            self.variance[at] /= 1.0 + self.variance[at] * p * (1.0 - p)
            self.shift[at] += self.variance[at] * (query["solved"] - p)


def believed(spec: PolicySpec) -> tuple[RecipeTable, Floats, Floats, Floats]:
    """Return R recipes and what is believed of them from public facts.

    Returns:
        The recipes; (domains, R) chances of a right answer; (M·kinds, R) calls of each model and
        kind (a strategy, a second round, or the call that decides) on the recipe's slowest line;
        the same of all its calls.
    """
    models, strategies = range(spec.num_models), range(spec.num_strategies)
    plans: list[tuple[str, tuple[int, ...], int]] = []
    concise = spec.strategy_index("Concise")
    for m in models:
        plans += [("IO", (m,), s) for s in strategies]
        plans += [("Reflection", (m,), s) for s in strategies]
        plans += [("Debate", (m, other), concise) for other in models if other != m]
        plans += [("Debate", (m, m, other, other), concise) for other in models]
    recipes = [Recipe(TOPOLOGIES.index(t), team, s, RoleRule.CODER) for t, team, s in plans]
    revision, final = spec.num_strategies, spec.num_strategies + 1  # kinds of calls
    chance = np.zeros((len(DOMAINS), len(recipes)))
    path = np.zeros((spec.num_models, final + 1, len(recipes)))
    work = np.zeros_like(path)
    gains = [STRATEGY_LOGITS.get(name, 0.0) for name in spec.strategies]
    for r, (topology, team, s) in enumerate(plans):
        first, last, coders = team[0], team[-1], 0
        logits, gain = spec.ability[last], gains[s]
        path[first, s, r] = work[first, s, r] = 1.0
        if topology == "Reflection":
            gain += REFLECTION_LOGITS
            path[first, s, r] = work[first, s, r] = 2.0
        elif topology == "Debate":
            coders = len(team) // 2
            path[last, revision, r], work[last, revision, r] = 1.0, coders
            work[first, s, r] = coders
        path[first, final, r] = work[first, final, r] = 1.0
        for domain, name in enumerate(DOMAINS):
            if not coders:
                chance[domain, r] = _solved(logits + gain)
            elif name == "Code":
                best = max(logits, spec.ability[first])
                chance[domain, r] = _solved(best + gain + CODER_LOGITS * coders)
            elif coders == 1:
                draft = DRAFT_GAIN * (_solved(spec.ability[first]) - DRAFT_MIDDLE)
                chance[domain, r] = _solved(logits + gain + draft)
    flat = (-1, len(recipes))
    table = tabulate(recipes, spec.num_strategies)
    return table, chance, path.reshape(flat), work.reshape(flat)


def _solved(logits: float) -> float:
    """Return the share of questions that a model of some ability solves."""
    return float(sigmoid(np.asarray(logits - DIFFICULTY_SD * NODES)) @ WEIGHTS)
