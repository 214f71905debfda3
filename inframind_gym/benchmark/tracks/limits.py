"""Computes the limits of tracks: ``inframind bench limits``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401
from inframind_gym.benchmark.routing.rollout import ENV_IDS
from inframind_gym.benchmark.tracks.track import (
    Limits,
    Scenario,
    TrackConfig,
    TrackLimits,
    limits_path,
    load_track,
)
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.files import replace_text
from inframind_gym.simulator.workload import BUDGET_TIERS_S

if TYPE_CHECKING:
    from inframind_gym.benchmark.bounds.informed import Informed
    from inframind_gym.benchmark.bounds.steady import SteadyBound

_MORE_BUDGETS_S = (5.0, 20.0, 60.0)  # of shipped scenarios, beside the published tiers
_HEAD = """\
# Written by `inframind bench limits {name}`: capacities and bounds of the track's scenarios, by
# linear programming for the constants of their pools and workloads.
"""


class Bounds:
    """Bounds of scenarios; recipes are searched once for each workload and pool.

    The search takes up to two minutes of one core. It knows all budgets of the workloads' tiers and
    of the scenario.
    """

    def __init__(self) -> None:
        self._informed: dict[tuple[str, str], Informed] = {}

    def of(self, scenario: Scenario) -> SteadyBound:
        """Return the bounds of a scenario, on the questions for tests.

        Raises:
            InfraMindError: SciPy is missing, or the scenario cannot be used.
        """
        from inframind_gym.benchmark.bounds.steady import SteadyBound

        key = (scenario.pool, scenario.workload)
        known = self._informed.get(key)
        if known is None or not set(scenario.drawn_s) <= set(known.budgets_s.tolist()):
            known = self._informed[key] = _search(scenario)
        return SteadyBound(known, scenario.drawn_s)


def _search(scenario: Scenario) -> Informed:
    from inframind_gym.benchmark.bounds.informed import Informed

    made = gym.make_vec(
        ENV_IDS["surrogate"],
        num_envs=1,
        pool=scenario.pool,
        workload=scenario.workload,
        observation="index",
        num_queries=1,
    )
    simulation = cast(StreamVectorEnv, made.unwrapped).simulation
    budgets = {*BUDGET_TIERS_S, *_MORE_BUDGETS_S, *scenario.drawn_s}
    return Informed(simulation, np.array(sorted(budgets)))


def limits_of(
    track: TrackConfig, scenario: Scenario, bound: SteadyBound, known: Limits | None = None
) -> Limits:
    """Compute the limits of a scenario.

    Args:
        track: Its track.
        scenario: The scenario.
        bound: Of its workload on its pool.
        known: What is played, and stays: capacity, work and reach. Bounds alone are computed.
    """
    if known is None:
        capacity_per_min = float(f"{bound.capacity_per_min():.3g}")
        work_s = float(f"{bound.plan(capacity_per_min).work_s:.3g}")
        reach = tuple(round(float(share), 4) for share in bound.reach)
    else:
        capacity_per_min, work_s, reach = known.capacity_per_min, known.work_s, known.reach
    cap_s = float("inf") if scenario.work_cap is None else scenario.work_cap * work_s
    informed = {
        load: bound.plan(
            load * capacity_per_min,
            weights=scenario.weights,
            worst=track.counts == "worst",
            cap_s=cap_s,
        ).score
        for load in track.loads
    }
    return Limits(
        constants=scenario.constants(),
        capacity_per_min=capacity_per_min,
        work_s=work_s,
        reach=reach,
        informed={load: min(round(score, 4), 1.0) for load, score in informed.items()},
    )


def compute_limits(
    name_or_path: str,
    *,
    again: bool = False,
    bounds: Bounds | None = None,
    found: Callable[[str, Limits], None] = lambda name, limits: None,
) -> Path:
    """Write the limits of a track's scenarios, those that hold still as they are.

    Args:
        name_or_path: The track.
        again: Whether bounds that hold are computed again, too. Capacities that hold stay:
            results at other rates could not be compared.
        bounds: Where recipes are kept that several tracks can share.
        found: Called for every scenario that was computed.

    Returns:
        The file.
    """
    from inframind_gym.configs import load_yaml_model

    track, path = load_track(name_or_path), limits_path(name_or_path)
    kept = load_yaml_model(path, TrackLimits).scenarios if path.is_file() else {}
    bounds = bounds or Bounds()
    content: dict[str, Limits] = {}
    for name, scenario in track.scenarios.items():
        old, constants = kept.get(name), scenario.constants()
        known = old if old and old.constants == constants else None
        if known and set(track.loads) <= set(known.informed) and not again:
            content[name] = known
            continue
        content[name] = limits_of(track, scenario, bounds.of(scenario), known)
        found(name, content[name])
    path.parent.mkdir(exist_ok=True)
    replace_text(path, _HEAD.format(name=track.name) + as_yaml(content))
    return path


def as_yaml(limits: dict[str, Limits]) -> str:
    """Return limits as the text of their file."""
    lines = ["scenarios:"]
    for name, one in limits.items():
        informed = ", ".join(f"{load:g}: {score:.4f}" for load, score in one.informed.items())
        lines += [
            f"  {name}:",
            f"    constants: '{one.constants}'",
            f"    capacity_per_min: {one.capacity_per_min:g}",
            f"    work_s: {one.work_s:g}",
            f"    reach: [{', '.join(f'{share:.4f}' for share in one.reach)}]",
            f"    informed: {{{informed}}}",
        ]
    return "\n".join(lines) + "\n"
