"""Streams of queries that do not end, side by side: the training and the validation of our PPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from agents.config import PpoLagrangianConfig
from agents.runs import seed_of
from inframind_gym.benchmark.routing.window import Window, stream_length
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.errors import ConfigError
from inframind_gym.policies import models_up
from inframind_gym.policies.bid_price.policy import BidPricePolicy
from inframind_gym.policies.inframind import draw
from inframind_gym.policies.ppo_lagrangian import (
    PLANS,
    SYSTEM_FEATURES,
    Eyes,
    Plans,
    Player,
    Seen,
)
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workload import load_workload

Array = NDArray[Any]
Choose = Callable[[Array, Array, Seen, Array, Array], tuple[Array, Array]]

ENV_ID: Final = "InfraMind-Stream-v0"
MOST_LATE: Final = 0.1  # share of late queries in rows that are imitated, or that make prices
SENT: Final = 2  # column of a server's load: log of 1 + own calls in flight per slot


class Batch(NamedTuple):
    """Decisions of queries that have been answered, in the order of time."""

    row: Array  # (n,)
    query: Array  # (n,)
    node: Array  # (n,) -1: a plan
    seen: Seen
    up: Array  # (n, M) models that could be chosen
    action: Array  # (n,) route or plan
    log_prob: Array  # (n,)
    answer: Array  # (n,) COMPLETED, of the query


class Met(NamedTuple):
    """Loads that queries met on arrival, and what became of those that followed."""

    row: Array  # (k,)
    sent: Array  # (k, M) calls in flight per slot
    later: Array  # (k,) discounted sum of the rewards of later arrivals, over the usual ones


def late_of(records: Array) -> Array:
    """Return whether queries missed their budgets, as those without an answer did."""
    late = (records["latency_s"] > records["budget_s"]) | (records["num_nodes"] == 0)
    return np.asarray(late)


def worth(records: Array, bonus: float, multiplier: float) -> Array:
    """Return r_q of queries, an array like theirs."""
    solved, late = records["solved"].astype(np.float64), late_of(records)
    return np.asarray(solved * ~late + bonus * solved - multiplier * late, np.float64)


def overrun(row: Array, records: Array) -> Array:
    """Return (n,) whether too many of the queries (n,) of a row are late to learn from it."""
    count = np.bincount(row).clip(1)
    return np.asarray((np.bincount(row, late_of(records)) / count)[row] > MOST_LATE)


class World:
    """Rows of the closed loop, on the tasks of a split.

    Args:
        config: of the training.
        split: of the tasks.
        rows: E.
        queries: N of a stream; no stream is played to its end.
    """

    def __init__(self, config: PpoLagrangianConfig, split: str, rows: int, queries: int) -> None:
        arguments = config.env.arguments(split) | {"num_queries": queries}
        arguments |= {"system_features": SYSTEM_FEATURES, "level": "joint"}
        made = gym.make_vec(ENV_ID, num_envs=rows, observation="index", **arguments)
        self.env, self.rows, self.queries = cast(StreamVectorEnv, made.unwrapped), rows, queries
        self.spec, self.config = self.env.policy_spec(), config
        self.plans = Plans(self.spec)

    def begin(self, key: tuple[int, ...], rates: Array) -> None:
        """Start a stream in every row, at rates (E,); its luck is a function of the key."""
        seeds = [seed_of(*key, row) for row in range(self.rows)]
        options = {"arrival_rate_per_min": rates}
        self._observations, _ = self.env.reset(seed=seeds, options=options)
        self._eyes = Eyes(self.spec, self.rows)
        self.arrival_s = self.env.simulation.state.arrival_s  # (E, N)
        self.records = np.zeros((self.rows, self.queries), self.env.completed()[1].dtype)
        self.sent = np.zeros((self.rows, self.queries, self.spec.num_models), np.float32)
        self._waiting: list[Array] = []
        self._met = np.zeros(self.rows, np.int64)

    def step(self, rng: np.random.Generator, choose: Choose) -> tuple[Array, ...]:
        """Take one decision in every row; returns the first columns of a batch."""
        rows, contexts = np.arange(self.rows), self.env.contexts()
        seen = self._eyes.see(self._observations, contexts, rows)
        up, is_plan = models_up(contexts, self.spec.num_models), contexts["kind"] == PLAN
        query, self.time_s = contexts["query"], contexts["time_s"]
        self.sent[rows[is_plan], query[is_plan]] = np.expm1(seen.server[is_plan, :, SENT])
        action, log_prob = choose(self._observations, contexts, seen, up, rng.random(self.rows))
        numbers = np.zeros((self.rows, PLAN_ACTIONS + 1), np.int64)
        numbers[is_plan, :-1] = self.plans.actions(action[is_plan], contexts[is_plan])
        numbers[~is_plan, -1] = action[~is_plan]
        self._observations, _, _, _, _ = self.env.step(numbers)
        of, finished = self.env.completed()
        self.records[of, finished["query"]] = finished
        node = np.where(is_plan, -1, contexts["node"])
        return rows, query, node, *seen, up, action, log_prob

    def play(self, choose: Choose, key: tuple[int, ...]) -> Batch:
        """Go on by the steps of an update; returns the decisions that it can learn from.

        Args:
            choose: makes the decisions.
            key: of its luck.
        """
        rng = np.random.default_rng(key)
        steps = [self.step(rng, choose) for _ in range(self.config.steps)]
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        if self._waiting:
            columns = [np.concatenate(c) for c in zip(self._waiting, columns, strict=True)]
        answer = self.records[columns[0], columns[1]]
        is_due = answer["num_nodes"] > 0
        self._waiting = [column[~is_due] for column in columns]
        due = [column[is_due] for column in columns]
        facts: list[Any] = [*due[:3], Seen(*due[3:7]), *due[7:], answer[is_due]]
        return Batch._make(facts)

    def met(self, multiplier: float) -> Met:
        """Return the loads, since the last call, whose followers are known by now.

        A reward counts for what it is over the mean of its question and of its row.
        """
        c, task = self.config, self.env.simulation.state.task
        known_s = self.time_s - c.settled_s
        ends_s = known_s, known_s - 2.0 * c.horizon_s
        known, met = ((self.arrival_s < t[:, None]).sum(axis=1) for t in ends_s)
        first, last = int(self._met.min()), int(known.max())
        place = np.arange(first, last)
        row, at = np.nonzero((place >= self._met[:, None]) & (place < known[:, None]))
        reward = np.zeros((self.rows, len(place)))
        reward[row, at] = worth(self.records[row, at + first], c.bonus, multiplier)
        for group in (task[row, at + first], row):
            mean = np.bincount(group, reward[row, at]) / np.bincount(group).clip(1)
            reward[row, at] -= mean[group]
        total, later = np.zeros(self.rows), np.zeros(reward.shape)
        for j in reversed(range(len(place))):
            later[:, j] = total
            gap_s = self.arrival_s[:, first + j] - self.arrival_s[:, max(first + j - 1, 0)]
            total = np.exp(-gap_s / c.horizon_s) * (total + reward[:, j])
        is_due = (at + first < met[row]) & ~overrun(row, self.records[row, at + first])
        row, at, self._met = row[is_due], at[is_due], np.maximum(met, self._met)
        return Met(row, self.sent[row, at + first], later[row, at])


def by_network(player: Player, *, sample: bool) -> Choose:
    """Return the chooser that draws a network's actions, or takes the likeliest."""

    def choose(
        _: Array, contexts: Array, seen: Seen, up: Array, uniforms: Array
    ) -> tuple[Array, Array]:
        is_plan = contexts["kind"] == PLAN
        action, log_prob = np.zeros(len(up), np.int64), np.zeros(len(up), np.float32)
        for due, log_probs in zip((~is_plan, is_plan), player.log_probs(seen, up), strict=True):
            own = log_probs[due]
            chosen = draw(own, uniforms[due]) if sample else own.argmax(axis=1)
            action[due], log_prob[due] = chosen, own[np.arange(len(own)), chosen]
        return action, log_prob

    return choose


