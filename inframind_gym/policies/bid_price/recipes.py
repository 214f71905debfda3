"""Recipes: topology, agents, roles, models and strategy of a query, fixed when it arrives.

A query whose every call is decided on arrival can be priced on arrival.
"""

from __future__ import annotations

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
    graph,
)
from inframind_gym.tasks import DOMAINS

_DEBATE: Final = TOPOLOGIES.index("Debate")


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

    topology: NDArray[np.int64]  # (R,)
    num_agents: NDArray[np.int64]  # (R,)
    roles: NDArray[np.int64]  # (R,) RoleRule
    strategy: NDArray[np.int64]  # (R,)
    models: NDArray[np.int64]  # (R, MAX_NODES), -1 beyond the nodes
    routes: NDArray[np.int64]  # (R, MAX_NODES) route of each node, 0 beyond the nodes
    waves: NDArray[np.int64]  # (R, MAX_NODES), -1 beyond the nodes
    needs: NDArray[np.uint32]  # (R,) bit mask of the models that it uses

    def __len__(self) -> int:
        """Number of recipes."""
        return int(self.topology.shape[0])

    def select(self, rows: NDArray[np.int64]) -> RecipeTable:
        """Return some of the recipes, in the order of `rows`."""
        return RecipeTable(**{name: column[rows] for name, column in self._asdict().items()})

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        """Columns that a checkpoint keeps; the others follow from them."""
        return {
            f"recipes.{name}": getattr(self, name).astype(np.int16)
            for name in ("topology", "num_agents", "roles", "strategy", "models")
        }


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
    columns = [
        tensors[f"recipes.{n}"].tolist() for n in ("topology", "models", "strategy", "roles")
    ]
    return tabulate(
        [
            Recipe(topology, tuple(m for m in team if m >= 0), strategy, roles)
            for topology, team, strategy, roles in zip(*columns, strict=True)
        ],
        num_strategies,
    )


def role_orders(
    task_embeddings: NDArray[np.float32], role_embeddings: NDArray[np.float32]
) -> NDArray[np.int8]:
    """Roles of the agents by question, the best fit first: by the cosine of the embeddings.

    Args:
        task_embeddings: (T, 384), unit length.
        role_embeddings: (R, 384), in the order of ROLES.

    Returns:
        (T, domains, rules, MAX_AGENTS) positions within the domain's roles; where
        there are fewer roles than agents they repeat.
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
