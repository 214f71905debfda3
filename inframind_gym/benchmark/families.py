"""A family of environments as the benchmark sees it: routing, placement, or a team of agents.

A new family is a folder with three things, and a line in `_FAMILIES`:

- a cell and a suite (`BaseCell`, `BaseSuite`): the coordinates, and the settings that cells share;
- a player that runs batches of cells (`Player`);
- a `Family`: metrics, the layout of sums that they follow from, and the tables of a leaderboard.

Store, intervals, leaderboard, comparison and command line are written once, over these. A run's
family is its suite's ``kind``, "routing" by default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import unknown

if TYPE_CHECKING:
    from inframind_gym.benchmark.cells import Place
    from inframind_gym.benchmark.lines import CellResult
    from inframind_gym.benchmark.metrics import Layout, Metric
    from inframind_gym.benchmark.results import Estimate, Results
    from inframind_gym.benchmark.suite import BaseSuite
    from inframind_gym.benchmark.tables import Sheet

ROUTING: Final = "routing"
_FAMILIES: Final = {
    ROUTING: "inframind_gym.benchmark.routing.family:RoutingFamily",
    "tracks": "inframind_gym.benchmark.tracks.family:TrackFamily",
    "placement": "inframind_gym.benchmark.placement.family:PlacementFamily",
    "assignment": "inframind_gym.benchmark.teams.family:AssignmentFamily",
    "coordination": "inframind_gym.benchmark.teams.family:CoordinationFamily",
    "token_budget": "inframind_gym.benchmark.teams.family:TokenBudgetFamily",
}
Progress = Callable[[int], None]


class Player(ABC):
    """Runs batches of cells.

    Every player has a suite, a function `stop` that is called between steps and ends the run by
    returning true, and a function `progress` that is given the number of records (`Family.unit`)
    since the last call.

    Attributes:
        began: Time at which the episodes of the last `run` began, on the monotonic clock.
        watch: Called after every step with what is played: the simulation of placement, the batch
            of a team. Of routing it is called when an episode is over, with the environment, its
            row and the records of its queries, and calls are recorded. None: nobody watches.
    """

    began: float = 0.0
    watch: Callable[..., None] | None = None

    @abstractmethod
    def ask(self, cell: Any) -> None:
        """Make the policy and the environment of a cell, and reset both.

        Raises:
            PolicyFailedError: The policy cannot play there.
        """

    @abstractmethod
    def run(self, cells: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        """Run cells of one `BaseCell.group`; yields the finished ones, with what `encode` takes.

        Raises:
            StoppedError: `stop` returned true.
            PolicyFailedError: The policy raised an error or gave no valid action.
        """

    def warm_up(self, cell: Any) -> None:  # noqa: B027
        """Take one step as in a cell, so that compiled code is in the cache."""

    def close(self) -> None:  # noqa: B027
        """Release what it holds."""


class Family(ABC):
    """Metrics, players and tables of a family of environments.

    Attributes:
        kind: Its name in suites.
        suite: Model of its suites, which has the class of its cells.
        metrics: Its metrics by name, in the order in which they are shown.
        score: Name of the metric that ranks.
        compared: Names of the metrics that a comparison shows cell by cell.
        scored: Names of the metrics that `scores` needs; none: it needs no estimates.
        shown: Settings of the suite that are copied into a leaderboard.
        unit: Name of a record, in the plural.
        regret: Bound to which a leaderboard has the difference, in place of the ratio to the best
            one, for scores that have no zero; empty: it has the ratio.
    """

    kind: str
    suite: type[BaseSuite]
    metrics: Mapping[str, Metric]
    score: str
    compared: Sequence[str]
    scored: Sequence[str] = ()
    shown: Sequence[str]
    unit: str
    regret: str = ""

    @abstractmethod
    def resolve_policy(self, name: str) -> Any:
        """Make a policy from its name or ``package.module:Class``.

        Raises:
            ConfigError: It is unknown or cannot be made.
        """

    @abstractmethod
    def header(self, suite: Any, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return the family's part of ``run.json``; "env_specs" at least.

        Args:
            suite: A resolved suite.
            policies: Its policies by their names.
        """

    @abstractmethod
    def simulator(
        self,
        suite: Any,
        stop: Callable[[], bool] = lambda: False,
        progress: Progress = lambda _: None,
    ) -> Player:
        """Make the player of a suite's cells in this process; each process can have one."""

    def live(self, suite: Any, stop: Callable[[], bool], **options: Any) -> Player | None:
        """Make the player on live servers; None: `simulator` plays the suite."""
        return None

    @abstractmethod
    def encode(self, cell: Any, cell_id: str, *content: Any) -> CellResult:
        """Encode a finished cell for the results folder."""

    @abstractmethod
    def layout(self, header: Mapping[str, Any]) -> Layout:
        """Make the layout of a folder's sums.

        Raises:
            KeyError, TypeError: The folder's header is not of this version.
        """

    def limits(
        self, results: Results, common: Sequence[Place], *, compute: bool
    ) -> dict[str, Any] | None:
        """Return bounds on the score that no policy has made: "fluid" in a leaderboard."""
        return None

    def scores(
        self, results: Results, estimates: Mapping[str, Mapping[Place, Estimate]]
    ) -> dict[str, Any]:
        """Return what a leaderboard has beside averages of metrics.

        Args:
            results: The results folder.
            estimates: `scored` of every policy at the places that all have finished.
        """
        return {}

    @abstractmethod
    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """Make the tables of a leaderboard."""


@cache
def family(kind: str) -> Family:
    """Return a family by its name.

    Raises:
        BenchmarkError: There is none of that name.
    """
    if kind not in _FAMILIES:
        raise BenchmarkError(unknown("kind of suite", kind, _FAMILIES))
    module, _, name = _FAMILIES[kind].partition(":")
    made: Family = getattr(import_module(module), name)()
    return made


def family_of(content: Mapping[str, Any]) -> Family:
    """Return the family of a suite, a leaderboard or a comparison that was written as JSON."""
    return family(content.get("kind", ROUTING))
