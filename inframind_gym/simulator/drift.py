"""Mixes whose weights change while queries arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inframind_gym.simulator.workload import WorkloadConfig


@dataclass(frozen=True, eq=False)
class Drift:
    """A mix whose weights go back and forth, linearly.

    Attributes:
        ends: (2, P) weights at both ends; each row sums to 1.
        queries: from one end to the other and back.
    """

    ends: NDArray[np.float64]
    queries: int

    def weights(self, ordinal: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights (n, P) of queries by their place in the stream (n,)."""
        phase = ordinal % self.queries / self.queries
        far = 1.0 - np.abs(1.0 - 2.0 * phase)
        mixed: NDArray[np.float64] = np.stack([1.0 - far, far], axis=1) @ self.ends
        return mixed


def drift_of(workload: WorkloadConfig) -> Drift | None:
    """Return the drift of a mix, its parts in the order of `load_profiles`; None: it has none."""
    if workload.mix is None or workload.mix_to is None or workload.drift_queries is None:
        return None
    ends = np.array(
        [[end[name] for name in workload.mix] for end in (workload.mix, workload.mix_to)]
    )
    return Drift(ends / ends.sum(axis=1, keepdims=True), workload.drift_queries)
