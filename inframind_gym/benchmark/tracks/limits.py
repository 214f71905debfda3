"""Computes the limits of tracks: ``inframind bench limits``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import gymnasium as gym

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

if TYPE_CHECKING:
    from inframind_gym.benchmark.bounds.steady import SteadyBound

_HEAD = """\
# Written by `inframind bench limits {name}`: capacities and bounds of the track's scenarios, by
# linear programming for the constants of their pools and workloads.
"""


def bound_of(scenario: Scenario, tasks: str = "builtin") -> SteadyBound:
    """Return the bounds of a scenario, on the questions for tests.

    Raises:
        InfraMindError: SciPy is missing, or the scenario cannot be used.
    """
    from inframind_gym.benchmark.bounds.steady import SteadyBound

    made = gym.make_vec(
        ENV_IDS["surrogate"],
        num_envs=1,
        pool=scenario.pool,
        workload=scenario.workload,
        budget_s=list(scenario.drawn_s),
        tasks=tasks,
        observation="index",
        num_queries=1,
    )
    simulation = cast(StreamVectorEnv, made.unwrapped).simulation
    return SteadyBound(simulation, scenario.drawn_s)


def limits_of(track: TrackConfig, scenario: Scenario, bound: SteadyBound) -> Limits:
    """Compute the limits of a scenario."""
    capacity_per_min = float(f"{bound.capacity_per_min():.3g}")
    work_s = float(f"{bound.plan(capacity_per_min).work_s:.3g}")
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
        reach=tuple(round(float(share), 4) for share in bound.reach),
        informed={load: min(round(score, 4), 1.0) for load, score in informed.items()},
    )


def compute_limits(
    name_or_path: str,
    *,
    again: bool = False,
    bounds: dict[str, SteadyBound] | None = None,
    found: Callable[[str, Limits], None] = lambda name, limits: None,
) -> Path:
    """Write the limits of a track's scenarios, those that hold still as they are.

    Args:
        name_or_path: The track.
        again: Whether limits that hold are computed again, too.
        bounds: Bounds by `Scenario.constants`, which several scenarios can share; added to.
        found: Called for every scenario that was computed.

    Returns:
        The file.
    """
    from inframind_gym.configs import load_yaml_model

    track, path = load_track(name_or_path), limits_path(name_or_path)
    kept = load_yaml_model(path, TrackLimits).scenarios if path.is_file() and not again else {}
    known = {} if bounds is None else bounds
    content: dict[str, Limits] = {}
    for name, scenario in track.scenarios.items():
        old, constants = kept.get(name), scenario.constants()
        if old and old.constants == constants and set(track.loads) <= set(old.informed):
            content[name] = old
            continue
        if constants not in known:
            known[constants] = bound_of(scenario)
        content[name] = limits_of(track, scenario, known[constants])
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
