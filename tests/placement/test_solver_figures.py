"""The solvers that are compared solve the same problem."""

from __future__ import annotations

import pytest

from benchmarks import placement_solver as solver
from benchmarks.placement_solver import SOLVERS, measure


def test_all_solvers_agree_and_are_timed() -> None:
    """`measure` raises where two of them disagree."""
    pytest.importorskip("scipy")
    (line,) = measure(((12, 5),), repeats=1)
    assert (line["gpus"], line["models"]) == (12, 5)
    for name in SOLVERS:
        took_ms = line[name]
        assert took_ms is not None
        assert took_ms > 0.0


def test_solvers_whose_package_is_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "find_spec", lambda package: None)
    (line,) = measure(((12, 5),), repeats=1)
    left_out = {name for name in SOLVERS if line[name] is None}
    assert left_out == {"assignment", "highs", "networkx"}


def test_a_wrong_solver_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "networkx", lambda switch, gain, now: 0)
    with pytest.raises(RuntimeError, match="networkx found 0"):
        measure(((12, 5),), repeats=1)
