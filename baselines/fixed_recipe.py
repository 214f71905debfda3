"""The best constant: one plan and one route for every query of a workload.

The simplest rival of whatever plans. A constant that was chosen well is hard to beat where the load
is feasible for it: what an agent gains beyond it is what it makes of budgets and load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.orchestration.decisions import PLAN_ACTIONS
from inframind_gym.policy import BasePolicy, Contexts, PolicySpec
from inframind_gym.topology import MAX_AGENTS, TOPOLOGIES

CHOSEN: Final = Path(__file__).resolve().parent / "data" / "fixed_recipes.json"
FALLBACK: Final = "all"  # what workloads take that are not in the table


class FixedRecipePolicy(BasePolicy):
    """The same topology, number of agents, model and strategy for every query.

    Args:
        topology: name; all four or none must be given. Without them the recipe is the one that did
            best on the workload's validation split (`baselines/fixed_recipe_search.py`).
        num_agents: 1 to 6.
        model: alias.
        strategy: name.

    Raises:
        ConfigError: some are given and others not, or one is unknown.
    """

    requires = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(
        self,
        topology: str | None = None,
        num_agents: str | int | None = None,
        model: str | None = None,
        strategy: str | None = None,
    ) -> None:
        given = (topology, num_agents, model, strategy)
        self._recipe: dict[str, Any] | None = None
        self.name = "fixed_recipe"
        if any(part is not None for part in given):
            if any(part is None for part in given):
                raise ConfigError(
                    "fixed_recipe: give all of topology, agents, model and strategy, for example "
                    "fixed_recipe:Reflection:1:qwen-14b:DeepThink, or none of them"
                )
            self.name = ":".join(["fixed_recipe", *(str(part) for part in given)])
            self._recipe = dict(
                zip(("topology", "num_agents", "model", "strategy"), given, strict=True)
            )
            self._check(self._recipe)

    @property
    def fingerprint(self) -> str:
        """The table of chosen recipes, where it is used."""
        return "" if self._recipe is not None else CHOSEN.read_text(encoding="utf-8")

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the pool has no such model, there is no such strategy, or the environment
                does not let the policy plan.
        """
        super().reset(spec, seeds)
        if spec.level != "joint":
            raise ConfigError(
                "policy 'fixed_recipe' plans: make the environment with level=\"joint\""
            )
        recipe = self._recipe
        if recipe is None:
            table = json.loads(CHOSEN.read_text(encoding="utf-8"))
            recipe = table.get(spec.workload, table[FALLBACK])
        self._action = np.zeros(PLAN_ACTIONS + 1, np.int64)
        self._action[0] = TOPOLOGIES.index(recipe["topology"])
        self._action[1] = int(recipe["num_agents"]) - 1
        self._action[2:PLAN_ACTIONS] = np.arange(MAX_AGENTS)
        self._action[PLAN_ACTIONS] = spec.action(
            spec.model_index(recipe["model"]), spec.strategy_index(recipe["strategy"])
        )

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The plan and the route of `rows`, (n, 9)."""
        return np.tile(self._action, (len(rows), 1))

    @staticmethod
    def _check(recipe: dict[str, Any]) -> None:
        if recipe["topology"] not in TOPOLOGIES:
            problem = unknown("topology", str(recipe["topology"]), TOPOLOGIES)
            raise ConfigError(f"fixed_recipe: {problem}")
        count = str(recipe["num_agents"])
        if not count.isdecimal() or not 1 <= int(count) <= MAX_AGENTS:
            raise ConfigError(
                f"fixed_recipe: num_agents is {count!r}; it must be 1 to {MAX_AGENTS}"
            )
