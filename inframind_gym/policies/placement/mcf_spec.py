"""`mcf_spec`: a linear min-cost flow, one path for each GPU, solved by networkx.

Four layers: source → STABLE GPUs → a copy of every needed model for each GPU → sink. Needed are the
models of calls in waiting_for_scheduling or in potential, less those that are loading. Arcs cost
seconds:

- source → GPU g: the drain latency of the server on g.
- g → model j: 0 if j is active on g. Otherwise, if the sleepers on g, the active model a and j may
  sleep there together, t_sleep(a) + requests(a) · t_wake(a); else the least
  t_offload(m) + requests(m) · t_load(m) over the residents m of g, awake or asleep.
- j on g → sink: 0, t_wake(j) or t_load(j) if j is ACTIVE, SLEPT or ABSENT on g, less the ages of
  j's waiting calls.

- *Requests* of a model are its calls in waiting_for_scheduling and in potential; the relief on the
  last arc counts waiting_for_scheduling alone.
- Among residents of equal cost the first in the list is offloaded. A GPU without an ACTIVE model
  has no sleep cost, one without any resident nothing to offload.
- j's memory asleep is its card's slept_mem_tp1_MB; that of the active model is of its own tp.

networkx wants whole numbers: costs are counted in units of `UNIT_S` (a millisecond), rounded half
to even. `max_flow_min_cost` first maximises the flow, so every STABLE GPU is given a model.

Known defects, kept because `mcf_plus` is measured against them: TP > 1 cannot be expressed (each
GPU chooses alone, so groups come together by accident only); the relief is the same for the first
copy and the tenth, so several GPUs pile onto one hot model; every GPU must act, so a GPU whose
model has no demand takes the cheapest change rather than none (keeping is free only for a model
that is needed).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec
from inframind_gym.errors import require
from inframind_gym.policies.placement.protocol import BasePlacementPolicy
from inframind_gym.simulator.placement.state import ACTIVE, NONE, SLEPT

UNIT_S: Final = 1e-3


class SpecCosts(NamedTuple):
    """The network's arcs, in seconds; G GPUs, M models."""

    gpus: NDArray[np.int64]  # (S,) STABLE ones
    models: NDArray[np.int64]  # (N,) needed ones
    drain: NDArray[np.float64]  # (G,) source → GPU
    switch: NDArray[np.float64]  # (G, M) GPU → model
    relief: NDArray[np.float64]  # (M,) gross waiting relief
    activate: NDArray[np.float64]  # (G, M) activation or loading cost; model → sink less the relief


def spec_costs(spec: PlacementSpec, context: PlacementContext, row: int) -> SpecCosts:
    """Return the arcs of the network for one decision.

    Args:
        spec: the facts of the run.
        context: decisions of several rows.
        row: which of them.
    """
    state, active = context.state[row], context.active[row]
    demand, awake = context.outstanding[row], active != NONE
    sleep = context.sleep_s[row] + demand * context.wake_s[row]  # and to wake it for its requests
    offload = context.offload_s[row] + demand * context.load_s[row]
    slept, is_active = state == SLEPT, active[:, None] == np.arange(spec.num_models)
    residents = slept | is_active
    least = np.where(residents, offload, np.inf).min(axis=1, initial=np.inf)
    asleep_mb = slept @ spec.slept_mb + np.where(awake, spec.slept_mb[active], 0.0)
    sleepable = asleep_mb[:, None] + spec.slept_tp1_mb <= spec.slept_limit_mb[:, None]
    go_s = np.where(residents.any(axis=1), least, 0.0)
    switch = np.where(sleepable, np.where(awake, sleep[active], 0.0)[:, None], go_s[:, None])
    comes_s = np.where(slept, context.wake_s[row], context.load_s[row])
    return SpecCosts(
        gpus=np.flatnonzero(context.stable[row]),
        models=np.flatnonzero((demand > 0) & ~context.loading[row]),
        drain=context.drain_total_s[row].copy(),
        switch=np.where(is_active, 0.0, switch),
        relief=context.age_sum_s[row].copy(),
        activate=np.where(state == ACTIVE, 0.0, comes_s),
    )


def solve_spec(costs: SpecCosts) -> dict[int, int]:
    """Return the model that the flow sends through each STABLE GPU; {} if no model is needed.

    Raises:
        ImportError: networkx is not installed (extra `placement`).
    """
    import networkx as nx

    if not len(costs.models) or not len(costs.gpus):
        return {}
    graph: Any = nx.DiGraph()
    for g in costs.gpus.tolist():
        graph.add_edge("source", ("gpu", g), capacity=1, weight=_units(costs.drain[g]))
        for j in costs.models.tolist():
            copy = ("copy", j, g)
            graph.add_edge(("gpu", g), copy, capacity=1, weight=_units(costs.switch[g, j]))
            sink_s = costs.activate[g, j] - costs.relief[j]
            graph.add_edge(copy, "sink", weight=_units(sink_s))  # no capacity: unlimited
    flow = nx.max_flow_min_cost(graph, "source", "sink")
    return {
        g: next(copy[1] for copy, units in flow["gpu", g].items() if units > 0)
        for g in costs.gpus.tolist()
    }


def _units(seconds: float) -> int:
    return round(float(seconds) / UNIT_S)


class SpecFlowPlacement(BasePlacementPolicy):
    """The model that the linear flow sends through each STABLE GPU."""

    name = "mcf_spec"

    def __init__(self) -> None:
        require("networkx", "placement policy 'mcf_spec'", "placement")

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """See the class."""
        action = np.zeros(self.spec.num_gpus, np.int64)
        for g, m in solve_spec(spec_costs(self.spec, context, 0)).items():
            action[g] = m + 1
        return action
