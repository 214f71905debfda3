"""Policies that carry out recipes, and the one that chooses them by bid prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec
from inframind_gym.policies.bid_price.model import (
    BidPriceModel,
    between,
    choose,
    chooser,
    load_model,
    read_about,
)
from inframind_gym.policies.bid_price.recipes import RecipeTable, role_orders
from inframind_gym.policies.checkpoint import fingerprint, folders
from inframind_gym.simulator.native import as_taken
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

SHIPPED: Final = Path(__file__).resolve().parents[1] / "checkpoints" / "bid_price"
TRAIN: Final = (
    "Train one in a checkout: `python -m agents.train --config bid_price --pool POOL.yaml "
    "--workload WORKLOAD.yaml --out FOLDER`, and play bid_price:FOLDER/best"
)
FALLBACK: Final = "mixed"  # the checkpoint of workloads that have none of their own
MODES: Final = ("no-prices", "no-state", "no-difficulty", "polled")
"""Ablations: work costs nothing; calls in flight are not seen; all questions of a domain count as
equally hard; the polled queue depths take the place of the policy's own calls in flight."""

_FREE: Final = -1e3  # log of a price
_NEVER: Final = np.uint32(2**32 - 1)  # models that a recipe needs to be left out
_WINDOW: Final = 256  # arrivals from which their rate is estimated
_PRIOR_QUERIES: Final = 8.0  # assumed before any arrival, at the highest rate that has prices


def requirements(mode: str | None = None) -> dict[str, Any]:
    """Return the arguments of the environment that a mode needs, one of MODES or None.

    Raises:
        ConfigError: there is no such mode.
    """
    if mode is not None and mode not in MODES:
        raise ConfigError(f"policy 'bid_price': {unknown('mode', mode, MODES)}")
    seen = ["queue", "in_flight"] if mode == "polled" else ["in_flight"]
    return {"level": "joint", "system_features": seen}


