"""Routers that are rules.

Blind to the load: random, round robin, one fixed choice, the measured mix, Mixture of Agents,
GPTSwarm. With telemetry: shortest queue, earliest expected answer, strongest model within budget.
Then known rules of load balancing in the setting of their authors: one call, one agent a query, and
the exact calls in flight of the router itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr

from inframind_gym.configs import StrictModel, validate
from inframind_gym.envs.core import Bools, Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, require_within
from inframind_gym.files import read_json
from inframind_gym.policies.base import BasePolicy, Contexts, draw_from, first_up, models_up
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, graph

MIX: Final = "mix"  # as a strategy: draw from the workload's measured mix of strategies
DRAW_MODEL, DRAW_STRATEGY, DRAW_TIE = range(3)  # uses of a decision's draws
# A full batch of 16 decodes 1.2-1.4 times slower than a single sequence: roofline estimates for
# 3B-32B models on H100 and H200 (TPOT at batch 16 over batch 1).
FULL_BATCH_SLOWDOWN: Final = 0.3
E2E_WEIGHT: Final = 0.5  # trust in the polled end-to-end latency of a full server
FLASH_SLACK: Final = 1.25  # call's share of the budget / expected latency; below it Flash is used
DEEP_SLACK: Final = 2.0  # the same ratio, from which on DeepThink is used
STRATEGY_LOGITS: Final = MappingProxyType({"Flash": -0.3, "Concise": 0.0, "DeepThink": 0.15})
STRATEGY_LOG_S: Final = MappingProxyType({"Flash": -0.1, "Concise": -0.1, "DeepThink": 0.25})
DIFFICULTY_SD: Final = 1.7  # spread of questions' difficulty, logits
SPREAD_LOG_S: Final = 0.5  # standard deviation of log(measured / expected seconds)
GPU_SLOWDOWN: Final = 0.5  # of a call per call in flight per slot, summed over its GPU's models
PUBLISHED_AGGREGATOR: Final = "deepseek-32b"
SWARM: Final = Path(__file__).parent / "data" / "gptswarm.json"
CALLS_PER_NODE: Final = np.array([graph(name, 1).calls_per_node for name in TOPOLOGIES])

Edge = tuple[int, int]


class Decisions(NamedTuple):
    """One decision for each of n rows: the arguments of `act_batch`, and what may be chosen."""

    observations: Float32s  # (n, d)
    contexts: Contexts  # (n,)
    rows: Ints  # (n,)
    up: Bools  # (n, M) models that may be chosen


class Heuristic(BasePolicy, ABC):
    """A policy that picks a model for every row, then a strategy."""

    strategy: str = MIX  # of every call, or "mix": drawn from the workload's measured mix

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the strategy is none of the workload's.
        """
        super().reset(spec, seeds)
        self._strategy = -1 if self.strategy == MIX else spec.strategy_index(self.strategy)

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        up = models_up(contexts, self.spec.num_models)
        due = Decisions(observations, contexts, rows, up)
        models = self.choose_models(due)
        strategies = self.choose_strategies(due, models)
        self.decisions[rows] += 1
        return np.asarray(self.spec.action(models, strategies), np.int64)

    @abstractmethod
    def choose_models(self, due: Decisions) -> Ints:
        """The (n,) models, each one of those that are `up` (n, M)."""

    def choose_strategies(self, due: Decisions, models: Ints) -> Ints:
        """The (n,) strategies for the chosen `models` (n,)."""
        if self._strategy >= 0:
            return np.full(len(due.rows), self._strategy, np.int64)
        shape = len(due.rows), self.spec.num_strategies
        share = np.broadcast_to(self.spec.strategy_share, shape)
        return draw_from(share, self.uniform(due.rows, DRAW_STRATEGY))

    def argmin(self, score: Floats, due: Decisions) -> Ints:
        """The model of lowest `score` (n, M) among those that are up; ties are drawn."""
        masked = np.where(due.up, score, np.inf)
        lowest = masked == masked.min(axis=1, keepdims=True)
        return draw_from(lowest.astype(np.float64), self.uniform(due.rows, DRAW_TIE))


class OfOneStrategy(Heuristic):
    """A policy whose strategy is an argument.

    Args:
        strategy: name of a strategy, or "mix".
    """

    def __init__(self, strategy: str = MIX) -> None:
        self.strategy = strategy
        if strategy != MIX:
            self.name = f"{type(self).name}:{strategy}"


