"""The family of tracks: policies that route queries in steady load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.families import Family, Player
from inframind_gym.benchmark.lines import CellResult, encode_cell
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.benchmark.tracks.metrics import METRICS, SCORE, TrackLayout
from inframind_gym.benchmark.tracks.score import track_scores
from inframind_gym.benchmark.tracks.suite import TrackCell, TrackSuite
from inframind_gym.benchmark.tracks.tables import track_sheets

if TYPE_CHECKING:
    from inframind_gym.benchmark.results import Estimate, Results


class TrackFamily(Family):
    """Scenarios of tracks, at shares of their capacity."""

    kind = "tracks"
    suite: type[BaseSuite] = TrackSuite
    metrics = METRICS
    score = SCORE
    compared = (SCORE, "goodput", "accuracy", "slo_own", "work_s_per_query")
    scored = (SCORE, "goodput", "slo_100s", "work_s_per_query")
    shown = ("tasks", "split", "num_queries")
    unit = "queries"

    def resolve_policy(self, name: str) -> Any:
        """Make a built-in policy, or one of ``package.module:Class``."""
        from inframind_gym.policies import resolve_policy

        return resolve_policy(name)

    def header(self, suite: TrackSuite, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return names, limits, budgets of fits, and the environments' specs."""
        from inframind_gym.benchmark.tracks.rollout import env_spec
        from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES

        places = {place: suite.at(*place) for place in suite.places()}
        return {
            "names": {
                "models": list(suite.models),
                "strategies": list(STRATEGIES),
                "topologies": [*TOPOLOGIES, CUSTOM],
            },
            "places": {
                "/".join(map(str, place)): {
                    **suite.cell.describe(place),
                    "rate_per_min": played.rate_per_min,
                    "counts": played.track.counts,
                    "informed": played.limits.informed.get(place[2]),
                    "cap_s": played.cap_s if played.scenario.work_cap else None,
                    "stale": played.limits.constants != played.scenario.constants(),
                }
                for place, played in places.items()
            },
            "fits": {
                "budget_queries": suite.fitted.budget_queries,
                "queries": suite.fitted.queries(),
            },
            "env_specs": {
                f"{name}/{track}/{scenario}": env_spec(suite, played, policy)
                for name, policy in policies.items()
                for (track, scenario, _), played in places.items()
            },
        }

    def simulator(
        self,
        suite: TrackSuite,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Player:
        """Make the simulated servers."""
        from inframind_gym.benchmark.tracks.rollout import TrackSimulator

        return TrackSimulator(suite, stop, progress)

    def encode(self, cell: TrackCell, cell_id: str, *content: Any) -> CellResult:
        """Encode the scored queries of an episode: their layout and columns."""
        layout, columns = content
        return encode_cell(layout, cell, cell_id, columns)

    def layout(self, header: Mapping[str, Any]) -> TrackLayout:
        """Make the layout of sums over queries."""
        names: dict[str, Any] = {key: tuple(own) for key, own in header["names"].items()}
        return TrackLayout(**names)

    def scores(
        self, results: Results, estimates: Mapping[str, Mapping[Place, Estimate]]
    ) -> dict[str, Any]:
        """Return the scores of every track, and how policies stand to one another."""
        return track_scores(results, estimates)

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """Make the tables, see `inframind_gym.benchmark.tracks.tables`."""
        return track_sheets(board)