def by_teacher(spec: PolicySpec, rows: int, folder: str | None = None) -> Choose:
    """Return the chooser that is imitated: the recipes of `bid_price`.

    Args:
        spec: the facts of the run.
        rows: how many.
        folder: of its checkpoint; None: the shipped one.

    Raises:
        ConfigError: it has no prices for this pool.
    """
    everyone = np.arange(rows)
    try:
        teacher = BidPricePolicy(folder)
        teacher.reset(spec, [0] * rows)
    except ConfigError as error:
        raise ConfigError(f"{error} Or imitate nothing: --set cloning=0.") from None

    def choose(observations: Array, contexts: Array, *_: Any) -> tuple[Array, Array]:
        routes = teacher.act_batch(observations, contexts, everyone)[:, -1]
        table, recipe = teacher.recipes, teacher.assigned[everyone, contexts["query"]]
        plan = table.topology[recipe], table.num_agents[recipe] - 1, table.roles[recipe]
        action = np.where(contexts["kind"] == PLAN, np.ravel_multi_index(plan, PLANS), routes)
        return action, np.zeros(rows, np.float32)

    return choose


def validate(config: PpoLagrangianConfig, player: Player, key: tuple[int, ...]) -> list[float]:
    """Return the goodput at each rate in steady load, of the likeliest actions on held-out tasks.

    As on the track `steady`, queries are scored that arrive after the longest budget has passed,
    while others go on arriving.
    """
    rates, scored = np.array(config.rates_per_min), config.validation_queries
    longest_s = max(load_workload(config.env.workload).budget_tiers_s)
    length = stream_length(float(rates.max()), scored, longest_s)
    world = World(config, "val", config.validation_rows, length)
    world.begin(key, np.resize(rates, world.rows))
    window = Window.steady(world.arrival_s, scored, longest_s)
    columns = window.first[:, None] + np.arange(scored)
    rng, choose = np.random.default_rng(0), by_network(player, sample=False)
    over = np.zeros(world.rows, np.bool_)
    while not over.all():
        for _ in range(100):
            world.step(rng, choose)
        of = np.take_along_axis(world.records, columns, 1)
        over = window.over(world.time_s) | (of["num_nodes"] > 0).all(1)
    good = worth(of, 0.0, 0.0)
    return [float(good[i :: len(rates)].mean()) for i in range(len(rates))]