class RandomPolicy(Heuristic):
    """Every model that is up and every strategy with equal probability."""

    def choose_models(self, due: Decisions) -> Ints:
        """A uniform draw among the models that are up."""
        return draw_from(due.up.astype(np.float64), self.uniform(due.rows, DRAW_MODEL))

    def choose_strategies(self, due: Decisions, models: Ints) -> Ints:
        """A uniform draw among the strategies."""
        equal = np.ones((len(due.rows), self.spec.num_strategies))
        return draw_from(equal, self.uniform(due.rows, DRAW_STRATEGY))


class RoundRobinPolicy(OfOneStrategy):
    """One model after the other in the pool's order; a model that is down loses its turn."""

    name = "round_robin"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Start every row at the first model."""
        super().reset(spec, seeds)
        self._next = np.zeros(len(seeds), np.int64)  # model whose turn it is

    def choose_models(self, due: Decisions) -> Ints:
        """The first model that is up, from the one whose turn it is."""
        models = first_up(self._next[due.rows], due.up)
        self._next[due.rows] = (models + 1) % self.spec.num_models
        return models


class StaticPolicy(Heuristic):
    """Always the same model with the same strategy; the next one in the pool while it is down.

    Args:
        model: alias of a model of the pool.
        strategy: name of a strategy, or "mix".
    """

    def __init__(self, model: str = "qwen-14b", strategy: str = "Concise") -> None:
        self.model, self.strategy = model, strategy
        self.name = f"static:{model}:{strategy}"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Find the model in the pool.

        Raises:
            ConfigError: the pool has no such model, or there is no such strategy.
        """
        super().reset(spec, seeds)
        self._model = spec.model_index(self.model)

    def choose_models(self, due: Decisions) -> Ints:
        """The fixed model, or the first one after it that is up."""
        return first_up(np.full(len(due.rows), self._model, np.int64), due.up)


class StaticMixPolicy(Heuristic):
    """Draws every call from the workload's measured shares of models and strategies.

    A stand-in for a router such as MasRouter: it has its average mix, and does not see queues.
    """

    def choose_models(self, due: Decisions) -> Ints:
        """A draw from the models' shares, renormalised over those that are up."""
        share = self.spec.model_share * due.up
        unused = share.sum(axis=1) <= 0.0  # rows where all models that are up have share 0
        share[unused] = due.up[unused]
        return draw_from(share, self.uniform(due.rows, DRAW_MODEL))


class MixtureOfAgentsPolicy(Heuristic):
    """Mixture of Agents: every model proposes once, the strongest one aggregates.

    Source: the MoA baseline of the published comparison (all five models propose in parallel,
    DeepSeek-R1-Distill-Qwen-32B aggregates). Here it is a fixed plan, topology IO with one agent
    per model. The workflow's final call goes to its most used model, ties to the one used first; so
    the aggregator proposes first, then the others in the pool's order. While a model is down, its
    proposal comes from the next in that order. In a pool without that aggregator it is the
    strongest model.
    """

    requires = MappingProxyType({"planner": {"topology": "IO", "num_agents": 5}})
    strategy = "Concise"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Order the pool's models, the aggregator first."""
        super().reset(spec, seeds)
        first = int(spec.ability.argmax())
        if PUBLISHED_AGGREGATOR in spec.models:
            first = spec.model_index(PUBLISHED_AGGREGATOR)
        self._order = np.array([first, *(m for m in range(spec.num_models) if m != first)])

    def choose_models(self, due: Decisions) -> Ints:
        """Model number `node` of the order, or the next that is up."""
        turn = due.contexts["node"].astype(np.int64) % self.spec.num_models
        return np.asarray(self._order[first_up(turn, due.up[:, self._order])])


Node = Annotated[int, Field(ge=0, lt=MAX_AGENTS)]


class Swarm(StrictModel):
    """A trained graph of GPTSwarm."""

    # Alias of the model of each node; the first also makes the final call.
    models: tuple[str, ...] = Field(min_length=1, max_length=MAX_AGENTS)
    edges: tuple[tuple[Node, Node], ...]  # [i, j], i < j: node j reads the answer of node i
    probabilities: tuple[float, ...] = ()  # of every possible edge, in the order of `edges_of`
    training: dict[str, Any] = Field(default_factory=dict)  # how it was made

    @model_validator(mode="after")
    def _edges_lead_on(self) -> Swarm:
        for edge in self.edges:
            if edge not in edges_of(count := len(self.models)):
                raise ValueError(f"edges: {list(edge)} must go to a later node of the {count}")
        return self


def edges_of(num_nodes: int) -> tuple[Edge, ...]:
    """All possible edges (i, j), i < j: ten for five nodes."""
    return tuple(combinations(range(num_nodes), 2))


