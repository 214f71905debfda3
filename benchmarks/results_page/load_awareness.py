"""Which models serve queries that keep their budget, and which those that do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.results_page.plan import EntryRun
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.store import read_blocks, read_records


@dataclass(frozen=True, slots=True)
class Sides:
    """Decisions by the cost ratio (latency over budget) of their query.

    Attributes:
        models_below: Decisions for each model, of queries with a ratio of at most 1.
        models_above: The same of queries with a ratio above 1.
        below: Queries with a ratio of at most 1.
        above: Queries with a ratio above 1.
    """

    models_below: dict[str, int]
    models_above: dict[str, int]
    below: int
    above: int

    @property
    def late(self) -> float:
        """Share of queries with a ratio above 1."""
        return self.above / max(self.below + self.above, 1)

    def shares(self, *, above: bool) -> dict[str, float]:
        """Shares of the models on one side; empty if there is no query on it."""
        models = self.models_above if above else self.models_below
        total = sum(models.values())
        return {model: count / total for model, count in models.items()} if total else {}

    def plus(self, other: Sides) -> Sides:
        """Both together."""
        return Sides(
            dict(Counter(self.models_below) + Counter(other.models_below)),
            dict(Counter(self.models_above) + Counter(other.models_above)),
            self.below + other.below,
            self.above + other.above,
        )


def sides_of(run: EntryRun) -> Sides:
    """Read the episodes of a run.

    Source: ``spec/inframind.md`` §5 splits the published agent's decisions in this way.
    """
    models: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    queries: Counter[bool] = Counter()
    wanted = set(grid(run.suite))
    blocks = [block for block in read_blocks(run.folder) if block.cell in wanted]
    for _, episodes in read_records(run.folder, blocks):
        for episode in episodes:
            late = episode["cost"] > 1.0
            models[late].update(episode["models"])
            queries[late] += 1
    return Sides(dict(models[False]), dict(models[True]), queries[False], queries[True])
