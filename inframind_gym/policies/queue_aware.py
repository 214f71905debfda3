"""Policies that read the telemetry: shortest queue, and earliest expected answer.

Telemetry is as old as the last poll (5 s by default). A router that trusts it alone sends a whole
interval's calls to the same idle server; so both add the calls that they sent themselves since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError
from inframind_gym.policies import Contexts, PolicySpec
from inframind_gym.policies.draws import named
from inframind_gym.policies.heuristic import MIX, Asked, Heuristic

# A full batch of 16 decodes 1.2-1.4 times slower than a single sequence: roofline estimates for
# 3B-32B models on H100 and H200 (TPOT at batch 16 over batch 1).
FULL_BATCH_SLOWDOWN: Final = 0.3


class QueueAware(Heuristic):
    """Keeps, per row, how many calls it sent to each model since the telemetry was last polled.

    Calls that follow without a decision (a node's second call, the final one) show at the next
    poll, as does everybody else's traffic.

    Args:
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
    """

    def __init__(self, strategy: str = MIX) -> None:
        super().__init__(strategy)
        self.sent: NDArray[np.int64] | NDArray[np.float64] = np.zeros((0, 0), np.int64)  # (rows, M)
        self._poll: NDArray[np.int64] = np.zeros(0, np.int64)  # (rows,)
        self._time_s: NDArray[np.float64] = np.zeros(0)  # (rows,)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows.

        Raises:
            ConfigError: the observation holds no queue depths.
        """
        super().reset(spec, seeds)
        if not spec.layout.has("queue"):
            raise ConfigError(
                f"policy {self.name!r} needs queue depths; make the environment with "
                "system_features that include 'queue'"
            )
        self.sent = np.zeros((len(seeds), spec.num_models), np.int64)
        self._poll = np.full(len(seeds), -1, np.int64)
        self._time_s = np.full(len(seeds), -np.inf)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`; a new poll, or time that began anew, clears what was sent."""
        poll = contexts["poll"].astype(np.int64)
        time_s = contexts["time_s"].astype(np.float64)
        fresh = (poll != self._poll[rows]) | (time_s < self._time_s[rows])
        self.sent[rows[fresh]] = 0
        self._poll[rows], self._time_s[rows] = poll, time_s
        actions = super().act_batch(observations, contexts, rows)
        self.sent[rows, self.spec.model_of(actions)] += 1
        return actions

    def load_req(
        self, observations: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Calls believed to be at each model, (n, M): polled depth and own calls since."""
        # The feature is float32: rounding gives the whole numbers back, so that ties are ties.
        depth = np.round(self.spec.layout.queue_depth_req(observations), 3)
        return depth + self.sent[rows]

    def expected_latency_s(
        self, observations: NDArray[np.float32], rows: NDArray[np.int64], e2e_weight: float
    ) -> NDArray[np.float64]:
        """Seconds until a call sent now would be answered, (n, M).

        The light-load seconds of a call grow with the batch it joins; calls beyond the slots wait,
        and a server with s slots frees one every (call / s) seconds. The polled end-to-end latency
        is blended in with `e2e_weight` times the share of slots in use: with nothing running it is
        a memory of older load (the last value is held while nothing finishes).
        """
        spec = self.spec
        slots = spec.max_num_seqs
        load = self.load_req(observations, rows)
        busy = np.minimum(load / slots, 1.0)
        service = spec.expected_call_s * (1.0 + FULL_BATCH_SLOWDOWN * busy)
        waiting = np.maximum(load + 1.0 - slots, 0.0)  # this call and those ahead that find no slot
        expected = service * (1.0 + waiting / slots)
        if e2e_weight <= 0.0 or not spec.layout.has("e2e"):
            return expected
        polled = spec.layout.e2e_s(observations)
        weight = np.where(polled > 0.0, e2e_weight * busy, 0.0)
        return (1.0 - weight) * expected + weight * polled


class LeastLoadedPolicy(QueueAware):
    """The model with the fewest calls per slot: the join-the-shortest-queue rule.

    Args:
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
    """

    def __init__(self, strategy: str = MIX) -> None:
        super().__init__(strategy)
        self.name = named("least_loaded", *([] if strategy == MIX else [strategy]))

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The lowest load per slot among the models that are up; ties are drawn."""
        return self.argmin(
            self.load_req(asked.observations, asked.rows) / self.spec.max_num_seqs,
            asked.rows,
            asked.up,
        )


class LowestExpectedLatencyPolicy(QueueAware):
    """The model that is expected to answer first.

    Args:
        strategy: name of a strategy, or "mix" for the measured mix of the workload.
        e2e_weight: trust in the polled end-to-end latency of a full server, 0 to 1.
    """

    def __init__(self, strategy: str = MIX, e2e_weight: float = 0.5) -> None:
        super().__init__(strategy)
        self.name = named("lowest_expected_latency", *([] if strategy == MIX else [strategy]))
        self.e2e_weight = checked_weight(e2e_weight)

    def choose_models(self, asked: Asked) -> NDArray[np.int64]:
        """The lowest expected latency among the models that are up; ties are drawn."""
        expected = self.expected_latency_s(asked.observations, asked.rows, self.e2e_weight)
        return self.argmin(expected, asked.rows, asked.up)


def checked_weight(e2e_weight: float) -> float:
    """The weight itself.

    Raises:
        ConfigError: it is not between 0 and 1.
    """
    if not 0.0 <= e2e_weight <= 1.0:
        raise ConfigError(f"e2e_weight is {e2e_weight}; it must be between 0 and 1")
    return e2e_weight
