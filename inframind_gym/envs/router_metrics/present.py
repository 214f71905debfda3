"""What holds now: gauges that are read when somebody asks for them, on any thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from inframind_gym.envs.router_metrics.watched import Watched
from inframind_gym.policies import multiplier_of
from inframind_gym.simulator.server.telemetry import QUEUE

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

# Name of a gauge -> its labels' values and its value.
Values = Iterator[tuple[str, Iterable[tuple[tuple[str, ...], float]]]]


def present(watched: Watched | None, policy: object, age_s: float) -> Values:
    """What holds now.

    Args:
        watched: the environment; None: none is watched.
        policy: who decides.
        age_s: of the servers' metrics when the last decision was due; NaN: not known.
    """
    multiplier = multiplier_of(policy)
    if multiplier is not None:
        yield "inframind_lambda", [((), multiplier)]
    if watched is None:
        return
    env, simulation = watched.env, watched.env.simulation
    about = (
        simulation.title,
        simulation.pool.name,
        simulation.workload.name,
        str(getattr(policy, "name", "")),
    )
    yield "inframind_router_info", [(about, 1.0)]
    if not math.isnan(age_s):
        yield "inframind_telemetry_age_seconds", [((), age_s)]
    sweep, up = watched.sweep, env.models_up()
    waiting = int(sweep["arrived"]) - int(sweep["finished"])
    yield "inframind_queries_in_flight", [((), max(waiting, 0))]
    seen = watched.seen[QUEUE] * simulation.pool.queue_norm
    labels = [(alias,) for alias in simulation.pool.aliases]
    yield "inframind_queue_depth_seen_requests", zip(labels, seen.tolist(), strict=True)
    in_flight = sweep["in_flight"][: len(labels)].tolist()
    yield "inframind_calls_in_flight", zip(labels, in_flight, strict=True)
    is_up = [float(up >> m & 1) for m in range(len(labels))]
    yield "inframind_server_up", zip(labels, is_up, strict=True)


class Present:
    """Reads the gauges when they are asked for; those that nothing is known of are left out."""

    GAUGES: Final = {
        "inframind_lambda": ("Multiplier of the constraint that the policy was trained with.", ()),
        "inframind_router_info": (
            "What is running.",
            ("environment", "pool", "workload", "policy"),
        ),
        "inframind_telemetry_age_seconds": (
            "Age of the servers' metrics when the last decision was due.",
            (),
        ),
        "inframind_queries_in_flight": ("Queries that have arrived and are not over.", ()),
        "inframind_queue_depth_seen_requests": (
            "Requests running and waiting at a server, as the router was told last.",
            ("model",),
        ),
        "inframind_calls_in_flight": ("Calls sent to a server and not over.", ("model",)),
        "inframind_server_up": ("Whether a server can be routed to.", ("model",)),
    }

    def __init__(self, values: Callable[[], Values]) -> None:
        self._values = values

    def describe(self) -> list[GaugeMetricFamily]:
        """All gauges, without values."""
        return [self._family(name) for name in self.GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Those that hold now."""
        for name, values in self._values():
            family = self._family(name)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family

    def _family(self, name: str) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        text, labels = self.GAUGES[name]
        return GaugeMetricFamily(name, text, labels=labels)
