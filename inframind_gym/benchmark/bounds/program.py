"""Capacity of servers and GPUs, and linear programs over it, solved by HiGHS through SciPy.

Work is counted in seconds of a server that is alone on its GPU and whose steps are as full as its
slots allow (`inframind_gym.policies.oracle.call_work_s`). A server does at most one second of it a
second. Of n busy models on a GPU each runs at 1 / (1 + s (n - 1)) of its speed, so together they do
at most max over n of n / (1 + s (n - 1)) seconds of work a second. No schedule can do more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import require
from inframind_gym.simulator.server.pool import PoolConfig


@dataclass(frozen=True, eq=False)
class Resources:
    """Servers, and GPUs that several models share: K resources that work uses up.

    Attributes:
        names: (K,) the model's alias, or the GPU's name.
        uses: (M, K) 1 where a model's work uses a resource.
        rate: (K,) seconds of work that it does in a second.
    """

    names: tuple[str, ...]
    uses: NDArray[np.float64]
    rate: NDArray[np.float64]


def resources_of(pool: PoolConfig) -> Resources:
    """Return the resources of a pool."""
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
    binding = [  # a server is no limit of its own where its GPU does no more work than it
        k
        for k in range(len(names))
        if not any(
            other != k and rate[other] <= rate[k] and (uses[:, other] >= uses[:, k]).all()
            for other in range(len(pool.models), len(names))
        )
    ]
    return Resources(tuple(names[k] for k in binding), uses[:, binding], rate[binding])


def maximise(
    value: NDArray[np.float64], matrix: Any, limit: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Maximise value · x subject to matrix · x <= limit and x >= 0.

    Args:
        value: (n,).
        matrix: (m, n), dense or sparse.
        limit: (m,), none negative: x = 0 is feasible.

    Returns:
        The optimum, x (n,) and the price (m,) of every limit.

    Raises:
        InfraMindError: SciPy is not installed, or the solver gives up.
    """
    found = require("scipy.optimize", "the computation of fluid bounds", "bounds").linprog(
        -value, A_ub=matrix, b_ub=limit, bounds=(0.0, None), method="highs"
    )
    if found.status != 0:
        raise BenchmarkError(f"the linear program of a bound was not solved: {found.message}")
    prices = -np.asarray(found.ineqlin.marginals, np.float64)
    return -float(found.fun), np.asarray(found.x, np.float64), prices