def load_swarm(path: Path) -> Swarm:
    """Read a trained graph.

    Raises:
        ConfigError: the file cannot be read or is no such graph; names it and the key.
    """
    return validate(read_json(path), Swarm, source=str(path))


class GPTSwarmPolicy(Heuristic):
    """A fixed graph of nodes, one a model, whose edges were learned.

    Source: Zhuge et al., "GPTSwarm: Language Agents as Optimizable Graphs" (ICML 2024), as the
    published comparison has it: five nodes, and of the ten edges i < j those that REINFORCE
    learned to keep (`baselines/gptswarm.py`). Every query runs through the same graph, whatever
    the load and the budget. Node k asks its model, or the next one that is up. Every model is used
    once, so the workflow's final call goes to the model of node 0.

    Args:
        edges: JSON file of a trained graph (`inframind train gptswarm`); the shipped one if None.

    Raises:
        ConfigError: the file is no trained graph.
    """

    strategy = "Concise"  # the shipped edges were learned with it

    def __init__(self, edges: str | None = None) -> None:
        self.name = f"gptswarm:{edges}" if edges else "gptswarm"
        self.swarm = load_swarm(SWARM if edges is None else Path(edges))
        graph_edges = [list(edge) for edge in self.swarm.edges]
        agents = len(self.swarm.models)
        self.requires = {"planner": {"edges": graph_edges, "num_agents": agents}}
        self.fingerprint = f"{self.strategy} {self.swarm.models} {self.swarm.edges}"

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Find the nodes' models in the pool.

        Raises:
            ConfigError: the pool lacks one.
        """
        super().reset(spec, seeds)
        self._order = np.array([spec.model_index(model) for model in self.swarm.models], np.int64)

    def choose_models(self, due: Decisions) -> Ints:
        """The model of the node, or the next in the pool's order that is up."""
        nodes = due.contexts["node"].astype(np.int64) % len(self._order)
        return first_up(self._order[nodes], due.up)


class QueueAware(Heuristic):
    """Keeps, per row, how many calls it sent to each model since the telemetry was last polled.

    Telemetry is as old as the last poll (5 s by default). A router that trusts it alone sends a
    whole interval's calls to the same idle server. Calls that follow without a decision (a node's
    second call, the final one) and background traffic show at the next poll.
    """

    sent: Ints | Floats  # (rows, M) calls sent since the last poll

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the observation holds no queue depths.
        """
        super().reset(spec, seeds)
        if not spec.layout.has("queue"):
            raise ConfigError(
                f"policy {self.name!r} needs queue depths; make the environment with "
                "system_features that include 'queue'"
            )
        self.sent = np.zeros((len(seeds), spec.num_models), np.int64)
        self._poll = np.full(len(seeds), -1, np.int64)
        self._time_s = np.full(len(seeds), -np.inf)

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`; a new poll or episode clears what was sent."""
        poll = contexts["poll"].astype(np.int64)
        time_s = contexts["time_s"].astype(np.float64)
        fresh = (poll != self._poll[rows]) | (time_s < self._time_s[rows])
        self.sent[rows[fresh]] = 0
        self._poll[rows], self._time_s[rows] = poll, time_s
        actions = super().act_batch(observations, contexts, rows)
        self.sent[rows, self.spec.model_of(actions)] += 1
        return actions

    def load_req(self, observations: Float32s, rows: Ints) -> Floats:
        """Calls believed to be at each model, (n, M): polled depth and own calls since."""
        # The feature is float32: rounding gives the whole numbers back, so that ties are ties.
        depth = np.round(self.spec.layout.queue_depth_req(observations), 3)
        return depth + self.sent[rows]


class LeastLoadedPolicy(OfOneStrategy, QueueAware):
    """The model with the fewest calls per slot: the join-the-shortest-queue rule."""

    name = "least_loaded"

    def choose_models(self, due: Decisions) -> Ints:
        """The lowest load per slot among the models that are up; ties are drawn."""
        load = self.load_req(due.observations, due.rows)
        return self.argmin(load / self.spec.max_num_seqs, due)


def expected_answer_s(spec: PolicySpec, load: Floats) -> Floats:
    """Return the seconds until a call sent now would be answered, (n, M).

    The light-load seconds of a call grow with the batch it joins; calls beyond the slots wait, and
    a server with s slots frees one every (call / s) seconds.

    Args:
        spec: of the pool.
        load: (n, M) calls at each model.
    """
    slots = spec.max_num_seqs
    service = spec.expected_call_s * (1.0 + FULL_BATCH_SLOWDOWN * np.minimum(load / slots, 1.0))
    waiting = np.maximum(load + 1.0 - slots, 0.0)  # this call and those ahead that find no slot
    return np.asarray(service * (1.0 + waiting / slots))


