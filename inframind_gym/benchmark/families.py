"""A family of environments as the benchmark sees it: routing, or placement.

What a family owns: the coordinates of its cells (`cell`), the suites that span them (`suite`), how
a cell is run and written down (`simulator`, `encode`), what its results depend on (`settings`,
`fingerprints`), what its episodes are summed up to (`layout`, `metrics`, `score`) and how it is
shown (`about`, `sheets`). Everything else, the store, the intervals, the leaderboard, the paired
comparison and the command line, is written once, over these.

A run's family stands in its suite under ``kind``; where nothing stands it is "routing".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import unknown

if TYPE_CHECKING:
    from inframind_gym.benchmark.cells import BaseCell, Place
    from inframind_gym.benchmark.metrics import Metric
    from inframind_gym.benchmark.results import Results
    from inframind_gym.benchmark.store import CellResult
    from inframind_gym.benchmark.suite import BaseSuite
    from inframind_gym.benchmark.tables import Sheet

ROUTING: Final = "routing"
_FAMILIES: Final = {
    ROUTING: "inframind_gym.benchmark.routing.family:RoutingFamily",
    "placement": "inframind_gym.benchmark.placement.family:PlacementFamily",
}
Progress = Callable[[int], None]


class Layout(Protocol):
    """How the episodes of a sweep become a row of sums, and sums become metrics.

    Every metric is a function of sums, but for one quantile, of `values`.
    """

    tail: ClassVar[str]  # name of that quantile's metric

    @property
    def width(self) -> int:
        """Numbers in a row of sums."""

    def sums(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Sums over episodes, ``(width,)``."""

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Metrics of pooled sums ``(..., width)``, ``(...)`` each; all but the quantile."""

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """What was used, by kind and name, of one row of sums."""

    def values(self, episode: Mapping[str, Any]) -> Sequence[float]:
        """What an episode adds to the numbers whose quantile is shown."""


class Player(Protocol):
    """Runs batches of cells; asks between steps whether to stop."""

    def run(self, cells: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        """Run cells of one batch; yields those that have finished, with what `encode` takes."""


class Simulator(Player, Protocol):
    """One that can be made in every process."""

    def warm_up(self, cell: Any) -> None:
        """Take one step as in a cell, so that compiled code is in the cache."""


class LivePlayer(Player, Protocol):
    """One of which there is only one."""

    def close(self) -> None:
        """Let go of what it holds."""


class Family(ABC):
    """See the module.

    Attributes:
        kind: Its name in suites.
        suite: Model of its suites.
        cell: Class of its cells.
        metrics: How its metrics are shown, in their order.
        score: The metric that ranks.
        compared: Metrics that a comparison shows cell by cell.
        contents: Files that are named by coordinates: key in ``run.json`` -> coordinate.
        unit: What is counted while a run goes on.
    """

    kind: str
    suite: type[BaseSuite]
    cell: type[BaseCell]
    metrics: Mapping[str, Metric]
    score: str
    compared: Sequence[str]
    contents: ClassVar[Mapping[str, str]]
    unit: str

    # Running

    @abstractmethod
    def resolve(self, suite: Any) -> Any:
        """Check all that a suite names, and make its paths but those of `files` absolute.

        Raises:
            InfraMindError: Something cannot be used.
        """

    @abstractmethod
    def resolve_policy(self, name: str) -> Any:
        """Make a policy from its name or ``package.module:Class``.

        Raises:
            ConfigError: It is unknown or cannot be made.
        """

    @abstractmethod
    def settings(self, suite: Any) -> dict[str, Any]:
        """What all cells of a run share and what their results depend on, as JSON."""

    @abstractmethod
    def fingerprints(self, suite: Any) -> dict[str, dict[str, str]]:
        """Hashes of the files that coordinates name, by the keys of `contents`."""

    @abstractmethod
    def header(self, suite: Any) -> dict[str, Any]:
        """What else ``run.json`` says of a run; "env_specs" at least."""

    @abstractmethod
    def episodes(self, suite: Any, cell: Any) -> int:
        """How many of `unit` a cell has, for the progress."""

    @abstractmethod
    def simulator(
        self,
        suite: Any,
        stop: Callable[[], bool] = lambda: False,
        progress: Progress = lambda _: None,
    ) -> Simulator:
        """What runs the cells of a suite here."""

    def live(self, suite: Any, stop: Callable[[], bool], **options: Any) -> LivePlayer | None:
        """What runs them, one by one, where there is only one cluster; None: `simulator` does."""
        return None

    @abstractmethod
    def encode(self, cell: Any, cell_id: str, *content: Any) -> CellResult:
        """Write down a finished cell."""

    # Showing

    @abstractmethod
    def layout(self, header: Mapping[str, Any]) -> Layout:
        """How the episodes of a folder are summed up.

        Raises:
            KeyError, TypeError: The folder's header is not of this version.
        """

    @abstractmethod
    def about(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """What a leaderboard says of its suite."""

    def limits(
        self, results: Results, common: Sequence[Place], *, compute: bool
    ) -> dict[str, Any] | None:
        """Bounds on the score that no policy has made, under "fluid" in a leaderboard."""
        return None

    @abstractmethod
    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """The tables of a leaderboard."""


@cache
def family(kind: str) -> Family:
    """A family by its name.

    Raises:
        BenchmarkError: There is none of that name.
    """
    if kind not in _FAMILIES:
        raise BenchmarkError(unknown("kind of suite", kind, _FAMILIES))
    module, _, name = _FAMILIES[kind].partition(":")
    made: Family = getattr(import_module(module), name)()
    return made


def family_of(content: Mapping[str, Any]) -> Family:
    """The family of a suite, a leaderboard or a comparison that was written as JSON."""
    return family(content.get("kind", ROUTING))
