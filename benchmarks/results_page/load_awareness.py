"""Which models serve queries that keep their budget, and which those that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cells import grid
from benchmarks.results_page.plan import EntryRun
from benchmarks.store import read_blocks, read_episodes


@dataclass(frozen=True, slots=True)
class Sides:
    """Shares of decisions by the cost ratio (latency over budget) of their query.

    Attributes:
        below: Shares of models, of queries with a ratio of at most 1.
        above: The same of queries with a ratio above 1; empty if there is none.
        late: Share of queries with a ratio above 1.
    """

    below: dict[str, float]
    above: dict[str, float]
    late: float


def sides_of(runs: Iterable[EntryRun]) -> Sides:
    """Read an entry's episodes.

    Source: ``spec/inframind.md`` §5 splits the published agent's decisions in this way.

    Args:
        runs: The runs of one entry under one protocol.
    """
    models: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    queries: Counter[bool] = Counter()
    for run in runs:
        wanted = set(grid(run.suite))
        blocks = [block for block in read_blocks(run.folder) if block.cell in wanted]
        for _, episodes in read_episodes(run.folder, blocks):
            for episode in episodes:
                late = episode["cost"] > 1.0
                models[late].update(episode["models"])
                queries[late] += 1
    below, above = ({m: n / side.total() for m, n in side.items()} for side in models.values())
    return Sides(below, above, queries[True] / max(queries.total(), 1))