class LowestExpectedLatencyPolicy(QueueAware):
    """The model that is expected to answer first."""

    def expected_latency_s(self, observations: Float32s, rows: Ints) -> Floats:
        """Seconds until a call sent now would be answered, (n, M).

        The polled end-to-end latency is blended into `expected_answer_s`, with E2E_WEIGHT times the
        share of slots in use: on an idle server the polled value is stale, for telemetry holds the
        last one while nothing finishes.
        """
        spec, load = self.spec, self.load_req(observations, rows)
        expected = expected_answer_s(spec, load)
        if not spec.layout.has("e2e"):
            return expected
        polled = spec.layout.e2e_s(observations)
        busy = np.minimum(load / spec.max_num_seqs, 1.0)
        weight = np.where(polled > 0.0, E2E_WEIGHT * busy, 0.0)
        return (1.0 - weight) * expected + weight * polled

    def choose_models(self, due: Decisions) -> Ints:
        """The lowest expected latency among the models that are up; ties are drawn."""
        return self.argmin(self.expected_latency_s(due.observations, due.rows), due)


class BudgetGreedyPolicy(LowestExpectedLatencyPolicy):
    """The strongest model whose expected latency fits the call's share of the remaining budget.

    The share is the remaining budget over the calls that still follow one another: the waves left
    (twice as many where every node makes a second call) and the final decision. The slack is the
    share over the expected latency: DeepThink from 2 on, Flash below 1.25, Concise between. Where
    no model fits, the answer will be late: the fastest model gives it with Flash, to free its slot.
    """

    def choose_models(self, due: Decisions) -> Ints:
        """The strongest model that is up and fits, else the fastest that is up."""
        expected = self.expected_latency_s(due.observations, due.rows)
        remaining_s = self.spec.layout.remaining_budget_s(due.observations)
        share_s = remaining_s / self.stages_left(due.contexts)
        fits = due.up & (expected <= share_s[:, None])
        strongest = np.where(fits, self.spec.ability, -np.inf).argmax(axis=1)
        models = np.where(fits.any(axis=1), strongest, self.argmin(expected, due))
        self._slack = share_s / expected[np.arange(len(models)), models]
        return np.asarray(models, np.int64)

    def choose_strategies(self, due: Decisions, models: Ints) -> Ints:
        """DeepThink with much slack, Flash with little, Concise between."""
        flash, concise, deep = map(self.spec.strategy_index, ("Flash", "Concise", "DeepThink"))
        thrifty = np.where(self._slack >= FLASH_SLACK, concise, flash)
        return np.asarray(np.where(self._slack >= DEEP_SLACK, deep, thrifty), np.int64)

    def stages_left(self, contexts: Contexts) -> Ints:
        """Calls that still follow one another, (n,), this one and the final decision included."""
        waves = contexts["num_waves"].astype(np.int64) - contexts["wave"]
        calls = np.maximum(waves, 1) * CALLS_PER_NODE[contexts["topology"]]
        return np.asarray(calls + 1, np.int64)


