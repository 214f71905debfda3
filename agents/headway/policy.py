"""Choosing by prices: every recipe is priced when a query arrives, and the best is carried out.

`RecipePolicy` carries recipes out, whoever chose them; `PricedPolicy` chooses; the others are its
ablations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.headway.choice import choose, edges
from agents.headway.lessons import Lessons
from agents.headway.recipes import RecipeBook, role_orders
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN

# Arrivals that the estimate of their rate looks back on, and those that it believes in before any,
# at the highest rate that prices are known for: a policy begins as if it were busy.
_LOOK_BACK: Final = 128
_PRIOR_QUERIES: Final = 8.0
_USUAL_PER_MIN: Final = 50.0  # the same where no prices are known


class RecipePolicy(BasePolicy, ABC):
    """Carries out a recipe for every query: its plan first, then the route of every node.

    Attributes:
        book: the recipes.
        assigned: (rows, queries) recipe of each query by its ordinal.
        in_flight: (rows, queries, M) calls at each model when the query was planned.
        busiest_per_min: rate at which arrivals are believed to come before there are any.
    """

    requires = MappingProxyType({"level": "joint", "system_features": ["in_flight"]})
    carries_out_any_plan = False
    busiest_per_min = _USUAL_PER_MIN
    book: RecipeBook

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
        self._arrivals_s = np.zeros((len(seeds), _LOOK_BACK))

    def calls_at_servers(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Calls at each model as far as the policy knows, (n, M): its own, exactly."""
        return self.spec.layout.in_flight_req(observations)

    @abstractmethod
    def choose(
        self,
        in_flight: NDArray[np.float64],
        rate_per_min: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The recipes (n,) for queries that have just arrived.

        Args:
            in_flight: (n, M) calls at each model.
            rate_per_min: (n,) arrivals lately.
            contexts: (n,).
            rows: (n,).
        """

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Plans and routes of `rows`, (n, 9)."""
        actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
        planning = contexts["kind"] == PLAN
        due = np.flatnonzero(planning)
        if len(due):
            self._plan(observations[due], contexts[due], rows[due], actions, due)
        due = np.flatnonzero(~planning)
        recipes = self.assigned[rows[due], contexts["query"][due]]
        actions[due, PLAN_ACTIONS] = self.book.routes[recipes, contexts["node"][due]]
        return actions

    def _plan(
        self,
        observations: NDArray[np.float32],
        contexts: Contexts,
        rows: NDArray[np.int64],
        actions: NDArray[np.int64],
        due: NDArray[np.int64],
    ) -> None:
        queries = contexts["query"]
        self._make_room(int(queries.max()) + 1)
        in_flight = self.calls_at_servers(observations)
        recipes = self.choose(in_flight, self._rate_per_min(contexts, rows), contexts, rows)
        self.assigned[rows, queries] = recipes
        self.in_flight[rows, queries] = in_flight
        actions[due, 0] = self.book.topology[recipes]
        actions[due, 1] = self.book.num_agents[recipes] - 1
        actions[due, 2:PLAN_ACTIONS] = self._roles[
            contexts["task"], contexts["domain"], self.book.roles[recipes]
        ]

    def _rate_per_min(self, contexts: Contexts, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Arrivals a minute over the last ones, this one included; a prior counts as a few more."""
        now_s, queries = contexts["arrival_s"], contexts["query"]
        self._arrivals_s[rows, queries % _LOOK_BACK] = now_s
        back = np.minimum(queries, _LOOK_BACK - 1)
        elapsed_s = now_s - self._arrivals_s[rows, (queries - back) % _LOOK_BACK]
        prior_s = 60.0 * _PRIOR_QUERIES / self.busiest_per_min
        rate: NDArray[np.float64] = 60.0 * (back + _PRIOR_QUERIES) / (elapsed_s + prior_s)
        return rate

    def _make_room(self, queries: int) -> None:
        rows, room = self.assigned.shape
        if queries <= room:
            return
        more = max(queries, 2 * room, 64) - room
        self.assigned = np.concatenate([self.assigned, np.zeros((rows, more), np.int64)], axis=1)
        unseen = np.zeros((rows, more, self.in_flight.shape[2]))
        self.in_flight = np.concatenate([self.in_flight, unseen], axis=1)


class PricedPolicy(RecipePolicy):
    """Chooses by what was learned and by prices; every row may have prices of its own.

    Args:
        lessons: what was learned, with prices for every rate, of one candidate or several.
        candidate: (rows,) whose prices each row pays; all the first one's if None.
    """

    name = "priced"

    def __init__(self, lessons: Lessons, candidate: NDArray[np.int64] | None = None) -> None:
        self.lessons = lessons
        self.book = lessons.book
        self.busiest_per_min = float(lessons.rates_per_min[-1])
        self._candidate = candidate

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the lessons are of another pool.
        """
        super().reset(spec, seeds)
        if self.lessons.models != spec.models:
            raise ConfigError(
                f"policy {self.name!r} has learned of the models {', '.join(self.lessons.models)}; "
                f"this pool has {', '.join(spec.models)}. Train one for it with agents.train"
            )
        slots = spec.max_num_seqs.astype(np.float64)
        if not np.array_equal(self.lessons.known.slots, slots):
            raise ConfigError(
                f"policy {self.name!r} has learned of servers with "
                f"{self.lessons.known.slots.astype(int).tolist()} slots; these have "
                f"{spec.max_num_seqs.tolist()}. Train one for this pool with agents.train"
            )
        self._ease = self.lessons.ease(spec.task_embeddings)
        self._edges_per_min = edges(self.lessons.rates_per_min)
        self._of_row = np.zeros(len(seeds), np.int64)
        if self._candidate is not None:
            self._of_row = self._candidate

    def choose(
        self,
        in_flight: NDArray[np.float64],
        rate_per_min: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The recipes of the best balance of success and price, (n,)."""
        domain = contexts["domain"].astype(np.int64)
        band = np.searchsorted(self._edges_per_min, rate_per_min)
        left_s = contexts["budget_s"] - (contexts["time_s"] - contexts["arrival_s"])
        recipes: NDArray[np.int64] = choose(
            self.lessons.known,
            self.lessons.prices,
            self.book.needs,
            self._of_row[rows] * len(self.lessons.rates_per_min) + band,
            in_flight,
            np.maximum(left_s, 1e-3),
            domain,
            self._ease[contexts["task"], domain],
            np.ascontiguousarray(contexts["models_up"]),
        )
        return recipes


class StalePolicy(PricedPolicy):
    """Ablation: sees the polled queue depths in place of its own calls in flight."""

    requires = MappingProxyType({"level": "joint", "system_features": ["queue", "in_flight"]})

    def calls_at_servers(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Requests at each model at the last poll, (n, M)."""
        return self.spec.layout.queue_depth_req(observations)


class BlindPolicy(PricedPolicy):
    """Ablation: sees nothing of the servers, only the rate of the arrivals."""

    def calls_at_servers(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """None, (n, M)."""
        return np.zeros((len(observations), self.spec.num_models))


class FreePolicy(PricedPolicy):
    """Ablation: pays nothing, and so takes what is best for the query at hand alone."""

    def __init__(self, lessons: Lessons, candidate: NDArray[np.int64] | None = None) -> None:
        free = np.full_like(lessons.prices.base, -np.inf)
        prices = lessons.prices._replace(base=free)
        super().__init__(lessons.priced(prices, lessons.rates_per_min), candidate)


class UnreadPolicy(PricedPolicy):
    """Ablation: takes every question of a domain for equally hard."""

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows."""
        super().reset(spec, seeds)
        self._ease = np.zeros_like(self._ease)


MODES: Final = MappingProxyType(
    {"stale": StalePolicy, "blind": BlindPolicy, "free": FreePolicy, "unread": UnreadPolicy}
)


def kind_of(mode: str | None) -> type[PricedPolicy]:
    """The policy itself, or one of MODES.

    Raises:
        ConfigError: there is no such mode.
    """
    if mode is not None and mode not in MODES:
        raise ConfigError(f"policy 'headway': {unknown('mode', mode, tuple(MODES))}")
    return PricedPolicy if mode is None else MODES[mode]
