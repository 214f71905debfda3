"""`mcf_plus`: a min-cost flow in which every further copy of a model is worth less.

Per STABLE GPU there is an arc to every model that may come, an arc that keeps what is there (the
*keep-arc*, free), and behind the models arcs that are convex. Drain latency counts from the last
interval's deltas, a switch costs its delay and a price, and a model stays a least time. The flow
is solved exactly (`exchange`).

*Groups*. A model of tensor parallelism k comes and goes on whole blocks. Blocks are settled before
the flow (`groups`): one comes where its next copy is worth more than what its GPUs do now, by the
marginal worth of their models, and goes where its GPUs are worth more apart. The flow has the rest.

*Worth of a copy*, a fluid look ahead. Of model m, n calls wait now and λ come in a second. With k
copies, each of which ends μ = slots / (work · step(slots)) calls a second at a full batch, the
queue is q(t) = max(0, n + (λ - k·μ)·t) within the next H seconds, and

    C(k) = ∫₀ᴴ q dt  +  T · q(H)  +  service(k)

are the request-seconds that it costs; a call that is left at H is charged T seconds more. A running
call takes S = work · (base + per_seq · b) in a batch of b = S · r / k, where
r = min(λ + n / H, k·μ) of them end in a second; solved for S, service(k) = r · H · S. The worth of
copy k is C(k - 1) - C(k), made not to increase in k (rounding aside C is convex).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.context import PlacementContext, PlacementSpec
from inframind_gym.policies.placement.exchange import FORBIDDEN, assign
from inframind_gym.policies.placement.groups import Plan, make_plan, settle_groups
from inframind_gym.policies.placement.protocol import BasePlacementPolicy
from inframind_gym.simulator.placement.state import NONE, SLEPT, is_coming

UNIT_S: Final = 1e-3  # request-seconds in one unit of the flow's costs
_RATE_EMA: Final = 0.27  # of the calls that come in an interval
_WORK_EMA: Final = 0.1  # of the work of a call


class Load(NamedTuple):
    """Demand for each of M models."""

    waiting: NDArray[np.float64]  # (M,) calls that wait now, n
    rate: NDArray[np.float64]  # (M,) calls that come in a second, λ
    work: NDArray[np.float64]  # (M,) engine steps of a call
    base_s: NDArray[np.float64]  # (M,) of an engine step
    per_seq_s: NDArray[np.float64]  # (M,)
    slots: NDArray[np.int64]  # (M,)


def request_seconds(load: Load, most: int, horizon_s: float, tail_s: float) -> NDArray[np.float64]:
    """Return C(k) for k = 0 to `most`.

    Args:
        load: the models' loads.
        most: largest number of copies K.
        horizon_s: H.
        tail_s: T.

    Returns:
        (M, K + 1) request-seconds.
    """
    copies = np.arange(most + 1)[None, :]
    n, rate, work = (x[:, None] for x in (load.waiting, load.rate, load.work))
    base, per_seq, slots = (x[:, None] for x in (load.base_s, load.per_seq_s, load.slots))
    full_s = work * (base + per_seq * slots)
    capacity = copies * slots / full_s
    growth = rate - capacity
    end = np.maximum(n + growth * horizon_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        empty_s = np.where(growth < 0.0, n / -growth, np.inf)
        within = 0.5 * n * np.minimum(empty_s, horizon_s)
    waits = np.where(empty_s < horizon_s, within, n * horizon_s + 0.5 * growth * horizon_s**2)
    served = np.minimum(rate + n / horizon_s, capacity)
    each = served / np.maximum(copies, 1)
    room = 1.0 - work * per_seq * each
    service_s = np.minimum(work * base / np.maximum(room, 1e-9), full_s)
    cost: NDArray[np.float64] = waits + tail_s * end + served * horizon_s * service_s
    return cost


def copy_gains(load: Load, most: int, horizon_s: float, tail_s: float) -> NDArray[np.float64]:
    """Return the request-seconds that copy 1, 2, … saves, (M, K); rows do not increase."""
    cost = request_seconds(load, most, horizon_s, tail_s)
    gains: NDArray[np.float64] = np.minimum.accumulate(np.maximum(-np.diff(cost, axis=1), 0.0), 1)
    return gains


def solve(plan: Plan) -> NDArray[np.int64]:
    """Return the model of each GPU, or NONE, (G,): `plan.target`."""
    settle_groups(plan)
    wide = np.where(plan.target == NONE, 1, plan.tp[plan.target]) > 1
    gpus = np.flatnonzero(plan.free & ~wide)
    models = np.flatnonzero(plan.tp == 1)
    if not len(gpus) or not len(models):
        return plan.target
    place = np.full(len(plan.tp) + 1, len(models))  # the model behind the last: nothing
    place[models] = np.arange(len(models))
    start = place[plan.target[gpus]]  # NONE = -1 is the last entry
    plan.copies[models] -= np.bincount(start, minlength=len(models) + 1)[:-1]
    # The copies that are not to be decided come first: the flow has those behind them.
    column = plan.copies[models][:, None] + np.arange(len(gpus))[None, :]
    most = plan.gains.shape[1]
    further = np.take_along_axis(plan.gains[models], np.minimum(column, most - 1), axis=1)
    gain = np.where(column < most, further, 0.0)
    gain = np.concatenate([gain, np.zeros((1, len(gpus)))])
    cost = np.concatenate([plan.switch[np.ix_(gpus, models)], np.zeros((len(gpus), 1))], axis=1)
    chosen = assign(_units(cost), _units(gain), start)
    plan.target[gpus] = np.append(models, NONE)[chosen]
    plan.copies[models] += np.bincount(chosen, minlength=len(models) + 1)[:-1]
    return plan.target


def _units(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    scaled = np.rint(np.where(np.isfinite(seconds), seconds, 0.0) / UNIT_S).astype(np.int64)
    units: NDArray[np.int64] = np.where(np.isfinite(seconds), scaled, FORBIDDEN)
    return units


class PlusFlowPlacement(BasePlacementPolicy):
    """Min-cost flow with keep-arcs, convex worth of copies, groups and a least stay.

    Args:
        horizon_s: H, how far ahead a copy's worth is computed.
        tail_s: T, charged to a call that still waits then, in seconds.
        dwell_s: a model that became active stays at least this long.
        price: request-seconds that every switch costs in addition to its delay.
        haste: share of a copy's own worth that is charged for the time until it serves. The other
            part of a switch's cost is what the GPU's present model would have saved in that time:
            an idle GPU has nothing to lose and loads even what takes long.
    """

    name = "mcf_plus"
    version = 2

    def __init__(
        self,
        horizon_s: float = 15.0,
        tail_s: float = 28.0,
        dwell_s: float = 10.0,
        price: float = 2.0,
        haste: float = 0.5,
    ) -> None:
        self.horizon_s, self.tail_s, self.dwell_s = horizon_s, tail_s, dwell_s
        self.price, self.haste = price, haste

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Forget the demand."""
        super().reset(spec, seeds)
        rows, gpus, models = len(seeds), spec.num_gpus, spec.num_models
        self._rate = np.zeros((rows, models))
        self._weight = np.zeros(rows)  # of the observations in the averages so far
        self._work = np.zeros((rows, models))
        self._was = np.full((rows, gpus), NONE)
        self._since_s = np.full((rows, gpus), -np.inf)

    def decide(self, context: PlacementContext, row: int) -> NDArray[np.int64]:
        """Learn from the interval, compute the worth of copies, solve the flow."""
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
        copies = there.sum(axis=0) // spec.tp
        plan = make_plan(
            tp=spec.tp,
            free=context.stable[0] & ~(stays & (active != NONE)),
            target=target.copy(),
            copies=copies.copy(),
            gains=gains,
            switch=self._switch(context, gains, copies),
        )
        wanted = solve(plan)
        moves = context.stable[0] & (wanted != active) & (wanted != NONE)
        return np.where(moves, wanted + 1, 0)

    def _learn(self, context: PlacementContext, row: int) -> None:
        """Average rates and work of calls, and note since when each GPU has its model."""
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
        """Return the request-seconds to bring a model to a GPU, (G, M); infinity: it may not."""
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
        cost = delay_s / span_s * given_up[:, None]
        cost += np.minimum(self.haste * delay_s / span_s, 0.9) * worth
        cost = np.where(context.mask[0, :, 1:], cost + self.price, np.inf)
        cost[np.flatnonzero(awake), active[awake]] = 0.0
        return cost
