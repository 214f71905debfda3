"""A results folder for tests of what reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.synthetic_results import drawn, routing, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of two policies that are equally good, at two rates."""
    rates = (10.0, 100.0)
    places = [(p, rate, seed) for p in ("good", "bad") for rate in rates for seed in range(5)]
    cells = [routing(policy, "w", rate, 30.0, seed) for policy, rate, seed in places]
    write_folder(tmp_path / "r", cells, lambda cell: drawn(cell, 0.7, 1.0))
    return tmp_path / "r"
