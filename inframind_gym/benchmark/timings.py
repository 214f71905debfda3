"""How long policies take to decide: medians over the cells of a results folder.

Times are measured, not computed: they differ from run to run and from machine to machine, and have
no intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.results import Results


def timing_rows(results: Results, places: Sequence[Place]) -> list[dict[str, Any]]:
    """Medians of what was measured, by policy and by the first axis.

    Args:
        results: A results folder.
        places: The places that count.

    Returns:
        One row for each policy and value of the first axis of which something is known.
    """
    axis = results.family.cell.axes[0].name
    wanted = set(places)
    found: dict[tuple[str, Any], list[dict[str, float]]] = {}
    for cell, timing in results.timings.items():
        if cell.place in wanted:
            found.setdefault((cell.policy, cell.place[0]), []).append(timing)
    return [
        {"policy": policy, axis: value, "cells": len(timings), **_medians(timings)}
        for policy in results.policies
        for value in dict.fromkeys(place[0] for place in places)
        if (timings := found.get((policy, value)))
    ]


def _medians(timings: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([t[name] for t in timings])) for name in timings[0]}
