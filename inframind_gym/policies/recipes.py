"""Recipes: what `bid_price`, `adaptive` and `ppo_lagrangian` choose from, and how one is played.

A *recipe* is one way to answer a query: a topology, a team of agents with their models, a strategy
and the kind of role that the agents take. A policy chooses one when the query arrives; its plan and
the routes of its nodes follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError
from inframind_gym.policies.base import Contexts, JointPolicy, with_room
from inframind_gym.simulator.jit import as_taken
from inframind_gym.simulator.workflow.roles import ROLES, RoleRule, roles_of
from inframind_gym.simulator.workflow.topology import (
    DEBATE_ROUNDS,
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    graph,
)
from inframind_gym.tasks import DOMAINS

# Arguments of the environment that planning by recipes needs.
REQUIRES: Final[dict[str, Any]] = {"level": "joint", "system_features": ["in_flight"]}
_DEBATE: Final = TOPOLOGIES.index("Debate")
_NEVER: Final = np.uint32(2**32 - 1)  # `needs` of a recipe that must not be chosen


class Recipe(NamedTuple):
    """One way to answer a query.

    Agents take roles of one kind, the best fit for the question first; SINGLE where a domain has
    none of the kind.
    """

    topology: int  # index into TOPOLOGIES
    models: tuple[int, ...]  # of every node, indices into the pool
    strategy: int  # of every call, index into STRATEGIES
    roles: int  # a RoleRule, the kind


class RecipeTable(NamedTuple):
    """R recipes as columns."""

    topology: Ints  # (R,)
    num_agents: Ints  # (R,)
    roles: Ints  # (R,) RoleRule
    strategy: Ints  # (R,)
    models: Ints  # (R, MAX_NODES), -1 beyond the nodes
    routes: Ints  # (R, MAX_NODES) route of each node, 0 beyond the nodes
    waves: Ints  # (R, MAX_NODES), -1 beyond the nodes
    needs: NDArray[np.uint32]  # (R,) bit mask of the models that it uses

    def __len__(self) -> int:
        """Number of recipes."""
        return int(self.topology.shape[0])

    def select(self, rows: Ints) -> RecipeTable:
        """Return some of the recipes, in the order of `rows`."""
        return RecipeTable(**{name: column[rows] for name, column in self._asdict().items()})

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Return the columns that a checkpoint keeps; the others follow from them."""
        names = ("topology", "num_agents", "roles", "strategy", "models")
        return {f"recipes.{name}": getattr(self, name).astype(np.int16) for name in names}


def tabulate(recipes: Sequence[Recipe], num_strategies: int) -> RecipeTable:
    """Tabulate recipes."""
    count = len(recipes)
    models = np.full((count, MAX_NODES), -1, np.int64)
    waves = np.full((count, MAX_NODES), -1, np.int64)
    agents = np.zeros(count, np.int64)
    for r, recipe in enumerate(recipes):
        nodes = len(recipe.models)
        agents[r] = nodes // DEBATE_ROUNDS if recipe.topology == _DEBATE else nodes
        models[r, :nodes] = recipe.models
        waves[r, :nodes] = graph(TOPOLOGIES[recipe.topology], int(agents[r])).waves
    strategy = np.array([r.strategy for r in recipes], np.int64)
    bits = np.where(models >= 0, np.uint32(1) << models.clip(0).astype(np.uint32), np.uint32(0))
    return RecipeTable(
        topology=np.array([r.topology for r in recipes], np.int64),
        num_agents=agents,
        roles=np.array([r.roles for r in recipes], np.int64),
        strategy=strategy,
        models=models,
        routes=models.clip(0) * num_strategies + strategy[:, None],
        waves=waves,
        needs=np.bitwise_or.reduce(bits, axis=1).astype(np.uint32),
    )


def table_from_tensors(tensors: Mapping[str, NDArray[Any]], num_strategies: int) -> RecipeTable:
    """Return the table whose `to_tensors` these are."""
    columns = [tensors[f"recipes.{name}"].tolist() for name in Recipe._fields]
    recipes = [
        Recipe(topology, tuple(m for m in team if m >= 0), strategy, roles)
        for topology, team, strategy, roles in zip(*columns, strict=True)
    ]
    return tabulate(recipes, num_strategies)


