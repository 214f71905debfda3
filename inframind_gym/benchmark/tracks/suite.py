"""Cells and suites of tracks: scenarios x loads of every track."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from inframind_gym.benchmark.cells import Axis, BaseCell, Place, content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import policy_fingerprint
from inframind_gym.benchmark.routing.suite import NumQueries
from inframind_gym.benchmark.routing.window import stream_length
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.benchmark.tracks.refits import Refits, load_refits
from inframind_gym.benchmark.tracks.track import (
    Limits,
    Load,
    Scenario,
    TrackConfig,
    load_limits,
    load_track,
)
from inframind_gym.configs import list_configs
from inframind_gym.errors import unknown
from inframind_gym.policies import resolve_policy

SPLITS = ("test", "val", "train")  # first seeds of each: no two splits share an episode
SEEDS_APART = 1_000_000
STREAMS = 2  # version of the length of streams, on which their random numbers depend


@dataclass(frozen=True, slots=True)
class TrackCell(BaseCell):
    """One policy in one stream of a scenario.

    Attributes:
        track: Name of the track.
        scenario: Name of its scenario.
        load: Mean arrival rate over the capacity.
        training: Number of the training that plays.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("track", "tracks", "track", "by_track", is_file=True),
        Axis("scenario", "scenarios", "scenario", "by_scenario"),
        Axis("load", "loads", "load", "by_load", False, "ρ {:g}".format, float),
    )
    fixed_axes: ClassVar[int] = 2

    policy: str
    track: str
    scenario: str
    load: float
    seed: int
    training: int = 0


@dataclass(frozen=True)
class Played:
    """The scenario and load of a place.

    Attributes:
        track: Its track.
        scenario: Its scenario.
        limits: Of the scenario.
        rate_per_min: Mean arrival rate.
        count: Scored queries.
        most_s: Most seconds of warm-up and patience, in which searches stop short.
    """

    track: TrackConfig
    scenario: Scenario
    limits: Limits
    rate_per_min: float
    count: int
    most_s: float = float("inf")

    @property
    def longest_s(self) -> float:
        """Warm-up and patience: the longest budget."""
        return min(self.scenario.longest_s, self.most_s)

    @property
    def num_queries(self) -> int:
        """Queries of a stream: enough at any load of the track, whose streams play together."""
        most = max(self.rate_per_min, max(self.track.loads) * self.limits.capacity_per_min)
        return stream_length(most, self.count, self.longest_s)

    @property
    def arrivals(self) -> int:
        """Queries that arrive, on average, until the last scored one has no answer in time."""
        return self.count + round(2.0 * self.longest_s * self.rate_per_min / 60.0)

    @property
    def cap_s(self) -> float:
        """Cap on the GPU-seconds of a query; infinite where there is none."""
        share = self.scenario.work_cap
        return float("inf") if share is None else share * self.limits.work_s


