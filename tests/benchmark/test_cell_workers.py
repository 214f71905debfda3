"""Work is kept every few seconds, whatever a policy's speed."""

from collections.abc import Iterator, Sequence

import pytest

from inframind_gym.benchmark import cell_workers
from inframind_gym.benchmark.families import Player, family
from inframind_gym.benchmark.routing.suite import RoutingCell
from tests.benchmark.synthetic_results import NAMES, drawn

CELLS = [RoutingCell("good", "w", 10.0, 30.0, seed) for seed in range(128)]


class Timed(Player):
    """Takes seconds of a clock of its own for a reset, and for each cell."""

    def __init__(self, reset_s: float, cell_s: float) -> None:
        self.now_s, self.reset_s, self.cell_s = 0.0, reset_s, cell_s
        self.rows: list[int] = []

    def ask(self, cell: RoutingCell) -> None: ...

    def run(self, cells: Sequence[RoutingCell]) -> Iterator[list[tuple]]:
        self.rows.append(len(cells))
        self.now_s += self.reset_s
        self.began = self.now_s
        self.now_s += self.cell_s * len(cells)
        yield [(cell, drawn(cell, 0.7, 1.0, n=5), NAMES) for cell in cells]


@pytest.mark.parametrize(
    ("reset_s", "cell_s", "rows"),
    [
        (0.0, 0.01, [16, 56, 56]),  # fast: four times as many
        (0.0, 10.0, [16, *[3] * 36, 2, 2]),  # slow: half a minute
        (20.0, 10.0, [16, *[8] * 14]),  # slow to be reset: four times as long as that
    ],
)
def test_batches_are_as_large_as_end_within_seconds(
    monkeypatch: pytest.MonkeyPatch, reset_s: float, cell_s: float, rows: list[int]
) -> None:
    player = Timed(reset_s, cell_s)
    monkeypatch.setattr(cell_workers.time, "monotonic", lambda: player.now_s)
    ids = {cell: f"{cell.seed:016}" for cell in CELLS}
    batches = cell_workers._Batches(family("routing"), player)
    kept = [one.cell for results in batches.run(CELLS, ids) for one in results]
    assert kept == CELLS
    assert player.rows == rows