def role_orders(task_embeddings: Float32s, role_embeddings: Float32s) -> NDArray[np.int8]:
    """Return the agents' roles for every question, the best fit first: by cosine of embeddings.

    Embeddings of questions (T, 384) have unit length; those of roles (R, 384) are as in ROLES.

    Returns:
        (T, domains, rules, MAX_AGENTS) positions within the domain's roles; too few roles repeat.
    """
    fit = task_embeddings.astype(np.float64) @ role_embeddings.astype(np.float64).T
    out = np.zeros((len(fit), len(DOMAINS), len(RoleRule), MAX_AGENTS), np.int8)
    twice = np.array([role.calls == 2 for role in ROLES])
    codes = np.array([role.writes_code for role in ROLES])
    members = {RoleRule.SINGLE: ~twice, RoleRule.DOUBLE: twice, RoleRule.CODER: ~twice & codes}
    for d, domain in enumerate(DOMAINS):
        roles = np.array(roles_of(domain))
        for rule in RoleRule:
            is_member = members[rule][roles]
            group = np.flatnonzero(is_member if is_member.any() else ~twice[roles])
            order = group[np.argsort(-fit[:, roles[group]], axis=1, kind="stable")]
            out[:, d, rule] = order[:, np.arange(MAX_AGENTS) % len(group)]
    return out


class RecipePolicy(JointPolicy):
    """Carries out a recipe for every query: its plan first, then the route of every node.

    Recipes are drawn at random here, from `recipes`; subclasses choose them.
    """

    name = "random_recipes"
    requires: Mapping[str, Any] = MappingProxyType(REQUIRES)
    carries_out_any_plan = False
    assigned: Ints  # (rows, queries) recipe of each query by its ordinal
    in_flight: Floats  # (rows, queries, M) calls at each model when the query was planned

    def __init__(self, recipes: RecipeTable) -> None:
        self.recipes = recipes

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the policy does not plan here, or does not see its own calls in flight.
        """
        super().reset(spec, seeds)
        if not spec.layout.has("in_flight"):
            raise ConfigError(
                f"policy {self.name!r} counts its own calls: make the environment with "
                '"in_flight" among the system_features'
            )
        self._roles = role_orders(spec.task_embeddings, spec.role_embeddings)
        self.assigned = np.zeros((len(seeds), 0), np.int64)
        self.in_flight = np.zeros((len(seeds), 0, spec.num_models))

    def plan_single_calls(self) -> None:
        """Carry out recipes of one agent that calls once, until the next `reset`.

        Raises:
            ConfigError: there are none.
        """
        reflects = self.recipes.topology == TOPOLOGIES.index("Reflection")
        is_single = ((self.recipes.models >= 0).sum(axis=1) == 1) & ~reflects
        if not is_single.any():
            raise ConfigError(f"policy {self.name!r} has no recipe of one call")
        needs = as_taken(np.where(is_single, self.recipes.needs, _NEVER))
        # Not `_replace`: it checks the number of columns by `len`, which counts recipes here.
        self.recipes = RecipeTable(**self.recipes._asdict() | {"needs": needs})

    def choose(self, in_flight: Floats, contexts: Contexts, rows: Ints) -> Ints:
        """Return recipes (n,) for queries that have just arrived, with calls in flight (n, M)."""
        draws = self.draw(rows, contexts["query"])
        return np.minimum((draws * len(self.recipes)).astype(np.int64), len(self.recipes) - 1)

    def plans(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Choose and remember a recipe for each query; return their plans (n, 8)."""
        in_flight, query = self.spec.layout.in_flight_req(observations), contexts["query"]
        if query.max() >= self.assigned.shape[1]:
            self.assigned = with_room(self.assigned, query)
            self.in_flight = with_room(self.in_flight, query)
        chosen, recipes = self.choose(in_flight, contexts, rows), self.recipes
        self.assigned[rows, query], self.in_flight[rows, query] = chosen, in_flight
        roles = self._roles[contexts["task"], contexts["domain"], recipes.roles[chosen]]
        return np.column_stack([recipes.topology[chosen], recipes.num_agents[chosen] - 1, roles])

    def routes(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes (n,) of nodes by the recipes of their queries."""
        chosen = self.assigned[rows, contexts["query"]]
        return np.asarray(self.recipes.routes[chosen, contexts["node"]])
