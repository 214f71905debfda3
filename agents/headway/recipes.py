"""Recipes: whole ways to answer a query, from the topology down to the model of every agent.

A query whose every call is decided when it arrives can be priced when it arrives. A recipe fixes
topology, agents, roles, models and strategy; a book of recipes is what Headway chooses from.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.workflow.roles import ROLES, RoleRule, roles_of
from inframind_gym.simulator.workflow.topology import (
    DEBATE_ROUNDS,
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    distinct_plans,
    graph,
)
from inframind_gym.tasks import DOMAINS

_MOST_TEAMS: Final = 40  # choices of models that are tried for many agents
_MOST_DOUBLE: Final = 4  # agents that are tried with roles that answer twice
_DEBATE: Final = TOPOLOGIES.index("Debate")


class Recipe(NamedTuple):
    """One way to answer a query.

    Attributes:
        topology: index into TOPOLOGIES.
        models: of every node, indices into the pool.
        strategy: of every call, index into STRATEGIES.
        roles: a RoleRule: which of a domain's roles the agents take, those first that fit the
            question best; SINGLE where a domain has none of the kind.
    """

    topology: int
    models: tuple[int, ...]
    strategy: int
    roles: int


class RecipeBook(NamedTuple):
    """R recipes as arrays."""

    topology: NDArray[np.int64]  # (R,)
    num_agents: NDArray[np.int64]  # (R,)
    roles: NDArray[np.int64]  # (R,) RoleRule
    strategy: NDArray[np.int64]  # (R,)
    models: NDArray[np.int64]  # (R, MAX_NODES), -1 beyond the nodes
    routes: NDArray[np.int64]  # (R, MAX_NODES) what each node is routed to, 0 beyond the nodes
    waves: NDArray[np.int64]  # (R, MAX_NODES), -1 beyond the nodes
    needs: NDArray[np.uint32]  # (R,) bit mask of the models that it uses

    def __len__(self) -> int:
        """Number of recipes."""
        return int(self.topology.shape[0])

    def select(self, rows: NDArray[np.int64]) -> RecipeBook:
        """Some of the recipes, in the order of `rows`."""
        return RecipeBook(**{name: column[rows] for name, column in self._asdict().items()})

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps: the rest follows from it."""
        return {
            f"recipes.{name}": getattr(self, name).astype(np.int16)
            for name in ("topology", "num_agents", "roles", "strategy", "models")
        }


def book_of(recipes: Sequence[Recipe], num_strategies: int) -> RecipeBook:
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
    return RecipeBook(
        topology=np.array([r.topology for r in recipes], np.int64),
        num_agents=agents,
        roles=np.array([r.roles for r in recipes], np.int64),
        strategy=strategy,
        models=models,
        routes=models.clip(0) * num_strategies + strategy[:, None],
        waves=waves,
        needs=np.bitwise_or.reduce(bits, axis=1).astype(np.uint32),
    )


def book_from_tensors(tensors: Mapping[str, NDArray[Any]], num_strategies: int) -> RecipeBook:
    """The inverse of `RecipeBook.to_tensors`."""
    columns = [
        tensors[f"recipes.{n}"].tolist() for n in ("topology", "models", "strategy", "roles")
    ]
    return book_of(
        [
            Recipe(topology, tuple(m for m in team if m >= 0), strategy, roles)
            for topology, team, strategy, roles in zip(*columns, strict=True)
        ],
        num_strategies,
    )


def candidates(num_models: int, num_strategies: int, *, code: bool = True) -> list[Recipe]:
    """Every recipe that is worth a trial.

    All teams of up to three agents, and a sample of the larger ones. Where there are several waves
    the order within a team is the pool's or its reverse; in a debate one model speaks for all in
    the second round, whichever spoke in the first.

    Args:
        num_models: models of the pool.
        num_strategies: strategies.
        code: whether there are tasks whose answer is code; else CODER is the same as SINGLE.
    """
    found = []
    for topology, agents in distinct_plans():
        name = TOPOLOGIES[topology]
        rules = [
            rule
            for rule in RoleRule
            if (rule != RoleRule.DOUBLE or (name != "Reflection" and agents <= _MOST_DOUBLE))
            and (rule != RoleRule.CODER or code)
        ]
        for team in _teams(num_models, agents, topology):
            for models in _castings(name, team, num_models):
                found += [
                    Recipe(topology, models, strategy, rule)
                    for strategy in range(num_strategies)
                    for rule in rules
                ]
    return found


def _teams(num_models: int, agents: int, topology: int) -> list[tuple[int, ...]]:
    teams = list(itertools.combinations_with_replacement(range(num_models), agents))
    if len(teams) <= _MOST_TEAMS:
        return teams
    rng = np.random.default_rng([topology, agents])
    return [teams[i] for i in np.sort(rng.permutation(len(teams))[:_MOST_TEAMS])]


def _castings(name: str, team: tuple[int, ...], num_models: int) -> list[tuple[int, ...]]:
    """Models of every node for a team."""
    if name == "Debate":
        return [team + (second,) * len(team) for second in range(num_models)]
    if name in ("Chain", "FullConnected"):
        return list(dict.fromkeys((team, team[::-1])))
    return [team]


def role_orders(
    task_embeddings: NDArray[np.float32], role_embeddings: NDArray[np.float32]
) -> NDArray[np.int8]:
    """Roles of the agents by question: those that fit it best come first.

    Fit is the cosine of the embeddings.

    Args:
        task_embeddings: (T, 384), unit length.
        role_embeddings: (R, 384), in the order of ROLES.

    Returns:
        (T, domains, rules, MAX_AGENTS) positions within the domain's roles, as a plan wants them;
        where there are fewer roles than agents they come again.
    """
    fit = task_embeddings.astype(np.float64) @ role_embeddings.astype(np.float64).T
    out = np.zeros((len(fit), len(DOMAINS), len(RoleRule), MAX_AGENTS), np.int8)
    for d, domain in enumerate(DOMAINS):
        own = np.array(roles_of(domain))
        for rule in RoleRule:
            group = np.flatnonzero([_belongs(int(role), rule) for role in own])
            if not len(group):
                group = np.flatnonzero([_belongs(int(role), RoleRule.SINGLE) for role in own])
            order = group[np.argsort(-fit[:, own[group]], axis=1, kind="stable")]
            out[:, d, rule] = order[:, np.arange(MAX_AGENTS) % len(group)]
    return out


def _belongs(role: int, rule: RoleRule) -> bool:
    calls, codes = ROLES[role].calls, ROLES[role].writes_code
    if rule == RoleRule.DOUBLE:
        return calls == 2
    return calls == 1 and (codes or rule == RoleRule.SINGLE)