class TrackSuite(BaseSuite):
    """A suite of tracks, in steady load.

    A stream is scored from the time on that the longest budget has passed; arrivals go on until
    the last scored query is answered, or late by any budget.

    Attributes:
        kind: "tracks".
        tracks: Names or paths of tracks.
        scenarios: Scenarios that are played, `math` or `steady/math`; null: all of every track.
        loads: Loads that are played; null: those of every track.
        num_queries: Scored queries of one episode.
        split: Questions and seeds: "test", or "val" to choose and compare while developing.
        tasks: "builtin", or a folder of questions.
        refits: File of fitted policies (`inframind_gym.benchmark.tracks.refits`); null: every
            policy plays as it is shipped.
    """

    cell: ClassVar = TrackCell

    kind: Literal["tracks"] = "tracks"
    tracks: tuple[str, ...] = Field(min_length=1)
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    loads: Annotated[tuple[Load, ...], Field(min_length=1)] | None = None
    num_queries: NumQueries = 3000
    split: Literal["test", "val", "train"] = "test"
    tasks: str = "builtin"
    refits: str | None = None

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions, apart from those of the other splits."""
        first = SPLITS.index(self.split) * SEEDS_APART
        return tuple(first + seed for seed in super().seed_list)

    @cached_property
    def _tracks(self) -> dict[str, TrackConfig]:
        return {name: load_track(self.source("tracks", name)) for name in self.names("tracks")}

    @cached_property
    def _limits(self) -> dict[str, dict[str, Limits]]:
        return {name: load_limits(self.source("tracks", name)) for name in self.names("tracks")}

    @cached_property
    def fitted(self) -> Refits:
        """Fitted policies; none without a file."""
        return Refits() if self.refits is None else load_refits(Path(self.refits))

    def places(self) -> Iterator[Place]:
        """Yield every scenario of every track at every load."""
        for name, track in self._tracks.items():
            for scenario in track.scenarios:
                if self._plays(name, scenario):
                    for load in self.loads or track.loads:
                        yield name, scenario, load

    def _plays(self, track: str, scenario: str) -> bool:
        chosen = self.scenarios
        return chosen is None or scenario in chosen or f"{track}/{scenario}" in chosen

    def at(self, track: str, scenario: str, load: float) -> Played:
        """Return what is played at a place."""
        limits = self._limits[track][scenario]
        played = self._tracks[track]
        rate_per_min = load * limits.capacity_per_min
        return Played(played, played.scenarios[scenario], limits, rate_per_min, self.num_queries)

    def policy_at(self, cell: TrackCell) -> str:
        """Return the policy, with arguments, that plays a cell under the name of its policy."""
        return self.fitted.of(cell.policy, *cell.place)[cell.training]

    def trainings(self, policy: str, place: Place) -> int:
        """Return how many trainings of a policy were entered for a place; 1 without a fit."""
        return len(self.fitted.of(policy, *place))

    def fitted_as(self, policy: str) -> dict[str, Any]:
        """Return a hash of what plays under a policy's name, checkpoints included."""
        fits, here = self.fitted.fits.get(policy, {}), os.getcwd()
        plays = {
            place: [_fingerprint(name, here) for name in fit.plays] for place, fit in fits.items()
        }
        return {"fits": content_hash(plays)} if plays else {}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Aliases of the models of the pools of all shipped tracks, then of the suite's own."""
        from inframind_gym.simulator.server.pool import load_pool

        tracks = [*map(load_track, list_configs("tracks")), *self._tracks.values()]
        pools = dict.fromkeys(s.pool for track in tracks for s in track.scenarios.values())
        return tuple(dict.fromkeys(alias for pool in pools for alias in load_pool(pool).aliases))

    def length(self, cell: TrackCell) -> int:
        """Return the scored queries of an episode."""
        return self.num_queries

    def resolve(self) -> Self:
        """Check all that the suite names.

        Raises:
            InfraMindError: A track or what it names cannot be used, its capacity is not known, or
                there is no scenario or folder of that name.
        """
        known = {
            name: None
            for track, content in self._tracks.items()
            for scenario in content.scenarios
            for name in (scenario, f"{track}/{scenario}")
        }
        for chosen in self.scenarios or ():
            if chosen not in known:
                raise BenchmarkError(f"scenarios: {unknown('scenario', chosen, tuple(known))}")
        _ = self._limits, self.fitted
        update: dict[str, Any] = {}
        if self.tasks != "builtin":
            if not Path(self.tasks).is_dir():
                raise BenchmarkError(f"--tasks: there is no folder {self.tasks}.")
            update["tasks"] = str(Path(self.tasks).resolve())
        if self.refits is not None:
            update["refits"] = str(Path(self.refits).resolve())
        return super(TrackSuite, self.model_copy(update=update)).resolve()

    def settings(self) -> dict[str, Any]:
        """Return the settings with a hash in place of the path of tasks.

        A policy's refits are part of what the policy is (`fitted_as`).
        """
        from inframind_gym.benchmark.routing.suite import tasks_hash

        settings = super().settings()
        del settings["refits"]
        tasks = self.tasks if self.tasks == "builtin" else tasks_hash(Path(self.tasks))
        own = {"tasks": tasks, "models": list(self.models), "streams": STREAMS}
        return settings | own

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a track: all that its episodes and scores depend on, bounds apart."""
        track, limits = self._tracks[name], self._limits[name]
        parts = {
            scenario: [
                content.constants(),
                limits[scenario].model_dump(mode="json", exclude={"informed", "constants"}),
            ]
            for scenario, content in track.scenarios.items()
        }
        content = track.model_dump(mode="json", exclude={"description", "loads"})
        return content_hash([content, parts])


@cache
def _fingerprint(policy: str, folder: str) -> list[Any]:
    """Return a policy and its fingerprint, which may name a checkpoint of the working folder."""
    return [policy, policy_fingerprint(resolve_policy(policy))]
