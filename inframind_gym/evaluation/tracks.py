"""The family of tracks, the standard benchmark: a suite whose cells have a load.

A cell is a scenario in steady load, at a share of its pool's capacity. `TrackSuite.env_kwargs` is
where a scenario, its plan and a policy come together, `track_board` has the columns of the board.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import list_configs, load_yaml_model
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation import track_board
from inframind_gym.evaluation.cells import Axis, Cell, Place, content_hash, name_of
from inframind_gym.evaluation.oracle import make_oracle, work_of_calls
from inframind_gym.evaluation.play import Fields, Played, Player, PolicyFailedError
from inframind_gym.evaluation.queries import QueryBatch, Window, columns_of, stream_length
from inframind_gym.evaluation.routing import NumQueries, StreamSuite
from inframind_gym.evaluation.scenarios import (
    Limits,
    Load,
    Refits,
    Scenario,
    TrackConfig,
    load_limits,
    load_track,
)
from inframind_gym.evaluation.store import policy_fingerprint
from inframind_gym.evaluation.tables import Table
from inframind_gym.policies import POLICIES, requires_of, resolve_policy
from inframind_gym.progress import say
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.rng import STREAM_BUDGET, uniform_array
from inframind_gym.simulator.server.pool import Scheduler, load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.state import COMPLETED

SPLITS: Final = ("test", "val", "train")  # first seeds of each: no two splits share an episode
SEEDS_APART: Final = 1_000_000
STREAMS: Final = 2  # version of the length of streams, on which their random numbers depend


@dataclass(frozen=True)
class Stream:
    """Streams of a place: a scenario at a load."""

    track: TrackConfig  # its track
    scenario: Scenario  # its scenario
    limits: Limits  # of the scenario
    rate_per_min: float  # mean arrival rate
    count: int  # scored queries
    most_s: float = float("inf")  # cap on `longest_s`; searches set it

    @property
    def longest_s(self) -> float:
        """Warm-up before the first scored query, and patience for an answer: the longest budget."""
        return min(self.scenario.groups_s[-1], self.most_s)

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


class TrackBatch(QueryBatch):
    """Streams of which a window in the middle is scored."""

    @cached_property
    def stream(self) -> Stream:
        """Streams of the batch."""
        stream: Stream = self.suite.at(*self.cells[0].place)
        return stream

    def scored(self) -> Window:
        """Return the scored queries."""
        arrival_s = self.simulation.state.arrival_s
        return Window.steady(arrival_s, self.stream.count, self.stream.longest_s)

    def columns(self, row: int) -> Fields:
        """Return the scored queries of a row, those without an answer too."""
        simulation, stream, scenario = self.simulation, self.stream, self.stream.scenario
        first, longest_s = int(self.window.first[row]), stream.longest_s
        done = with_unanswered(self.done[row], simulation, row, first, longest_s)
        calls, models = simulation.calls(row), self.suite.models  # of all pools
        columns = columns_of(simulation, done, calls)
        of_pool = [*(models.index(alias) for alias in simulation.pool.aliases), -1]
        for name in ("model", "final_model"):
            columns[name] = np.array(of_pool, np.int8)[columns[name]]
        # GPU-seconds of a call: its share of steps as full as its server allows, on every GPU of it
        seconds = np.zeros((simulation.num_queries, len(simulation.pool.models)))
        work_of_calls(make_oracle(simulation.params, cards(simulation.pool)), calls, seconds)
        work_s = seconds @ [len(model.all_gpus) for model in simulation.pool.models]
        group = np.searchsorted(scenario.groups_s, columns["budget_s"]).astype(np.int8)
        cap_s = stream.cap_s if np.isfinite(stream.cap_s) else 0.0  # 0: none
        return columns | {
            "group": group,
            "value": np.array(scenario.weights)[group],
            "reach": np.array(stream.limits.reach)[group],
            "work_s": np.asarray(work_s, np.float64)[done["query"]],
            "cap_s": np.full(len(group), cap_s),
            "worst_counts": np.full(len(group), stream.track.counts == "worst"),
        }


def with_unanswered(
    done: NDArray[Any], simulation: Any, row: int, first: int, longest_s: float
) -> NDArray[Any]:
    """Return the scored records (n,) of a row, completed by those of unanswered queries.

    A query without an answer in time is not solved, and has the longest latency and no calls.
    """
    out = done.copy()
    late = (out["num_nodes"] == 0) | (out["latency_s"] > longest_s)
    ordinal = first + np.flatnonzero(late)
    state, params = simulation.state, simulation.params
    out[late] = np.zeros(1, COMPLETED)
    task, arrival_s = state.task[row, ordinal], state.arrival_s[row, ordinal]
    tiers = params.budget_tiers_s
    keys = np.full(len(ordinal), state.stream[row]["key"], np.uint64)
    drawn = uniform_array(keys, STREAM_BUDGET, ordinal, 0)
    budget_s = tiers[(drawn * len(tiers)).astype(np.int64)]
    for name, values in {
        "query": ordinal,
        "task": task,
        "domain": params.task_domain[task],
        "arrival_s": arrival_s,
        "finish_s": arrival_s + longest_s,
        "latency_s": longest_s,
        "budget_s": budget_s,
        "cost": longest_s / budget_s,
        **dict.fromkeys(("topology", "final_model", "model", "strategy"), -1),
    }.items():
        out[name][late] = values
    return out


class TrackPlayer(Player):
    """Plays streams of scenarios; their windows are scored.

    A policy that cannot play a scenario, for example on models that it was not made for, leaves
    all its queries there unanswered. One that can play none is left out.
    """

    def refused(self, cells: Iterable[Cell]) -> Iterator[PolicyFailedError]:
        """Yield the errors of policies that can play no cell; note those that can play some."""
        errors: dict[str, dict[str, PolicyFailedError]] = {}
        for cell in cells:
            try:
                self.check(cell)
            except PolicyFailedError as error:
                errors.setdefault(cell.policy, {}).setdefault("/".join(cell.place[:2]), error)
        every = {"/".join(place[:2]) for place in self.suite.places()}
        for own in errors.values():
            first = next(iter(own.values()))
            if every <= own.keys():
                yield first
            else:
                say(f"{first}\nIts queries of {', '.join(own)} stay unanswered.")

    def run(self, cells: Sequence[Cell]) -> list[Played]:
        """Play cells of one scenario; if the policy cannot play it, no query has an answer."""
        try:
            batch = self.begin(cells)
        except PolicyFailedError:
            batch = self.make(cells, resolve_policy("random"))
            self.reset(batch)
            batch.begin()
            self.progress(len(cells) * batch.window.count)
            return [(cell, batch.columns(row)) for row, cell in enumerate(cells)]
        return self.play(batch)


class TrackSuite(StreamSuite):
    """A suite of tracks, in steady load.

    A stream is scored from the time on that the longest budget has passed; arrivals go on until
    the last scored query is answered, or late by any budget.
    """

    axes: ClassVar = (
        Axis("track", "tracks", "track", is_file=True),
        Axis("scenario", "scenarios", "scenario"),
        Axis("load", "loads", "load", text="ρ {:g}".format, read=float),
    )
    together: ClassVar = 2
    metrics: ClassVar = track_board.METRICS
    layout_class: ClassVar = track_board.TrackLayout
    score: ClassVar = track_board.SCORE
    main: ClassVar = track_board.MAIN
    compared: ClassVar = (score, "goodput", "accuracy", "slo_own", "work_s_per_query")
    title: ClassVar = "Metrics, means over all cells"
    caption: ClassVar = track_board.CAPTION
    batch: ClassVar = TrackBatch
    player_class: ClassVar = TrackPlayer
    shown: ClassVar = ("tasks", "split", "num_queries", "division")
    merged: ClassVar = ("places", "plans")

    kind: Literal["tracks"] = "tracks"
    tracks: tuple[str, ...] = Field(min_length=1)  # names or paths of tracks
    # Scenarios that are played, `math` or `steady/math`; null: all of every track
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    # Loads that are played; null: those of every track
    loads: Annotated[tuple[Load, ...], Field(min_length=1)] | None = None
    num_queries: NumQueries = 3000  # scored queries of one episode
    # Questions and seeds: "test", or "val" to choose and compare while developing
    split: Literal["test", "val", "train"] = "test"
    # File of fitted policies (`Refits`); null: every policy plays as it is shipped
    refits: str | None = None
    # Order of the servers' queues; plain EDF collapses where servers are full
    scheduler: Scheduler | None = "edf_late_last"

    @classmethod
    def scores(cls, header: Mapping[str, Any], scored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scores of policies on tracks, as shares of their bounds."""
        return track_board.track_scores(header, scored)

    @classmethod
    def tables(cls, board: Mapping[str, Any], tables: list[Table]) -> list[Table]:
        """Add scores by track before the metrics, and scores by cell after them."""
        cells = [track_board.cells_table(board)] if len(board["places"]) > 1 else []
        return [track_board.scores_table(board), *tables, *cells]

    # A scenario at a load, its plan and a policy

    def places(self) -> Iterator[Place]:
        """Yield every scenario of every track at every load."""
        chosen = self.scenarios
        for name, track in self._tracks.items():
            for scenario in track.scenarios:
                if chosen is None or scenario in chosen or f"{name}/{scenario}" in chosen:
                    for load in self.loads or track.loads:
                        yield name, scenario, load

    def at(self, track: str, scenario: str, load: float) -> Stream:
        """Return what is played at a place."""
        limits, config = self._limits[track][scenario], self._tracks[track]
        rate_per_min = load * limits.capacity_per_min
        return Stream(config, config.scenarios[scenario], limits, rate_per_min, self.num_queries)

    def arguments(self, place: Place) -> dict[str, Any]:
        """Return the arguments of the environment of a scenario."""
        stream = self.at(*place)
        scenario = stream.scenario
        faults = [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.faults]
        return {
            "pool": scenario.pool,
            "workload": scenario.workload,
            "arrivals": scenario.arrivals,
            "budget_s": list(scenario.drawn_s),
            "num_queries": stream.num_queries,
            "execution": "parallel",
            "planner": {"topology": "IO", "num_agents": 1},  # of routers that require no plan
            **({"faults": faults} if faults else {}),
        }

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions, apart from those of the other splits."""
        first = SPLITS.index(self.split) * SEEDS_APART
        return tuple(first + seed for seed in super().seed_list)

    def length(self, cell: Cell) -> int:
        """Return the scored queries of an episode."""
        return self.num_queries

    def options(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Return the base rate of every row's arrivals."""
        factor = make_arrivals(self.at(*cells[0].place).scenario.arrivals).mean_rate_factor()
        rates = np.array([self.at(*cell.place).rate_per_min for cell in cells])
        return {"arrival_rate_per_min": rates / factor}

    @cached_property
    def fitted(self) -> Refits:
        """Fitted policies; none without a file."""
        return Refits() if self.refits is None else load_yaml_model(self.refits, Refits)

    def trainings(self, policy: str, place: Place) -> int:
        """Return how many trainings of a policy were entered for a place; 1 without a fit."""
        return len(self.fitted.of(policy, *place))

    def plays(self, cell: Cell) -> str:
        """Return the policy that was fitted for a cell, or its own."""
        return self.fitted.of(cell.policy, *cell.place)[cell.training]

    def fitted_as(self, policy: str) -> dict[str, Any]:
        """Return a hash of what plays under a policy's name, checkpoints included."""
        fits = self.fitted.fits.get(policy, {})
        names = dict.fromkeys(play for fit in fits.values() for play in fit.plays)
        hashes = {name: [name, policy_fingerprint(resolve_policy(name))] for name in names}
        plays = {place: [hashes[name] for name in fit.plays] for place, fit in fits.items()}
        return {"fits": content_hash(plays)} if plays else {}

    def plan_of(self, policy: str) -> str:
        """Return who plans a policy's queries: "own", or the plan that it routes along."""
        one_agent = {"topology": "IO", "num_agents": 1}
        fits = self.fitted.fits.get(policy, {}).values() if self.division == "orchestrate" else ()
        plays, plans = {play for fit in fits for play in fit.plays}, set()
        for name in plays or {policy}:
            requires = {} if self.division == "route" else requires_of(resolve_policy(name))
            plan = one_agent | requires.get("planner", {})
            own = requires.get("level", "executor") != "executor"
            plans.add("own" if own else "{topology} x {num_agents}".format(**plan))
        text = ", ".join(sorted(plans))
        return f"{text} (fitted)" if any(name.startswith("planned:") for name in plays) else text

    # Tracks, and what results depend on

    @cached_property
    def _tracks(self) -> dict[str, TrackConfig]:
        return {name: load_track(self.source("tracks", name)) for name in self.names("tracks")}

    @cached_property
    def _limits(self) -> dict[str, dict[str, Limits]]:
        return {name: load_limits(self.source("tracks", name)) for name in self.names("tracks")}

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Aliases of the models of the pools of all shipped tracks, then of the suite's own."""
        tracks = [*map(load_track, list_configs("tracks")), *self._tracks.values()]
        pools = dict.fromkeys(s.pool for track in tracks for s in track.scenarios.values())
        return tuple(dict.fromkeys(alias for pool in pools for alias in load_pool(pool).aliases))

    def overridden(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Replace settings; with other tracks, scenarios that these lack are dropped."""
        settings = super().overridden(changes)
        if "tracks" in changes and "scenarios" not in changes and self.scenarios is not None:
            known = _scenario_names({name_of(one): load_track(one) for one in changes["tracks"]})
            settings["scenarios"] = tuple(one for one in self.scenarios if one in known) or None
        return settings

    def resolve(self) -> Self:
        """Check all that the suite names.

        Raises:
            InfraMindError: A track or what it names cannot be used, its capacity is not known, or
                there is no scenario or folder of that name.
        """
        known = _scenario_names(self._tracks)
        for scenario in self.scenarios or ():
            if scenario not in known:
                raise ConfigError(f"scenarios: {unknown('scenario', scenario, sorted(known))}")
        for policy in self.fitted.fits:  # else its fits would be ignored
            if ":" not in policy and policy not in (names := POLICIES[self.players]):
                raise ConfigError(f"{self.refits}: {unknown('policy', policy, names)}")
        _ = self._limits
        refits = None if self.refits is None else str(Path(self.refits).resolve())
        return super(TrackSuite, self.model_copy(update={"refits": refits})).resolve()

    def settings(self) -> dict[str, Any]:
        """Return the settings; a policy's refits are part of what the policy is (`fitted_as`)."""
        settings = super().settings()
        del settings["refits"]
        return settings | {"models": list(self.models), "streams": STREAMS}

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a track: all that its episodes and scores depend on, except bounds."""
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

    def header(self) -> dict[str, Any]:
        """Add the places with their limits, and the budgets of fits."""
        places = {}
        for place in self.places():
            stream = self.at(*place)
            places["/".join(map(str, place))] = {
                **self.describe(place),
                "rate_per_min": stream.rate_per_min,
                "counts": stream.track.counts,
                "informed": stream.limits.informed.get(place[2]),
                "cap_s": stream.cap_s if stream.scenario.work_cap else None,
                "stale": stream.limits.constants != stream.scenario.constants(),
            }
        fits = {"budget_queries": self.fitted.budget_queries, "queries": self.fitted.queries()}
        plans = {policy: self.plan_of(policy) for policy in self.policies}
        return {"places": places, "fits": fits, "plans": plans} | super().header()

    @classmethod
    def join(cls, header: dict[str, Any], earlier: Mapping[str, Any]) -> None:
        """Add the fits of other policies, too; the budget is the largest of the runs."""
        super().join(header, earlier)
        both = [one["fits"] for one in (earlier, header) if one.get("fits")]
        queries = {policy: count for fits in both for policy, count in fits["queries"].items()}
        budget = max((fits["budget_queries"] for fits in both), default=0)
        header["fits"] = {"budget_queries": budget, "queries": queries}


def _scenario_names(tracks: Mapping[str, TrackConfig]) -> set[str]:
    """Return the names of the scenarios of tracks, `math` and `steady/math`."""
    scenarios = [(name, one) for name, track in tracks.items() for one in track.scenarios]
    return {text for name, one in scenarios for text in (one, f"{name}/{one}")}
