"""The family of `InfraMind-Placement-v0`: policies that place models on GPUs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inframind_gym.benchmark.families import Family, Player
from inframind_gym.benchmark.lines import CellResult, encode_cell
from inframind_gym.benchmark.metrics import TAIL
from inframind_gym.benchmark.placement.metrics import METRICS, DecisionLayout, columns_of
from inframind_gym.benchmark.placement.suite import PlacementCell, PlacementSuite
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.benchmark.tables import (
    Sheet,
    about_bounds,
    cells_text,
    matrix,
    metrics_sheet,
    of_planned,
    short,
)

if TYPE_CHECKING:
    from inframind_gym.benchmark.placement.rollout import Decision

ENV_ID = "InfraMind-Placement-v0"


class PlacementFamily(Family):
    """Episodes of a cluster under a demand; the mean latency of a call ranks."""

    kind = "placement"
    suite: type[BaseSuite] = PlacementSuite
    metrics = METRICS
    score = "call_latency_s"
    compared = ("call_latency_s", "slo", "job_latency_mean_s", "switches_per_gpu_hour")
    shown = ("arrivals",)
    unit = "decisions"

    def resolve_policy(self, name: str) -> Any:
        """Make a policy of the placement registry, or of ``package.module:Class``."""
        from inframind_gym.policies.placement import registry

        return registry.resolve(name)

    def header(self, suite: PlacementSuite, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environments' specs."""
        import gymnasium as gym

        import inframind_gym  # noqa: F401  (registers the environments)
        from inframind_gym.benchmark.placement.rollout import env_kwargs

        specs = {}
        for place in suite.places():
            spec = copy.deepcopy(gym.spec(ENV_ID))
            spec.kwargs.update(env_kwargs(suite, *place))
            specs["/".join(place)] = dict(json.loads(spec.to_json()))
        return {"env_specs": specs}

    def simulator(
        self,
        suite: PlacementSuite,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Player:
        """Make the simulated clusters."""
        from inframind_gym.benchmark.placement.rollout import PlacementSimulator

        return PlacementSimulator(suite, stop, progress)

    def encode(
        self, cell: PlacementCell, cell_id: str, decisions: list[Decision], took_ms: list[float]
    ) -> CellResult:
        """Encode the decisions; times are kept apart."""
        timing = {
            "decide_median_ms": float(np.median(took_ms)),
            "decide_p95_ms": float(np.quantile(took_ms, TAIL)),
        }
        return encode_cell(DecisionLayout(), cell, cell_id, columns_of(decisions), timing)

    def layout(self, header: Mapping[str, Any]) -> DecisionLayout:
        """Make the layout of sums over decisions."""
        return DecisionLayout()

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """Make the ranking, tables by cluster and by demand, and times of a decision."""
        policies = [row["policy"] for row in board["ranking"]]
        main = tuple(METRICS.values())
        sheets = [
            metrics_sheet(
                f"{board['suite']}: {of_planned(board, 'decisions')}",
                board["ranking"],
                main,
                f"Means over {cells_text(board)} (cluster x demand) ± half of the 95 % interval; "
                "lowest mean latency of a call first. call s: request-seconds over calls, those "
                "that were never served included; SLO: share of jobs whose deadline did not pass; "
                "job s, job p95 s: of jobs that ended; done: their share of all jobs; "
                f"of bound: the bound's latency over the policy's.{about_bounds(board)}",
            )
        ]
        clusters = list(dict.fromkeys(row["cluster"] for row in board["by_cluster"]))
        for cluster in clusters if len(clusters) > 1 else ():
            rows = [row for row in board["by_cluster"] if row["cluster"] == cluster]
            sheets.append(metrics_sheet(f"On {cluster}", rows, main))
        if len({row["demand"] for row in board["by_demand"]}) > 1:
            sheets.append(
                matrix(
                    "Mean latency of a call, s, by demand (SLO %)",
                    board["by_demand"],
                    "demand",
                    policies,
                    METRICS["call_latency_s"],
                    _latency_and_slo,
                )
            )
        if board.get("timing"):
            sheets.append(_timing_sheet(board["timing"], policies))
        return sheets


def _latency_and_slo(row: Mapping[str, Any]) -> str:
    latency, slo = (METRICS[name].text(row[name]) for name in ("call_latency_s", "slo"))
    return f"{latency} ({slo})"


def _timing_sheet(rows: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> Sheet:
    """Make the table of milliseconds a decision, by policy and cluster."""
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    found = {}
    for row in rows:
        text = f"{row['decide_median_ms']:.2f} ({row['decide_p95_ms']:.2f})"
        found[row["policy"], row["cluster"]] = text
    return Sheet(
        "Milliseconds of one decision: median (95th percentile)",
        ["policy", *clusters],
        [[short(p), *(found.get((p, c), "") for c in clusters)] for p in policies],
        "Processor time of the deciding thread, medians over cells.",
    )
