"""Time that one placement decision takes to solve, by solver and by size of the cluster.

The problem is that of the policy `mcf_plus`: every GPU has one model, one GPU in four had better
change; further copies are worth less. `exchange` is ours; `assignment` is SciPy's
`linear_sum_assignment` of GPUs to copies, `highs` its linear program, `networkx` the network
simplex. All find the same optimum, which is checked. Left out are those whose package is not
installed and, of larger sizes, those that took more than `PATIENCE_S`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.placement.exchange import assign

SIZES: Final = ((4, 6), (16, 12), (64, 16), (256, 32), (512, 64))  # GPUs, models
PATIENCE_S: Final = 2.0
REPEATS: Final = 5

Costs = NDArray[np.int64]
Solver = Callable[[Costs, Costs, NDArray[np.int64]], int]


def problem(gpus: int, models: int, seed: int = 0) -> tuple[Costs, Costs, NDArray[np.int64]]:
    """Costs of switching (G, M + 1), worth of copies (M + 1, K) and the present models (G,).

    The last model stands for none: it costs nothing and is worth nothing.
    """
    rng = np.random.default_rng(seed)
    most = max(2, 3 * gpus // models)
    hot = rng.exponential(200.0, (models, 1))
    worth = hot * np.exp(-np.arange(most) / (most / 3)) * rng.uniform(0.8, 1.0, (models, most))
    gain = np.minimum.accumulate(worth, axis=1)
    asleep = rng.random((gpus, models)) < 0.15
    switch = np.where(
        asleep, rng.uniform(5, 60, (gpus, models)), rng.uniform(100, 800, (gpus, models))
    )
    now = rng.integers(0, models, gpus)
    switch[np.arange(gpus), now] = 0.0
    switch = np.concatenate([switch, np.zeros((gpus, 1))], axis=1)
    gain = np.concatenate([gain, np.zeros((1, most))])
    return np.rint(switch * 1e3).astype(np.int64), np.rint(gain * 1e3).astype(np.int64), now


def total(switch: Costs, gain: Costs, model: NDArray[np.int64]) -> int:
    """What an assignment costs, less what its copies are worth."""
    copies = np.bincount(model, minlength=len(gain))
    worth = sum(int(gain[m, : copies[m]].sum()) for m in range(len(gain)))
    return int(switch[np.arange(len(model)), model].sum()) - worth


def by_exchange(switch: Costs, gain: Costs, now: NDArray[np.int64]) -> int:
    """Ours, from the present assignment."""
    return total(switch, gain, assign(switch, gain, now))


def by_assignment(switch: Costs, gain: Costs, now: NDArray[np.int64]) -> int:
    """SciPy's assignment of GPUs to copies and to a copy of every model that is worth nothing."""
    from scipy.optimize import linear_sum_assignment

    most = gain.shape[1]
    beyond = switch.min(axis=1, keepdims=True).repeat(len(switch), axis=1)
    wide = np.concatenate([np.repeat(switch, most, axis=1) - gain.ravel(), beyond], axis=1)
    rows, columns = linear_sum_assignment(wide)
    return int(wide[rows, columns].sum())


def by_highs(switch: Costs, gain: Costs, now: NDArray[np.int64]) -> int:
    """SciPy's linear program (HiGHS, dual simplex): its corners are whole."""
    from scipy import sparse
    from scipy.optimize import linprog

    gpus, models = switch.shape
    per_gpu = sparse.kron(sparse.eye(gpus), np.ones((1, models)))
    per_model = sparse.kron(np.ones((1, gpus)), sparse.eye(models))
    copies = sparse.kron(sparse.eye(models), np.ones((1, gain.shape[1])))
    solved = linprog(
        np.concatenate([switch.ravel(), -gain.ravel(), np.zeros(models)]),
        A_eq=sparse.bmat([[per_gpu, None, None], [per_model, -copies, -sparse.eye(models)]]),
        b_eq=np.concatenate([np.ones(gpus), np.zeros(models)]),
        bounds=[(0, 1)] * (switch.size + gain.size) + [(0, gpus)] * models,
        method="highs-ds",
    )
    return round(float(solved.fun))


def by_networkx(switch: Costs, gain: Costs, now: NDArray[np.int64]) -> int:
    """The network simplex of networkx."""
    import networkx as nx

    gpus, models = switch.shape
    graph: Any = nx.MultiDiGraph()
    graph.add_node("sink", demand=gpus)
    for g in range(gpus):
        graph.add_node(("gpu", g), demand=-1)
        for m in range(models):
            graph.add_edge(("gpu", g), ("model", m), capacity=1, weight=int(switch[g, m]))
    for m in range(models):
        for worth in gain[m].tolist():
            graph.add_edge(("model", m), "sink", capacity=1, weight=-worth)
        graph.add_edge(("model", m), "sink", weight=0)
    return int(nx.network_simplex(graph)[0])


SOLVERS: Final[dict[str, Solver]] = {
    "exchange": by_exchange,
    "assignment": by_assignment,
    "highs": by_highs,
    "networkx": by_networkx,
}
_NEEDS: Final = {"assignment": "scipy", "highs": "scipy", "networkx": "networkx"}


def measure(
    sizes: tuple[tuple[int, int], ...] = SIZES, repeats: int = REPEATS
) -> list[dict[str, float | int | None]]:
    """Median milliseconds (processor time) of every solver on every size; None: left out.

    Raises:
        RuntimeError: two solvers disagree about the optimum.
    """
    table = []
    given_up = {name for name, package in _NEEDS.items() if find_spec(package) is None}
    for gpus, models in sizes:
        switch, gain, now = problem(gpus, models)
        optimum = by_exchange(switch, gain, now)
        line: dict[str, float | int | None] = {"gpus": gpus, "models": models}
        for name, solver in SOLVERS.items():
            if name in given_up:
                line[name] = None
                continue
            took = []
            for _ in range(repeats):
                began = time.thread_time()
                found = solver(switch, gain, now)
                took.append(time.thread_time() - began)
                if found != optimum:
                    raise RuntimeError(f"{name} found {found}, exchange {optimum}")
                if took[-1] > PATIENCE_S:
                    given_up.add(name)
                    break
            line[name] = 1e3 * statistics.median(took)
        table.append(line)
    return table