class RecipePolicy(BasePolicy):
    """Carries out a recipe for every query: its plan first, then the route of every node.

    Recipes are drawn at random here; subclasses choose them.

    Args:
        recipes: those that it draws from.

    Attributes:
        assigned: (rows, queries) recipe of each query by its ordinal.
        in_flight: (rows, queries, M) calls at each model when the query was planned.
    """

    name = "random_recipes"
    requires: Mapping[str, Any] = MappingProxyType(requirements())
    carries_out_any_plan = False

    def __init__(self, recipes: RecipeTable) -> None:
        self.recipes = recipes

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the policy does not plan here, or does not see its own calls in flight.
        """
        super().reset(spec, seeds)
        if spec.level != "joint" or not spec.layout.has("in_flight"):
            raise ConfigError(
                f"policy {self.name!r} plans and routes, and counts its own calls: make the "
                'environment with level="joint" and "in_flight" among the system_features'
            )
        self._roles = role_orders(spec.task_embeddings, spec.role_embeddings)
        self.assigned = np.zeros((len(seeds), 0), np.int64)
        self.in_flight = np.zeros((len(seeds), 0, spec.num_models))

    def plan_single_calls(self) -> None:
        """Carry out recipes of one agent that calls once, until the next `reset`.

        Raises:
            ConfigError: there are none.
        """
        twice = self.recipes.topology == TOPOLOGIES.index("Reflection")
        alone = ((self.recipes.models >= 0).sum(axis=1) == 1) & ~twice
        if not alone.any():
            raise ConfigError(f"policy {self.name!r} has no recipe of one call")
        needs = as_taken(np.where(alone, self.recipes.needs, _NEVER))
        self.recipes = RecipeTable(**{**self.recipes._asdict(), "needs": needs})

    def calls_at_servers(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the calls at each model that the policy knows of, (n, M): its own, exactly."""
        return self.spec.layout.in_flight_req(observations)

    def choose(
        self, in_flight: NDArray[np.float64], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return recipes (n,) for queries that have just arrived, with calls in flight (n, M)."""
        draws = uniform_array(self.seeds[rows], STREAM_POLICY, contexts["query"], 0)
        return np.minimum((draws * len(self.recipes)).astype(np.int64), len(self.recipes) - 1)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return plans and routes of `rows`, (n, 9)."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        planning = contexts["kind"] == PLAN
        due = np.flatnonzero(planning)
        if len(due):
            actions[due, :PLAN_ACTIONS] = self._plan(observations[due], contexts[due], rows[due])
        due = np.flatnonzero(~planning)
        chosen = self.assigned[rows[due], contexts["query"][due]]
        actions[due, PLAN_ACTIONS] = self.recipes.routes[chosen, contexts["node"][due]]
        return actions

    def _plan(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        queries, recipes = contexts["query"], self.recipes
        room, needed = self.assigned.shape[1], int(queries.max()) + 1
        if needed > room:
            more = max(needed, 2 * room, 64) - room
            self.assigned = np.pad(self.assigned, ((0, 0), (0, more)))
            self.in_flight = np.pad(self.in_flight, ((0, 0), (0, more), (0, 0)))
        in_flight = self.calls_at_servers(observations)
        chosen = self.choose(in_flight, contexts, rows)
        self.assigned[rows, queries] = chosen
        self.in_flight[rows, queries] = in_flight
        roles = self._roles[contexts["task"], contexts["domain"], recipes.roles[chosen]]
        topology, agents = recipes.topology[chosen], recipes.num_agents[chosen]
        return np.column_stack([topology, agents - 1, roles])


class BidPricePolicy(RecipePolicy):
    """Bid prices from checkpoints, one for every workload: the default agent.

    Args:
        checkpoint: folder of a trained checkpoint, or one that holds a folder for every workload
            (`model_for`); the shipped ones if None or "".
        mode: an ablation, one of MODES; None: the agent itself.
        model: played in place of checkpoints; its prices may be those of several candidates.
        candidate: (rows,) candidate whose prices each row pays; the first if None.

    Raises:
        ConfigError: there is no such mode, or no checkpoint of this policy in the folder.
    """

    version = 2

    def __init__(
        self,
        checkpoint: str | None = None,
        mode: str | None = None,
        *,
        model: BidPriceModel | None = None,
        candidate: NDArray[np.int64] | None = None,
    ) -> None:
        self.name = ":".join(["bid_price", *(p for p in (checkpoint, mode) if p is not None)])
        self._root = Path(checkpoint) if checkpoint else SHIPPED
        self._given, self._candidate = model, candidate
        self._mode, self.requires = mode, requirements(mode)
        if model is None and not [read_about(place) for place in folders(self._root)]:
            raise ConfigError(f"{self._root}: holds no checkpoint. {TRAIN}")

    @property
    def fingerprint(self) -> str:
        """Digest of all weights that it may play with."""
        return " ".join(map(fingerprint, folders(self._root)))

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Open the checkpoint for workload and pool, and prepare for `len(seeds)` rows.

        Raises:
            ConfigError: there is none.
        """
        super().reset(spec, seeds)
        model = self._given or self.model_for(spec)
        if self._mode == "no-prices":
            free = model.prices._replace(base=np.full_like(model.prices.base, _FREE))
            model = replace(model, prices=free)
        self.model, self.recipes = model, model.recipes
        self._known, self._packed = as_taken(model.known), model.prices.packed()
        self._choose = chooser()
        self._ease = model.ease(spec.task_embeddings) * (self._mode != "no-difficulty")
        self._arrivals_s = np.zeros((len(seeds), _WINDOW))
        first = np.zeros(len(seeds), np.int64)
        self._of_row = first if self._candidate is None else self._candidate

    def calls_at_servers(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the calls at each model that the mode lets the policy see, (n, M)."""
        if self._mode == "no-state":
            return np.zeros((len(observations), self.spec.num_models))
        if self._mode == "polled":
            return self.spec.layout.queue_depth_req(observations)
        return super().calls_at_servers(observations)

    def rate_per_min(self, contexts: Contexts, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Estimate arrival rates (n,) from the last arrivals, this one included, and a prior."""
        now_s, queries = contexts["arrival_s"], contexts["query"]
        self._arrivals_s[rows, queries % _WINDOW] = now_s
        back = np.minimum(queries, _WINDOW - 1)
        elapsed_s = now_s - self._arrivals_s[rows, (queries - back) % _WINDOW]
        prior_s = 60.0 * _PRIOR_QUERIES / float(self.model.rates_per_min[-1])
        rate: NDArray[np.float64] = 60.0 * (back + _PRIOR_QUERIES) / (elapsed_s + prior_s)
        return rate

    def choose(
        self, in_flight: NDArray[np.float64], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the recipes of the best balance of success and price, (n,)."""
        model, domain = self.model, contexts["domain"].astype(np.int64)
        rate, rates = self.rate_per_min(contexts, rows), model.rates_per_min
        place = np.interp(np.log(rate), np.log(rates), np.arange(len(rates)))
        left_s = contexts["budget_s"] - (contexts["time_s"] - contexts["arrival_s"])
        chosen: NDArray[np.int64] = choose(
            self._known,
            between(self._packed, self._of_row[rows], place),
            self.recipes.needs,
            in_flight,
            np.maximum(left_s, 1e-3),
            domain,
            self._ease[contexts["task"], domain],
            contexts["models_up"],
            self._choose,
        )
        return chosen

    def model_for(self, spec: PolicySpec) -> BidPriceModel:
        """Return the checkpoint for the workload of a run, or that for all, on its servers.

        Folders are WORKLOAD, and WORKLOAD@POOL for further pools.

        Raises:
            ConfigError: there is none for the workload, or none for its servers.
        """
        names = [spec.workload, FALLBACK]
        found = [f for f in folders(self._root) if f == self._root or f.name.split("@")[0] in names]
        if not found:
            raise ConfigError(
                f"{self._root}: has no checkpoint for workload {spec.workload!r}, and none for "
                f"{FALLBACK!r} to fall back on. {TRAIN}"
            )
        found.sort(key=lambda f: (f != self._root, names[0] != f.name.split("@")[0], f.name))
        slots = spec.max_num_seqs.tolist()
        for folder in found:
            model = load_model(folder)
            if model.models == spec.models and model.known.slots.tolist() == slots:
                return model
        raise ConfigError(
            f"policy {self.name!r} was trained for other servers ({found[0].name}: "
            f"{_servers(model.models, model.known.slots)}); this pool has "
            f"{_servers(spec.models, spec.max_num_seqs)}. {TRAIN}"
        )


def _servers(models: Sequence[str], slots: NDArray[Any]) -> str:
    pairs = zip(models, slots.tolist(), strict=True)
    return ", ".join(f"{alias} with {count:g} slots" for alias, count in pairs)