class OneAgentRule(BasePolicy, ABC):
    """A rule that scores routes: the highest score among models that are up, the first of equals.

    Every query is one call of one agent. The rule reads the calls that the router itself has sent
    and that are not answered ("in_flight"), which are exact where polled metrics are old.
    """

    requires = MappingProxyType(
        {
            "planner": {"topology": "IO", "num_agents": 1},
            "system_features": ["in_flight"],
            "observation": "index",
        }
    )
    strategy = "Concise"  # of every call
    calls = 2.0  # of a query with one agent: its answer, and the call that decides

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return routes, (n,)."""
        spec, up = self.spec, models_up(contexts, self.spec.num_models)
        in_flight = spec.layout.in_flight_req(observations)
        scores = self.scores(in_flight, Decisions(observations, contexts, rows, up))
        if scores.ndim == 3:
            scores = np.where(up[..., None], scores, -np.inf).reshape(len(rows), -1)
            return np.asarray(scores.argmax(axis=1), np.int64)
        models = np.where(up, scores, -np.inf).argmax(axis=1)
        return np.asarray(spec.action(models, spec.strategy_index(self.strategy)), np.int64)

    @abstractmethod
    def scores(self, in_flight: Floats, due: Decisions) -> Floats:
        """Return the scores of models (n, M) or routes (n, M, S), from calls in flight (n, M)."""

    def left_s(self, contexts: Contexts) -> Floats:
        """Return the seconds of the budgets that are left, (n, 1)."""
        spent_s = contexts["time_s"] - contexts["arrival_s"]
        return np.asarray(contexts["budget_s"] - spent_s)[:, None]

    def expected_s(self, in_flight: Floats) -> Floats:
        """Return the seconds until a query sent now would be answered, (n, M)."""
        return self.calls * expected_answer_s(self.spec, in_flight)


class ShortestQueuePolicy(OneAgentRule):
    """Join the shortest queue, by calls per slot.

    Source: Winston, "Optimality of the shortest line discipline" (1977).
    """

    def scores(self, in_flight: Floats, due: Decisions) -> Floats:
        """Return minus the calls per slot, (n, M)."""
        return -in_flight / self.spec.max_num_seqs


class PowerOfTwoPolicy(OneAgentRule):
    """The shorter queue of two models that are drawn for each call.

    Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
    """

    def scores(self, in_flight: Floats, due: Decisions) -> Floats:
        """Return minus the calls per slot of two models that are up, (n, M); less for others."""
        models = range(self.spec.num_models)
        draws = np.stack([self.draw(due.rows, due.contexts["query"], m) for m in models], axis=1)
        drawn = np.argsort(np.where(due.up, draws, 2.0), axis=1)[:, :2]
        is_drawn = np.zeros(in_flight.shape, np.bool_)
        np.put_along_axis(is_drawn, drawn, True, axis=1)
        return np.where(is_drawn, -in_flight / self.spec.max_num_seqs, -1e9)


class SpillPolicy(OneAgentRule):
    """The strongest model with a free slot that makes the deadline, else the fastest with Flash.

    Overflow routing, as in call centres and content networks.
    """

    def scores(self, in_flight: Floats, due: Decisions) -> Floats:
        """Return the ability of models that fit; minus the seconds, ranked below, with Flash."""
        spec, expected_s = self.spec, self.expected_s(in_flight)
        fits = (in_flight < spec.max_num_seqs) & (expected_s <= self.left_s(due.contexts))
        scores = np.full((*in_flight.shape, spec.num_strategies), -1e12)
        scores[..., spec.strategy_index("Flash")] = -1e6 - expected_s
        scores[..., spec.strategy_index(self.strategy)] = np.where(fits, spec.ability, -1e12)
        return scores


class BackpressurePolicy(OneAgentRule):
    """Drift plus penalty: V times the chance of an answer in time, less queue times service.

    The queue is the GPU's, whose models take turns. Difficulties are normal, seconds lognormal.

    Source: Neely, "Stochastic Network Optimization" (2010), section 4.

    Args:
        value: V, in calls per slot times seconds that a right answer is worth; of a scenario, the
            best of 10, 30 and 100 on its validation split (`python -m benchmarks refit`).

    Raises:
        ConfigError: V is no number from 0 to 10,000.
    """

    version = 2

    def __init__(self, value: float = 30.0) -> None:
        self.value = require_within(value, 0.0, 1e4, "backpressure: value (V)")
        self.name = "backpressure" if self.value == 30.0 else f"backpressure:{self.value!r}"

    def scores(self, in_flight: Floats, due: Decisions) -> Floats:
        """Return V·P(solved in time) - Q·s for every route, (n, M, S)."""
        spec, slots = self.spec, self.spec.max_num_seqs
        gains = np.array([STRATEGY_LOGITS.get(name, 0.0) for name in spec.strategies])
        abilities = (spec.ability[:, None] + gains).ravel()
        right = accuracy(abilities, DIFFICULTY_SD).reshape(spec.num_models, -1)  # (M, S)
        longer = np.exp([STRATEGY_LOG_S.get(name, 0.0) for name in spec.strategies])
        queue = in_flight / slots @ (spec.gpu[:, None] == spec.gpu)  # (n, M)
        idle_s = self.calls * spec.expected_call_s[:, None] * longer  # (M, S)
        wait = np.maximum(in_flight + 1.0 - slots, 0.0) / slots
        slow = (1.0 + GPU_SLOWDOWN * np.minimum(queue, 2.0)) * (1.0 + wait)
        left_s = np.maximum(self.left_s(due.contexts), 1e-3)[..., None]
        in_time = ndtr(np.log(left_s / (idle_s * slow[..., None])) / SPREAD_LOG_S)
        busy_s = idle_s * (slots.mean() / slots)[:, None]  # of a slot like the mean one
        return np.asarray(self.value * right * in_time - queue[..., None] * busy_s)
