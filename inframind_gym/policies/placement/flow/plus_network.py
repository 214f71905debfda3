"""A min-cost flow that corrects what `spec_network` cannot express.

Per STABLE GPU there is an arc to every model that may come, an arc that keeps what is there (the
*keep-arc*, free), and a model behind which the arcs are convex: each further copy is worth less
(`relief`). The flow is solved exactly (`exchange`). What a switch costs, and how long a model stays
at least, is handed in (`inframind_gym.policies.placement.flows`): drain latency from the last interval's deltas,
the times to sleep and to wake or load, and hysteresis.

*Groups*. A model of tensor parallelism k comes and goes on whole blocks. Blocks are settled before
the flow (`groups`): one comes where its next copy is worth more than what its GPUs do now, by the
marginal worth of their models, and goes where its GPUs are worth more apart. The flow has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.placement.flow.exchange import FORBIDDEN, assign
from inframind_gym.policies.placement.flow.groups import settle_groups
from inframind_gym.simulator.placement.state import NONE

UNIT_S: Final = 1e-3  # request-seconds in one unit of the flow's costs


@dataclass
class Plan:
    """One decision as a problem; G GPUs, M models. Solving it changes `target` and `copies`.

    Attributes:
        tp: (M,) GPUs of an instance.
        free: (G,) GPUs that may be given another model.
        target: (G,) model that is, or is to be, awake on each GPU; NONE.
        copies: (M,) instances that are awake, are coming or are to come.
        gains: (M, K) request-seconds that the first, second, … copy saves; rows do not increase.
        switch: (G, M) request-seconds that it costs to bring a model to a GPU; infinity: it may
            not come. The keep-arc: 0 where it is.
    """

    tp: NDArray[np.int64]
    free: NDArray[np.bool_]
    target: NDArray[np.int64]
    copies: NDArray[np.int64]
    gains: NDArray[np.float64]
    switch: NDArray[np.float64]

    def solve(self) -> NDArray[np.int64]:
        """(G,) model of each GPU, or NONE."""
        settle_groups(
            self.tp,
            self.free,
            np.zeros(len(self.free), np.bool_),
            self.target,
            self.copies,
            np.ascontiguousarray(self.gains),
            np.ascontiguousarray(self.switch),
            np.zeros(len(self.tp), np.int64),
            np.zeros(len(self.free), np.int64),
            np.zeros(3, np.int64),
        )
        self._flow()
        return self.target

    def _flow(self) -> None:
        """Assign the GPUs that are free and in no group."""
        wide = np.where(self.target == NONE, 1, self.tp[self.target]) > 1
        gpus = np.flatnonzero(self.free & ~wide)
        models = np.flatnonzero(self.tp == 1)
        if not len(gpus) or not len(models):
            return
        place = np.full(len(self.tp) + 1, len(models))  # the model behind the last: nothing
        place[models] = np.arange(len(models))
        start = place[self.target[gpus]]  # NONE = -1 is the last entry
        for a in start[start < len(models)].tolist():
            self.copies[models[a]] -= 1
        # The copies that are not to be decided come first: the flow has those behind them.
        column = self.copies[models][:, None] + np.arange(len(gpus))[None, :]
        most = self.gains.shape[1]
        further = np.take_along_axis(self.gains[models], np.minimum(column, most - 1), axis=1)
        gain = np.where(column < most, further, 0.0)
        gain = np.concatenate([gain, np.zeros((1, len(gpus)))])
        cost = np.concatenate([self.switch[np.ix_(gpus, models)], np.zeros((len(gpus), 1))], axis=1)
        chosen = assign(_units(cost), _units(gain), start)
        for g, j in zip(gpus.tolist(), chosen.tolist(), strict=True):
            self.target[g] = models[j] if j < len(models) else NONE
            if j < len(models):
                self.copies[models[j]] += 1


def _units(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    scaled = np.rint(np.where(np.isfinite(seconds), seconds, 0.0) / UNIT_S).astype(np.int64)
    units: NDArray[np.int64] = np.where(np.isfinite(seconds), scaled, FORBIDDEN)
    return units
