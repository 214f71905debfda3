"""`clairvoyant`, a bound: a scheduler that knows all random numbers beforehand and plans greedily.

When a query arrives it plays hundreds of recipes (`inframind_gym.policies.oracle`), and thousands
where none of these helps: it knows which of them will solve it and how many tokens every call will
take, and it sees the servers as they are, not as they were polled. It takes the recipe that solves
the query in time at the least cost in server time.

Its result can be reached with that knowledge, which no router has: by choosing among routes it
redraws the random numbers until an answer happens to be right. It does not know future arrivals and
never changes a choice, so it proves no maximum; `inframind_gym.evaluation.bounds` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.layout import PolicySpec
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import BasePolicy, Contexts
from inframind_gym.policies.oracle import (
    RECIPE,
    Oracle,
    RecipeKey,
    jit,
    make_oracle,
    outcomes_of,
    recipes_of,
)
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.state import FAR_CLOCK, Cluster
from inframind_gym.simulator.workflow.lifecycle import priority
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import PLAN, EnvState
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES

_ROLE, _ROUTE = 2, 2 + MAX_AGENTS  # places in an action at the joint level
_IO, _CHAIN, _DEBATE, _REFLECTION = (
    TOPOLOGIES.index(name) for name in ("IO", "Chain", "Debate", "Reflection")
)
_SINGLE, _DOUBLE, _CODER = RoleRule
_ONE = np.uint32(1)
SAFETY: Final = 2.0  # later arrivals make a query slower
PATIENCE_S: Final = 2.0  # work left on a GPU that doubles the price of its time
LARGE: Final = 4000  # recipes that are tried where no small one helps


class ClairvoyantPolicy(BasePolicy):
    """Plays every small recipe beforehand and takes the cheapest that solves the query in time.

    Where none does, the soonest that solves it, else the one that costs least.

    Args:
        safety: factor on the latency that it expects; at least 1.
    """

    name = "clairvoyant"
    bound: ClassVar[bool] = True  # listed with the contestants, not ranked
    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(self, safety: float = SAFETY) -> None:
        if not safety >= 1.0:
            raise ConfigError(f"safety is {safety}; it must be at least 1")
        self.safety = safety
        self._simulation: RoutingSimulation | None = None

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Make the recipes."""
        super().reset(spec, seeds)
        small = small_recipes(spec.num_actions)
        self._small = len(small)
        self._recipes = np.concatenate([small, large_recipes(spec.num_actions)])
        self._routes: list[dict[int, NDArray[np.int8]]] = [{} for _ in seeds]

    def foresee(self, simulation: RoutingSimulation) -> None:
        """Take the simulation, whose environment i is row i of the policy."""
        self._simulation = simulation
        graphs, strategies = simulation.params.graphs, simulation.params.strategy_cdf.shape[1]
        recipes = self._recipes
        nodes = graphs.num_nodes[recipes["topology"], recipes["num_agents"] - 1]
        bits = np.uint32(1) << (recipes["route"] // strategies).astype(np.uint32)
        has_node = np.arange(MAX_NODES) < nodes[:, None]
        self._needs = np.bitwise_or.reduce(np.where(has_node, bits, 0).astype(np.uint32), axis=1)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the plan of a query that has arrived, or the route that was chosen with it.

        Raises:
            ConfigError: `foresee` was not called.
        """
        if self._simulation is None:
            raise ConfigError(
                "clairvoyant needs the simulation: call foresee(simulation) after reset, as "
                "`inframind bench run` does"
            )
        actions = np.zeros((len(rows), _ROUTE + 1), np.int64)
        for i, context in enumerate(contexts):
            routes, query = self._routes[rows[i]], int(context["query"])
            if context["kind"] == PLAN:
                recipe, role = self._choose(int(rows[i]))
                actions[i, 0] = recipe["topology"]
                actions[i, 1] = recipe["num_agents"] - 1
                actions[i, _ROLE:_ROUTE] = role
                routes[query] = recipe["route"].copy()
                continue
            node = int(context["node"])
            actions[i, _ROUTE] = routes[query][node]
            if node == context["num_nodes"] - 1:
                del routes[query]
        return actions

    def _choose(self, e: int) -> tuple[Any, int]:
        """Return a recipe for the query whose plan is due in environment `e`, and its role.

        Of the recipes that solve it within its budget at the present pace the cheapest. Without
        one, the soonest that solves it in time without the safety factor; without that, the
        cheapest of all.
        """
        assert self._simulation is not None
        simulation = self._simulation
        cluster, state = simulation.cluster, simulation.state
        params, episode = simulation.params, state.stream[e]
        query = state.query[e, episode["slot"]]
        models, slots = cluster.running.shape[1:]
        oracle, price = make_oracle(params, cluster.card), np.zeros(models)
        price_work(oracle, state, cluster, e, np.zeros(slots), np.zeros(models), price)
        left_s = query["budget_s"] - (episode["now_s"] - query["arrival_s"])
        tasks, ordinal = query["task"][None], int(query["ordinal"])
        usable = self._needs & ~episode["models_up"] == 0
        parts = []
        for part in (slice(self._small), slice(self._small, None)):
            recipes = self._recipes[part][usable[part]]
            played, work = outcomes_of(oracle, episode["key"], tasks, recipes, ordinal)
            parts.append((recipes, played[:, 0], work[:, 0]))
            if ((played["solved"] == 1) & (played["latency_s"] <= left_s)).any():
                break
        recipes, outcomes, work_s = (np.concatenate(found) for found in zip(*parts, strict=True))
        if simulation.execution == "sequential":
            work_s[np.arange(len(work_s)), outcomes["final_model"]] += outcomes["final_work_s"]
        cost = np.zeros(len(recipes))
        for m in range(models):
            cost += work_s[:, m] * price[m]
        latency_s = np.where(outcomes["solved"] == 1, outcomes["latency_s"], np.inf)
        is_safe, is_in_time = latency_s * self.safety <= left_s, latency_s <= left_s
        best = np.where(is_safe, cost, np.inf).argmin() if is_safe.any() else cost.argmin()
        if is_in_time.any() and not is_safe.any():
            best = len(recipes) - 1 - latency_s[::-1].argmin()
        return recipes[best], int(outcomes["role"][best] - params.role_start[query["domain"]])


def small_recipes(routes: int) -> NDArray[Any]:
    """Return recipes of one agent, once or twice, or two that follow or join, (r,) RECIPE.

    Args:
        routes: number of routes.
    """
    plans: list[RecipeKey] = []
    for a in range(routes):
        plans += [(_IO, 1, _SINGLE, (a,)), (_REFLECTION, 1, _SINGLE, (a,))]
        plans.append((_REFLECTION, 1, _DOUBLE, (a,)))
        for b in range(routes):
            plans += [(_DEBATE, 1, _SINGLE, (a, b)), (_DEBATE, 1, _CODER, (a, b))]
            plans += [(_CHAIN, 2, _CODER, (a, b)), (_IO, 2, _SINGLE, (a, b))]
    return recipes_of(plans)


def large_recipes(routes: int) -> NDArray[Any]:
    """Return a fixed sample of teams, for queries that no small recipe solves, (LARGE,) RECIPE.

    Args:
        routes: number of routes.
    """
    rng = np.random.default_rng(0)
    recipes = np.zeros(LARGE, RECIPE)
    recipes["topology"] = rng.integers(len(TOPOLOGIES), size=LARGE)
    recipes["num_agents"] = rng.integers(2, MAX_AGENTS + 1, size=LARGE)
    kinds = np.array([_SINGLE, _CODER, _DOUBLE])
    recipes["role_kind"] = kinds[rng.integers(len(kinds), size=LARGE)]
    # Half of them use two routes only, so that one model has most nodes and decides.
    pair = rng.integers(routes, size=(LARGE, 2))
    which = rng.integers(2, size=(LARGE, MAX_NODES))
    free = rng.integers(routes, size=(LARGE, MAX_NODES))
    mixed = rng.random((LARGE, 1)) < 0.5
    recipes["route"] = np.where(mixed, free, np.take_along_axis(pair, which, axis=1))
    return recipes


@inner
def first_free(slots: Any, size: int) -> int:
    """Return the index of the slot that is free first."""
    best = 0
    for i in range(1, size):
        if slots[i] < slots[best]:
            best = i
    return best


@inner
def present_pace(
    cluster: Cluster, card: Any, e: int, m: int, rank: float, slots: Any, pace: Any
) -> float:
    """Write the present pace of server `m`; return its work left, alone on its GPU, in seconds.

    A call waits until it would be admitted, if no other overtakes it.

    Args:
        cluster: the servers.
        card: that of server `m`, linear (`linear_cards`).
        e: environment of the batch.
        m: the server.
        rank: priority of a call that would be sent now.
        slots: (S,) scratch: steps until each slot is free.
        pace: a PACE record, written.
    """
    server = cluster.server[e, m]
    token_s = card.base_s / card.max_num_seqs + card.per_seq_s + card.per_new_token_s
    size = int(card.max_num_seqs)
    work_s = 0.0
    for i in range(size):
        slots[i] = 0.0
        if i < server.running:
            request = cluster.request[e, cluster.running[e, m, i]]
            left = float(request.output_tokens - request.generated)
            if cluster.finish_clock[e, m, i] != FAR_CLOCK:
                left = float(cluster.finish_clock[e, m, i] - server.clock)
            slots[i] = left
            work_s += left * token_s
    for i in range(server.waiting):
        entry = cluster.waiting[e, m, i]
        request = cluster.request[e, entry.request]
        left = float(request.output_tokens - request.generated)
        work_s += left * token_s + request.prompt_tokens * card.per_new_token_s
        if entry.priority <= rank:
            slots[first_free(slots, size)] += left
    peers = 0
    for other in range(cluster.card.shape[0]):
        state = cluster.server[e, other]
        if card.peers >> np.uint32(other) & _ONE and state.running + state.waiting > 0:
            peers += 1
    pace.factor = 1.0 + card.slowdown * peers
    seqs = min(server.running + server.waiting + 1, card.max_num_seqs)
    step_s = card.base_s + seqs * (card.per_seq_s + card.per_new_token_s)
    step_s += card.per_kv_token_s * server.kv_tokens
    if card.sparse_s > 0.0:
        step_s += card.sparse_s * (1.0 - math.exp(-seqs / card.sparse_tokens))
    pace.step_s = pace.factor * step_s
    pace.wait_s = slots[first_free(slots, size)] * pace.step_s
    return float(work_s)


@jit
def price_work(
    oracle: Oracle,
    state: EnvState,
    cluster: Cluster,
    e: int,
    slots: NDArray[np.float64],
    left_s: NDArray[np.float64],
    price: NDArray[np.float64],
) -> None:
    """Write the pace of every server and the price of its work, for the query whose plan is due.

    Args:
        oracle: its pace is written.
        state: state of the workflows.
        cluster: the servers.
        e: environment of the batch.
        slots: (S,) scratch.
        left_s: (M,) written: work left of each server.
        price: (M,) written: of a second of work, more where more is left to do on the GPU.
    """
    episode = state.stream[e]
    query = state.query[e, episode.slot]
    rank = priority(oracle.params, query.arrival_s + query.budget_s, episode.now_s)
    models = cluster.card.shape[0]
    for m in range(models):
        left_s[m] = present_pace(cluster, oracle.card[m], e, m, rank, slots, oracle.pace[m])
    for m in range(models):
        on_gpu_s = left_s[m]
        for other in range(models):
            if cluster.card[m].peers >> np.uint32(other) & _ONE:
                on_gpu_s += left_s[other]
        price[m] = 1.0 + on_gpu_s / PATIENCE_S
