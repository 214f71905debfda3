"""The bound of one cell of a suite, cached in a folder."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Final, cast

import gymnasium as gym
import numpy as np

from inframind_gym.benchmark.bounds.informed import Informed, Plan
from inframind_gym.benchmark.cells import content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import settings
from inframind_gym.benchmark.routing.rollout import ENV_IDS
from inframind_gym.benchmark.routing.suite import Budget, RoutingSuite
from inframind_gym.benchmark.suite import name_of
from inframind_gym.configs import StrictModel
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.files import replace_text

BOUNDS_VERSION: Final = 3  # of search and linear program: kept bounds of another are computed again
_SPANS: Final = 64  # episodes whose length is averaged


class FluidBound(StrictModel):
    """Bound on the goodput of one (workload, rate, budget).

    Attributes:
        workload: its name.
        rate_per_min: mean arrival rate.
        budget_s: of every query, or "tiers".
        informed: largest expected goodput, 0..1, of a router that knows distributions alone.
    """

    workload: str
    rate_per_min: float
    budget_s: Budget
    informed: float


def fluid_bound(
    suite: RoutingSuite,
    workload: str,
    rate_per_min: float,
    budget_s: Budget,
    *,
    cache: Path | None = None,
) -> FluidBound:
    """Return the bound of a cell of a suite.

    The search for recipes takes about a minute a workload, once a process; each further cell some
    tenths of a second.

    Args:
        suite: settings of the cells.
        workload: name of one of the suite's workloads, or of any other; or a path.
        rate_per_min: mean arrival rate.
        budget_s: of every query, or "tiers".
        cache: folder that keeps results; what they depend on is part of their name.

    Raises:
        BenchmarkError: SciPy is not installed, or a file of the cache cannot be read.
    """
    given = suite.source("workloads", workload)
    workload = name_of(workload)
    name = content_hash(
        [settings(suite), suite.fingerprint("workloads", given), BOUNDS_VERSION,
         workload, rate_per_min, budget_s]
    )  # fmt: skip
    kept = None if cache is None else cache / f"{name}.json"
    if kept is not None and kept.is_file():
        try:
            return FluidBound.model_validate_json(kept.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BenchmarkError(f"{kept} is no bound: {error}. Delete it.") from error
    _, plan = informed_plan(suite, given, rate_per_min, budget_s)
    found = FluidBound(
        workload=workload,
        rate_per_min=rate_per_min,
        budget_s=budget_s,
        informed=plan.goodput,
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_text(kept, found.model_dump_json(indent=1))
    return found


def informed_plan(
    suite: RoutingSuite, workload: str, rate_per_min: float, budget_s: Budget
) -> tuple[Informed, Plan]:
    """Return the optimal plan behind the informed bound of a cell: recipes and prices."""
    workload = suite.source("workloads", workload)
    simulation = _environment(_key_of(suite, workload), workload).simulation
    tiers = list(simulation.workload.budget_tiers_s)
    asked = tiers if budget_s == "tiers" else [float(budget_s)]
    budgets = sorted({*tiers, *asked})
    informed = _informed(_key_of(suite, workload), workload, tuple(budgets))
    drawn = np.array([asked.count(budget) for budget in budgets], float)
    count = simulation.num_queries
    rng = np.random.default_rng(0)
    times = [simulation.arrivals.sample(float(rate_per_min), count, rng) for _ in range(_SPANS)]
    span_s = float(np.mean([arrival_s[-1] - arrival_s[0] for arrival_s in times]))
    return informed, informed.plan(span_s, count, drawn / drawn.sum())


def _key_of(suite: RoutingSuite, workload: str) -> str:
    """Return the environment's arguments that all cells of a workload share, as JSON."""
    names = ("pool", "tasks", "split", "arrivals", "scheduler", "execution")
    shared = {name: getattr(suite, name) for name in names}
    shared |= {"num_queries": suite.queries_of(workload), "observation": "index"}
    return json.dumps(shared, sort_keys=True)


@lru_cache(maxsize=8)
def _environment(shared: str, workload: str) -> StreamVectorEnv:
    made = gym.make_vec(ENV_IDS["surrogate"], num_envs=1, workload=workload, **json.loads(shared))
    return cast(StreamVectorEnv, made.unwrapped)


@lru_cache(maxsize=16)
def _informed(shared: str, workload: str, budgets_s: tuple[float, ...]) -> Informed:
    return Informed(_environment(shared, workload).simulation, np.array(budgets_s))
