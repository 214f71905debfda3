"""Placements that solve a min-cost flow every decision."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError
from inframind_gym.policies.placement.flow.plus_network import Plan
from inframind_gym.policies.placement.flow.relief import Load, copy_gains
from inframind_gym.policies.placement.flow.spec_network import solve_spec, spec_costs
from inframind_gym.policies.placement.protocol import BasePlacementPolicy
from inframind_gym.simulator.placement.context import PlacementContext, PlacementSpec
from inframind_gym.simulator.placement.state import NONE, SLEPT, is_coming

_RATE_EMA: Final = 0.25  # of the calls that come in an interval
_WORK_EMA: Final = 0.1  # of the work of a call


class SpecFlowPlacement(BasePlacementPolicy):
    """`spec/gpu_placement.md` to the letter, its defects included (`flow.spec_network`)."""

    name = "mcf_spec"

    def __init__(self) -> None:
        if find_spec("networkx") is None:
            raise ConfigError(
                "placement policy 'mcf_spec' needs networkx: pip install -c constraints.txt -e "
                "'.[placement]'"
            )

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """The model that the flow sends through each STABLE GPU."""
        action = np.zeros(self.spec.num_gpus, np.int64)
        for g, m in solve_spec(spec_costs(self.spec, context, 0)).items():
            action[g] = m + 1
        return action


class PlusFlowPlacement(BasePlacementPolicy):
    """Our min-cost flow (`flow.plus_network`).

    Args:
        horizon_s: how far ahead a copy's worth is reckoned.
        tail_s: what a call that still waits then is charged, in seconds.
        dwell_s: a model that became active stays at least this long.
        margin: a switch must save this share more than what it gives up.
        price: request-seconds that every switch costs beside its delay.
        haste: share of a copy's own worth that is charged for the time until it serves. The other
            part of a switch's cost is what the GPU's present model would have saved in that time:
            an idle GPU has nothing to lose and loads even what takes long.
    """

    name = "mcf_plus"

    def __init__(
        self,
        horizon_s: float = 20.0,
        tail_s: float = 15.0,
        dwell_s: float = 10.0,
        margin: float = 0.2,
        price: float = 3.0,
        haste: float = 0.5,
    ) -> None:
        self.horizon_s, self.tail_s, self.dwell_s = horizon_s, tail_s, dwell_s
        self.margin, self.price, self.haste = margin, price, haste

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Nothing is known of the demand."""
        super().reset(spec, seeds)
        rows, gpus, models = len(seeds), spec.num_gpus, spec.num_models
        self._rate = np.zeros((rows, models))
        self._weight = np.zeros(rows)  # of the observations in the averages so far
        self._work = np.zeros((rows, models))
        self._was = np.full((rows, gpus), NONE)
        self._since_s = np.full((rows, gpus), -np.inf)

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Learn from the interval, reckon what copies are worth, solve the flow."""
        self._learn(context, row)
        spec = self.spec
        load = Load(
            waiting=context.waiting[0].astype(np.float64),
            rate=self._rate[row] / max(self._weight[row], 1e-9) / spec.decision_interval_s,
            work=self._work[row],
            base_s=spec.base_s,
            per_seq_s=spec.per_seq_s,
            slots=spec.slots,
        )
        gains = copy_gains(load, spec.num_gpus, self.horizon_s, self.tail_s)
        active, state = context.active[0], context.state[0]
        coming = is_coming(state)
        target = np.where(coming.any(axis=1), coming.argmax(axis=1), active)
        there = target[:, None] == np.arange(spec.num_models)
        stays = context.time_s[0] - self._since_s[row] < self.dwell_s
        plan = Plan(
            tp=spec.tp,
            free=context.stable[0] & ~(stays & (active != NONE)),
            target=target.copy(),
            copies=there.sum(axis=0) // spec.tp,
            gains=gains,
            switch=self._switch(context, gains, there.sum(axis=0) // spec.tp),
        )
        wanted = plan.solve()
        moves = context.stable[0] & (wanted != active) & (wanted != NONE)
        return np.where(moves, wanted + 1, 0)

    def _learn(self, context: PlacementContext, row: int) -> None:
        """Follow rates and work of calls, and since when each GPU has its model."""
        spec = self.spec
        now_s, active = context.time_s[0], context.active[0]
        if now_s == 0.0:
            self._rate[row] = 0.0
            self._weight[row] = 0.0
            self._since_s[row] = -np.inf
            self._was[row] = active
            self._work[row] = context.latency_s[0] / (spec.base_s + spec.per_seq_s * spec.slots / 2)
            return
        self._rate[row] += _RATE_EMA * (context.arrived[0] - self._rate[row])
        self._weight[row] += _RATE_EMA * (1.0 - self._weight[row])
        new = (active != NONE) & (active != self._was[row])
        self._since_s[row, new] = now_s
        self._was[row] = active
        for m in np.unique(active[active != NONE]).tolist():
            batch = float(context.in_flight[0][active == m].mean())
            if 0.0 < batch <= spec.slots[m]:
                step_s = spec.base_s[m] + spec.per_seq_s[m] * batch
                work = context.latency_s[0, m] / step_s
                self._work[row, m] += _WORK_EMA * (work - self._work[row, m])

    def _switch(
        self, context: PlacementContext, gains: NDArray[np.float64], copies: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """(G, M) request-seconds that bringing a model to a GPU costs; infinity: it may not."""
        spec, active = self.spec, context.active[0]
        awake = active != NONE
        leaves_s = np.where(awake, context.sleep_s[0][active] + context.drain_s[0], 0.0)
        asleep = context.state[0] == SLEPT
        comes_s = np.where(asleep, context.wake_s[0], context.load_s[0])
        delay_s = leaves_s[:, None] + comes_s
        next_copy = np.minimum(copies, gains.shape[1] - 1)
        worth = gains[np.arange(spec.num_models), next_copy]
        last_copy = np.clip(copies - 1, 0, gains.shape[1] - 1)
        given_up = np.where(awake, gains[np.arange(spec.num_models), last_copy][active], 0.0)
        span_s = self.horizon_s + self.tail_s
        cost = delay_s / span_s * given_up[:, None] + self.margin * given_up[:, None]
        cost += np.minimum(self.haste * delay_s / span_s, 0.9) * worth
        cost = np.where(context.mask[0, :, 1:], cost + self.price, np.inf)
        cost[np.flatnonzero(awake), active[awake]] = 0.0
        return cost
