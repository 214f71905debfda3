"""Fixed recipes: one plan and one route for every query of a workload; a fixed plan for a router.

The simplest baselines of policies that plan. A recipe that was chosen well is hard to beat at loads
that it can serve: a policy gains over it only by using budgets, load, teams of several models or
signs of a question's difficulty. The shipped recipes were chosen on the workloads' questions for
training and validation (`baselines/recipes.py`, last in revision 92e7edf4).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from inframind_gym.envs.core import Float32s, Ints
from inframind_gym.envs.layout import PolicySpec
from inframind_gym.errors import ConfigError, require_within, unknown
from inframind_gym.policies.base import BasePolicy, Contexts, JointPolicy, requires_of
from inframind_gym.policies.registry import resolve_policy
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

_DATA: Final = Path(__file__).resolve().parent / "data"
CHOSEN: Final = _DATA / "fixed_recipes.json"
BY_RATE: Final = _DATA / "fixed_recipes_by_rate.json"
FALLBACK: Final = "all"  # entry for workloads that are not in the tables
ENOUGH: Final = 10  # arrivals for an estimate of their rate; from fewer it is off by over a third


def recipe_action(spec: PolicySpec, recipe: Mapping[str, Any]) -> Ints:
    """The plan and the route of a recipe, (9,).

    Raises:
        ConfigError: the pool has no such model, or there is no such strategy.
    """
    action = np.zeros(PLAN_ACTIONS + 1, np.int64)
    roles = recipe.get("roles", range(MAX_AGENTS))
    action[:2] = TOPOLOGIES.index(recipe["topology"]), int(recipe["num_agents"]) - 1
    action[2 : 2 + len(roles)] = roles
    model, strategy = recipe["model"], recipe["strategy"]
    action[PLAN_ACTIONS] = spec.action(spec.model_index(model), spec.strategy_index(strategy))
    return action


class ConstantRecipes(JointPolicy):
    """Plays recipes that are chosen without regard to the query or the servers."""

    carries_out_any_plan = False
    actions: Ints  # (R, 9) plans and routes of the recipes

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Take the recipes of the workload.

        Raises:
            ConfigError: the pool lacks a model of the recipes, or there is no such strategy; or the
                policy does not plan here.
        """
        super().reset(spec, seeds)
        try:
            self.actions = np.array([recipe_action(spec, one) for one in self.recipes(spec)])
        except ConfigError as error:
            raise ConfigError(
                f"policy {self.name!r}: its recipes are not of this pool ({error}) Give it one: "
                f"fixed_recipe:CoT:1:{spec.models[0]}:Concise"
            ) from None

    def recipes(self, spec: PolicySpec) -> Sequence[Mapping[str, Any]]:
        """Return the recipes for a run."""
        raise NotImplementedError

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the plans and the routes of `rows`, (n, 9): a whole recipe for every decision."""
        return self.actions[self.choose(contexts)]

    def choose(self, contexts: Contexts) -> Ints:
        """Return the recipe of each decision, (n,): the first."""
        return np.zeros(len(contexts), np.int64)


class FixedRecipePolicy(ConstantRecipes):
    """The same topology, number of agents, model and strategy for every query.

    Args:
        topology: name. Give all four arguments or none: without them, recipe and roles are those
            that did best on the workload; a recipe that is given has the domain's first roles.
        num_agents: 1 to 6.
        model: alias.
        strategy: name.

    Raises:
        ConfigError: some are given and others not, or one is unknown.
    """

    def __init__(
        self,
        topology: str | None = None,
        num_agents: int | None = None,
        model: str | None = None,
        strategy: str | None = None,
    ) -> None:
        parts = (topology, num_agents, model, strategy)
        self.name, self.fingerprint, self.recipe = "fixed_recipe", "", None
        if not any(parts):
            self.fingerprint = CHOSEN.read_text(encoding="utf-8")
            return
        if None in parts:
            raise ConfigError(
                "fixed_recipe: give all of topology, agents, model and strategy, for example "
                "fixed_recipe:Reflection:1:qwen-14b:DeepThink, or none of them"
            )
        if topology not in TOPOLOGIES:
            raise ConfigError(f"fixed_recipe: {unknown('topology', topology, TOPOLOGIES)}")
        require_within(num_agents, 1, MAX_AGENTS, "fixed_recipe: num_agents")
        self.name = ":".join(("fixed_recipe", *map(str, parts)))
        self.recipe = dict(zip(("topology", "num_agents", "model", "strategy"), parts, strict=True))

    def recipes(self, spec: PolicySpec) -> Sequence[Mapping[str, Any]]:
        """Return the recipe of the workload."""
        return [self.recipe or _entry(CHOSEN, spec)]


class FixedRecipeByRatePolicy(ConstantRecipes):
    """The recipe that did best at the rate of the arrivals.

    It estimates the rate as the mean over the episode up to the query's arrival, and takes the
    nearest rate of the table, by ratio. So all decisions of a query agree without memory, and a
    change of the rate is noticed late. The first queries of an episode get the recipe over all
    loads (`fixed_recipe`).
    """

    def __init__(self) -> None:
        self.fingerprint = "".join(path.read_text(encoding="utf-8") for path in (CHOSEN, BY_RATE))

    def recipes(self, spec: PolicySpec) -> Sequence[Mapping[str, Any]]:
        """Return the recipes of the workload by rate, and last that over all loads."""
        by_rate = _entry(BY_RATE, spec)
        self._log_rates = np.log([float(rate) for rate in by_rate])  # (R - 1,)
        return [*by_rate.values(), _entry(CHOSEN, spec)]

    def choose(self, contexts: Contexts) -> Ints:
        """Return the recipe of the nearest rate, by ratio, (n,)."""
        arrivals = contexts["query"].astype(np.int64) + 1  # up to this one
        # Of n Poisson arrivals, the last at time T, the unbiased estimate of the rate: (n - 1) / T.
        rate_per_min = 60.0 * (arrivals - 1) / np.maximum(contexts["arrival_s"], 1e-9)
        distance = np.abs(np.log(np.maximum(rate_per_min, 1e-9))[:, None] - self._log_rates)
        return np.where(arrivals < ENOUGH, len(self._log_rates), distance.argmin(axis=1))


class PlannedPolicy(BasePolicy):
    """A router of calls with a fixed plan for every query and, if given, a fixed strategy.

    `python -m benchmarks refit --routers` chooses both for a scenario.

    Args:
        topology: of every query.
        num_agents: 1 to 6.
        strategy: of every call; "own" leaves it to the router.
        router: name of a policy that routes calls.

    Raises:
        ConfigError: there is no such topology or router, or it plans itself.
    """

    def __init__(
        self,
        topology: str = "IO",
        num_agents: int = 1,
        strategy: str = "own",
        router: str = "spill",
    ) -> None:
        if topology not in TOPOLOGIES:
            raise ConfigError(f"planned: {unknown('topology', topology, TOPOLOGIES)}")
        require_within(num_agents, 1, MAX_AGENTS, "planned: num_agents")
        self.router: Any = resolve_policy(router)
        requires = requires_of(self.router)
        if "level" in requires:
            raise ConfigError(f"planned: {router!r} plans queries itself; name a router of calls")
        self.requires = requires | {"planner": {"topology": topology, "num_agents": num_agents}}
        self.name, self.strategy = f"planned:{topology}:{num_agents}:{strategy}:{router}", strategy
        self.version = getattr(self.router, "version", 1)
        self.fingerprint = getattr(self.router, "fingerprint", "")

    def __getattr__(self, name: str) -> Any:
        """Return an optional member of the router, such as `observe`."""
        if name == "router":  # in `copy.copy`, before there are attributes
            raise AttributeError(name)
        return getattr(self.router, name)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Reset the router.

        Raises:
            ConfigError: there is no such strategy, or the router refuses.
        """
        super().reset(spec, seeds)
        self._strategy = None if self.strategy == "own" else spec.strategy_index(self.strategy)
        self.router.reset(spec, seeds)

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """The router's models with the strategy, (n,)."""
        actions: Ints = self.router.act_batch(observations, contexts, rows)
        if self._strategy is None:
            return actions
        return np.asarray(self.spec.action(self.spec.model_of(actions), self._strategy), np.int64)


def _entry(path: Path, spec: PolicySpec) -> dict[str, Any]:
    """Return the entry of a table for the workload."""
    table: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return table.get(spec.workload, table[FALLBACK])
