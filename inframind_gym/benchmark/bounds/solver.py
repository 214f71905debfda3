"""The one place that calls a linear programming solver: HiGHS, by SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError


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
        BenchmarkError: SciPy is not installed, or the solver gives up.
    """
    found = _scipy("scipy.optimize").linprog(
        -value, A_ub=matrix, b_ub=limit, bounds=(0.0, None), method="highs"
    )
    if found.status != 0:
        raise BenchmarkError(f"the linear program of a bound was not solved: {found.message}")
    prices = -np.asarray(found.ineqlin.marginals, np.float64)
    return -float(found.fun), np.asarray(found.x, np.float64), prices


def sparse_rows(
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.float64] | None]],
    columns: int,
    above: Any = None,
) -> Any:
    """A sparse matrix from rows of (columns, values); None stands for ones.

    Args:
        rows: one a row.
        columns: of the matrix.
        above: a sparse matrix that goes on top.

    Raises:
        BenchmarkError: SciPy is not installed.
    """
    sparse = _scipy("scipy.sparse")
    values = [np.ones(len(of)) if value is None else value for of, value in rows]
    starts = np.concatenate([[0], np.cumsum([len(of) for of, _ in rows])]).astype(np.int64)
    made = sparse.csr_matrix(
        (np.concatenate(values), np.concatenate([of for of, _ in rows]), starts),
        shape=(len(rows), columns),
    )
    return made if above is None else sparse.vstack([above, made], format="csr")


def _scipy(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise BenchmarkError(
            "the fluid bounds need SciPy: install the extra `bounds`, from the repository "
            '`pip install -c constraints.txt -e ".[bounds]"`.'
        ) from error
