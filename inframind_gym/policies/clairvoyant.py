"""A bound, not a contestant: the scheduler that knows all luck beforehand and plans greedily.

When a query arrives it plays hundreds of recipes (`inframind_gym/policies/oracle`), and thousands where none
of these helps: it knows which of them will solve it and how many tokens every call will take, and
it sees the servers as they are, not as they were polled. It takes the recipe that solves the query
in time at the least cost in server time.

What it reaches can be reached with that knowledge, and no router has it: it redraws its luck by
choosing among routes until an answer happens to be right. It does not know who arrives next and
never goes back on a choice, so it proves no maximum; `inframind_gym.benchmark.bounds` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec
from inframind_gym.policies.oracle.choice import choose
from inframind_gym.policies.oracle.recipe import OUTCOME, PACE, RECIPE
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES

_ROLE, _ROUTE = 2, 2 + MAX_AGENTS  # places in an action at the joint level
_IO, _CHAIN, _DEBATE, _REFLECTION = (
    TOPOLOGIES.index(name) for name in ("IO", "Chain", "Debate", "Reflection")
)
_SINGLE, _DOUBLE, _CODER = RoleRule
SAFETY: Final = 2.0  # what else arrives before the query is done makes it slower
PATIENCE_S: Final = 2.0  # work left on a GPU that doubles the price of its time
LARGE: Final = 4000  # recipes that are tried where no small one helps


class ClairvoyantPolicy(BasePolicy):
    """Plays every small recipe beforehand and takes the cheapest that solves the query in time.

    Where none does, the one that is soonest out of the way: a late answer counts for nothing.

    Args:
        safety: factor on the latency that it expects; at least 1.
    """

    name = "clairvoyant"
    bound: ClassVar[bool] = True  # shown beside the contestants, not ranked with them
    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(self, safety: float = SAFETY) -> None:
        if not float(safety) >= 1.0:
            raise ConfigError(f"safety is {safety}; it must be at least 1")
        self.safety = float(safety)
        self._simulation: Simulation | None = None
        self._recipes: NDArray[Any] = np.zeros(0, RECIPE)
        self._small = 0
        self._routes: list[dict[int, NDArray[np.int8]]] = []

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Write down the recipes."""
        super().reset(spec, seeds)
        small, large = small_recipes(spec.num_actions), large_recipes(spec.num_actions)
        self._small = len(small)
        self._recipes = np.concatenate([small, large])
        self._routes = [{} for _ in seeds]

    def foresee(self, simulation: Simulation) -> None:
        """Be shown the simulation; row i of the policy is environment i of the simulation."""
        self._simulation = simulation

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The plan of a query that has arrived, or the route that it was given then.

        Raises:
            ConfigError: Whoever runs the policy has not shown it the simulation.
        """
        if self._simulation is None:
            raise ConfigError(
                "clairvoyant has not been shown the simulation: call foresee(simulation) after "
                "reset, as `inframind bench run` does"
            )
        actions = np.zeros((len(rows), _ROUTE + 1), np.int64)
        due = np.flatnonzero(contexts["kind"] == PLAN)
        if len(due):
            self._plan(actions, contexts, rows, due)
        for i in np.flatnonzero(contexts["kind"] != PLAN).tolist():
            context = contexts[i]
            routes = self._routes[rows[i]]
            query, node = int(context["query"]), int(context["node"])
            actions[i, _ROUTE] = routes[query][node]
            if node == context["num_nodes"] - 1:
                del routes[query]
        return actions

    def _plan(
        self,
        actions: NDArray[np.int64],
        contexts: Contexts,
        rows: NDArray[np.int64],
        due: NDArray[np.int64],
    ) -> None:
        assert self._simulation is not None
        params, state, cluster = (
            self._simulation.params,
            self._simulation.state,
            self._simulation.cluster,
        )
        models, slots = cluster.running.shape[1:]
        chosen, roles = np.zeros(len(due), np.int64), np.zeros(len(due), np.int64)
        choose(
            params, state, cluster, np.ascontiguousarray(rows[due]), self._recipes, self._small,
            self.safety, PATIENCE_S, np.zeros(models, PACE), np.zeros((2, MAX_NODES)),
            np.zeros(slots), np.zeros((3, models)), np.zeros(1, OUTCOME), chosen, roles,
        )  # fmt: skip
        for i, r, role in zip(due.tolist(), chosen.tolist(), roles.tolist(), strict=True):
            recipe = self._recipes[r]
            actions[i, 0] = recipe["topology"]
            actions[i, 1] = recipe["num_agents"] - 1
            actions[i, _ROLE:_ROUTE] = role
            self._routes[rows[i]][int(contexts["query"][i])] = recipe["route"].copy()


def small_recipes(routes: int) -> NDArray[Any]:
    """(r,) RECIPE: one agent, once or twice; two answers that follow or join one another.

    Args:
        routes: number of routes.
    """
    plans: list[tuple[int, int, int, tuple[int, ...]]] = []
    for a in range(routes):
        plans += [(_IO, 1, _SINGLE, (a,)), (_REFLECTION, 1, _SINGLE, (a,))]
        plans.append((_REFLECTION, 1, _DOUBLE, (a,)))
        for b in range(routes):
            plans += [(_DEBATE, 1, _SINGLE, (a, b)), (_DEBATE, 1, _CODER, (a, b))]
            plans += [(_CHAIN, 2, _CODER, (a, b)), (_IO, 2, _SINGLE, (a, b))]
    recipes = np.zeros(len(plans), RECIPE)
    for recipe, (topology, agents, kind, chosen) in zip(recipes, plans, strict=True):
        recipe["topology"], recipe["num_agents"], recipe["role_kind"] = topology, agents, kind
        recipe["route"][: len(chosen)] = chosen
    return recipes


def large_recipes(routes: int) -> NDArray[Any]:
    """(LARGE,) RECIPE: a fixed sample of teams, for queries that no small recipe solves in time.

    Args:
        routes: number of routes.
    """
    rng = np.random.default_rng(0)
    recipes = np.zeros(LARGE, RECIPE)
    recipes["topology"] = rng.integers(len(TOPOLOGIES), size=LARGE)
    recipes["num_agents"] = rng.integers(2, MAX_AGENTS + 1, size=LARGE)
    kinds = np.array([_SINGLE, _CODER, _DOUBLE])  # in the order that the draws were always for
    recipes["role_kind"] = kinds[rng.integers(len(kinds), size=LARGE)]
    # Half of them use two routes only: their models agree on who has the last word.
    pair = rng.integers(routes, size=(LARGE, 2))
    which = rng.integers(2, size=(LARGE, MAX_NODES))
    free = rng.integers(routes, size=(LARGE, MAX_NODES))
    mixed = rng.random((LARGE, 1)) < 0.5
    recipes["route"] = np.where(mixed, free, np.take_along_axis(pair, which, axis=1))
    return recipes
