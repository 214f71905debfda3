"""The benchmark of speed: figures, and a second revision measured in turn."""

from __future__ import annotations

from benchmarks.speed import measure


def test_a_figure_is_measured_here_and_there() -> None:
    (row,) = measure(["import"], 1, ".")
    assert row[0] == "import inframind_gym"
    assert all(cell.endswith(" s") for cell in row[1:3])
    assert float(row[3].partition(" ")[0]) > 0.0
