"""The fluid bound of a results folder, kept in it once it has been computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.routing.suite import RoutingSuite

CACHE: Final = "bounds"  # folder in a results folder
KIND: Final = "informed"  # its column


def fluid_averages(
    results: Results, strata: Sequence[Place], *, compute: bool
) -> dict[str, Any] | None:
    """Return the bound on goodput that follows from the servers' capacity.

    Args:
        results: A results folder; it keeps what has been computed.
        strata: Its cells, which get the same weight.
        compute: Whether bounds that the folder does not keep are computed, which takes seconds a
            cell and needs the extra `bounds`. Otherwise there are none until that has been done.

    Returns:
        ``mean``, ``by_workload``, ``by_rate`` and ``cells``, each row with ``informed`` (0..1);
        None if the folder keeps none and none are to be computed.

    Raises:
        BenchmarkError: scipy is missing.
    """
    cache: Path = results.folder / CACHE
    if not strata or not (compute or cache.is_dir()):
        return None
    from inframind_gym.benchmark.bounds import fluid_bound

    suite = RoutingSuite.model_validate(results.header["suite"])
    played = {spec["kwargs"]["workload"] for spec in results.header["env_specs"].values()}
    suite = suite.model_copy(update={"workloads": tuple(sorted(played))})  # of all runs
    cells = []
    for place in strata:
        bound = fluid_bound(suite, *place, cache=cache)
        shown, _ = suite.cell.without_draw(place)
        cells.append({**suite.cell.describe(shown), KIND: bound.informed})
    axes = {"by_workload": "workload", "by_rate": "rate_per_min"}
    tables = {
        table: [
            {axis: value, **_mean([cell for cell in cells if cell[axis] == value])}
            for value in dict.fromkeys(cell[axis] for cell in cells)
        ]
        for table, axis in axes.items()
    }
    return {"mean": _mean(cells), **tables, "cells": cells}


def _mean(cells: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {KIND: float(np.mean([cell[KIND] for cell in cells]))}
