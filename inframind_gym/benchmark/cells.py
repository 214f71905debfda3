"""The unit of a benchmark: one policy on one sweep, e.g. one (workload, rate, budget, seed).

What a cell's coordinates are is up to its family of environments; here is what follows from them,
and the cells of routing.

Common random numbers. The sweep's seed is derived from all coordinates but the policy: every policy
meets the same queries, arrival times, budgets and latent outcomes, so two policies are compared
query by query. Sweeps of different rates or budgets get unrelated seeds on purpose: cells are then
independent, which is what the stratified bootstrap over cells assumes, and an average over cells
does not repeat one sample of queries. What is a file counts by its name, not by its folder: a
changed copy of a workload that keeps the name meets the sweeps of the original.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

Budget = float | Literal["tiers"]
Place = tuple[Any, ...]  # what the seeds of a cell have in common, without the policy


class Axis(NamedTuple):
    """A coordinate of a place.

    Attributes:
        name: The cell's attribute.
        label: Heading in tables.
        table: Leaderboard's averages along it.
        text: How a value is shown.
    """

    name: str
    label: str
    table: str
    text: Callable[[Any], str] = str


class BaseCell(ABC):
    """One policy on one sweep: a dataclass of "policy", the coordinates of `axes`, and "seed"."""

    __slots__ = ()
    axes: ClassVar[tuple[Axis, ...]]

    policy: str
    seed: int

    @property
    @abstractmethod
    def room(self) -> tuple[str, ...]:
        """Rows of one vector environment have this in common."""

    @property
    def place(self) -> Place:
        """The coordinates of `axes`."""
        return tuple(getattr(self, axis.name) for axis in self.axes)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order of cells in result files, independent of how they were scheduled."""
        return (self.policy, *in_order(self.place), self.seed)

    @property
    def sweep_seed(self) -> int:
        """Seed of the environment's reset, the same for every policy; in [0, 2**31)."""
        return _seed_of("sweep", *self.place, self.seed)

    @property
    def policy_seed(self) -> int:
        """Seed of the policy's own randomness, unrelated to the environment's; in [0, 2**31)."""
        return _seed_of("policy", *self.place, self.seed)

    def to_json(self) -> dict[str, Any]:
        """The coordinates as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    @abstractmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; further keys are ignored."""


def in_order(place: Place) -> Place:
    """A place as it is sorted: "tiers" comes after all budgets, numbers in names count as such."""
    return tuple(
        float("inf") if value == "tiers" else _natural(value) if isinstance(value, str) else value
        for value in place
    )


def _natural(name: str) -> tuple[str | int, ...]:
    """Text and numbers in turn: 4gpu comes before 16gpu."""
    return tuple(int(p) if i % 2 else p for i, p in enumerate(re.split(r"([0-9]+)", name)))


def budget_text(budget_s: Budget) -> str:
    """A budget as it is shown."""
    return budget_s if isinstance(budget_s, str) else f"{budget_s:g} s"


@dataclass(frozen=True, slots=True)
class Cell(BaseCell):
    """One policy that routes one sweep of queries.

    Attributes:
        policy: Name or ``package.module:Class``, as given on the command line or in the suite.
        workload: Name of a workload; a file goes by its own (`inframind_gym.benchmark.suite.name_of`).
        rate_per_min: Mean arrival rate.
        budget_s: Latency budget of every query, or "tiers": drawn per query from the workload's
            tiers.
        seed: Index of the repetition.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("workload", "workload", "by_workload"),
        Axis("rate_per_min", "rate/min", "by_rate", "{:g}".format),
        Axis("budget_s", "budget", "by_budget", budget_text),
    )

    policy: str
    workload: str
    rate_per_min: float
    budget_s: Budget
    seed: int

    @property
    def room(self) -> tuple[str, ...]:
        """Rows of one environment have this in common."""
        return (self.policy, self.workload)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Cell:
        """The inverse of `to_json`; further keys are ignored."""
        budget = record["budget_s"]
        return cls(
            policy=str(record["policy"]),
            workload=str(record["workload"]),
            rate_per_min=float(record["rate_per_min"]),
            budget_s="tiers" if budget == "tiers" else float(budget),
            seed=int(record["seed"]),
        )

    def __str__(self) -> str:
        budget = budget_text(self.budget_s)
        sweep = f"{self.workload}, {self.rate_per_min:g}/min, {budget}, seed {self.seed}"
        return f"{self.policy} on {sweep}"


CellT = TypeVar("CellT", bound=BaseCell)
CellT_co = TypeVar("CellT_co", bound=BaseCell, covariant=True)


class Grid(Protocol[CellT_co]):
    """A suite: policies, places and seeds."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of policies."""

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions."""

    def places(self) -> Iterable[Place]:
        """The product of the other axes."""

    def cell(self, policy: str, place: Place, seed: int) -> CellT_co:
        """The cell of a policy."""


def grid(suite: Grid[CellT]) -> list[CellT]:
    """Every cell of a suite, policies outermost."""
    return [
        suite.cell(policy, place, seed)
        for policy in suite.policies
        for place in suite.places()
        for seed in suite.seed_list
    ]


def cell_id(cell: BaseCell, settings_hash: str, policy_fingerprint: str) -> str:
    """Content hash of everything that determines a cell's result.

    Args:
        cell: The coordinates.
        settings_hash: Hash of what all cells of a run share, see `Family.settings`.
        policy_fingerprint: Hash of the policy's code, see
            `inframind_gym.benchmark.provenance.policy_fingerprint`.

    Returns:
        16 hexadecimal digits.
    """
    return content_hash([cell.to_json(), settings_hash, policy_fingerprint])


def content_hash(content: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of JSON content, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _seed_of(*parts: str | float | int) -> int:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def batches(cells: Sequence[CellT], batch_size: int) -> list[list[CellT]]:
    """Group cells that one vector environment can run in lock-step.

    Rows of a batch share their room. They are ordered by their coordinates, because sweeps of one
    place end at about the same step.

    Args:
        cells: Cells to run.
        batch_size: Most rows of a batch.

    Returns:
        The batches, in the order in which their groups appear in `cells`.
    """
    groups: dict[tuple[str, ...], list[CellT]] = {}
    for cell in cells:
        groups.setdefault(cell.room, []).append(cell)
    result: list[list[CellT]] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda cell: cell.sort_key)
        result += [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return result
