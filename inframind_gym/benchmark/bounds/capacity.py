"""How much work servers and GPUs can do: relaxations that no schedule can beat.

Work is counted in seconds of a server that is alone on its GPU and whose steps are as full as its
slots allow (`inframind_gym.policies.oracle.call_work_s`). A server does at most one second of it a second. Of
n busy models on a GPU each runs at 1 / (1 + s (n - 1)) of its speed, so together they do at most
max over n of n / (1 + s (n - 1)) seconds of work a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.server.pool import PoolConfig


@dataclass(frozen=True, eq=False)
class Resources:
    """What work uses up. K resources: servers, and GPUs that several models share.

    Attributes:
        names: (K,) the model's alias, or the GPU's name.
        uses: (M, K) 1 where a model's work uses a resource.
        rate: (K,) seconds of work that it does in a second.
    """

    names: tuple[str, ...]
    uses: NDArray[np.float64]
    rate: NDArray[np.float64]


def resources_of(pool: PoolConfig) -> Resources:
    """The resources of a pool."""
    names = list(pool.aliases)
    columns = [np.eye(len(names))]
    rates = [1.0] * len(names)
    for g, gpu in enumerate(pool.gpus):
        on_it = np.array(pool.gpu_index) == g
        models = int(on_it.sum())
        if models < 2:
            continue
        names.append(gpu.name)
        columns.append(on_it[:, None].astype(np.float64))
        rates.append(
            max(n / (1.0 + gpu.colocation_slowdown * (n - 1)) for n in range(1, models + 1))
        )
    uses, rate = np.concatenate(columns, axis=1), np.array(rates)
    told = [  # a server says nothing that its GPU does not, where that does no more work than it
        k
        for k in range(len(names))
        if not any(
            other != k and rate[other] <= rate[k] and (uses[:, other] >= uses[:, k]).all()
            for other in range(len(pool.models), len(names))
        )
    ]
    return Resources(tuple(names[k] for k in told), uses[:, told], rate[told])
