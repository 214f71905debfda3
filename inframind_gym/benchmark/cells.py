"""The unit of a benchmark, a cell: one policy in one episode of an environment.

A cell has a policy, the coordinates of its family (for routing a workload, a rate and a budget) and
a seed. An episode is one run of the environment to its end.

Common random numbers. The episode's seed is derived from all coordinates but the policy: every
policy meets the same queries, arrival times, budgets and latent outcomes, so that two policies are
compared query by query. Episodes of different rates or budgets get unrelated seeds on purpose:
cells are then independent, which the stratified bootstrap over cells assumes, and an average over
cells does not repeat one sample of queries. A file counts by its name, not by its folder: a changed
copy of a workload that keeps the name meets the episodes of the original.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from inframind_gym.benchmark.suite import BaseSuite

Place = tuple[Any, ...]  # the coordinates of a cell between policy and seed


class Axis(NamedTuple):
    """A coordinate of a cell.

    Attributes:
        name: The cell's attribute, and its key in JSON.
        setting: The suite's field with its values.
        label: Heading in tables.
        table: Key of the leaderboard's averages along it.
        is_file: Whether the suite names configuration files, of which cells have the names.
        text: Formats a value.
        read: Makes a value from JSON.
    """

    name: str
    setting: str
    label: str
    table: str
    is_file: bool = False
    text: Callable[[Any], str] = str
    read: Callable[[Any], Any] = str


class BaseCell:
    """One policy in one episode: a dataclass of "policy", one field for each axis, and "seed".

    Attributes:
        policy: Name or ``package.module:Class``, as given on the command line or in the suite.
        seed: Index of the repetition.
        training: Which of its trainings plays, where a policy was trained with several seeds.
        axes: The coordinates.
        fixed_axes: Number of leading axes that rows of one vector environment have in common.
    """

    __slots__ = ()
    axes: ClassVar[tuple[Axis, ...]]
    fixed_axes: ClassVar[int]

    policy: str
    seed: int
    training: int = 0

    if TYPE_CHECKING:  # of the dataclass

        def __init__(self, *coordinates: Any, **named: Any) -> None: ...

    @property
    def place(self) -> Place:
        """The coordinates of `axes`."""
        return tuple(getattr(self, axis.name) for axis in self.axes)

    @property
    def group(self) -> tuple[Any, ...]:
        """Policy and coordinates that the rows of one vector environment have in common."""
        return (self.policy, *self.place[: self.fixed_axes], self.training)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order of cells in result files, independent of how they were scheduled."""
        return (self.policy, *in_order(self.place), self.seed, self.training)

    @property
    def episode_seed(self) -> int:
        """Seed of the environment's reset, the same for all policies and trainings; [0, 2**31)."""
        place, _ = self.without_draw(self.place)
        return _seed_of("sweep", *place, self.seed)  # another word would give other episodes

    @property
    def policy_seed(self) -> int:
        """Seed of the policy's own randomness, unrelated to the environment's; in [0, 2**31)."""
        place, _ = self.without_draw(self.place)
        return _seed_of("policy", *place, self.seed)

    @classmethod
    def without_draw(cls, place: Place) -> tuple[Place, int | None]:
        """Return a place without its draw of quality, and the draw; all draws have its episodes."""
        return place, None

    @classmethod
    def describe(cls, place: Place) -> dict[str, Any]:
        """Return the coordinates of a place by their names."""
        return {axis.name: value for axis, value in zip(cls.axes, place, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """Return the coordinates as JSON."""
        content = {"policy": self.policy, **self.describe(self.place), "seed": self.seed}
        return content | ({"training": self.training} if self.training else {})

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Invert `to_json`; further keys are ignored."""
        place = {axis.name: axis.read(record[axis.name]) for axis in cls.axes}
        if training := int(record.get("training", 0)):
            place["training"] = training
        return cls(policy=str(record["policy"]), **place, seed=int(record["seed"]))

    @property
    def where(self) -> str:
        """The coordinates but for the policy, for people."""
        place = [
            axis.text(value) + "".join(axis.label.partition("/")[1:])  # 10/min of "rate/min"
            for axis, value in zip(self.axes, self.place, strict=True)
        ]
        training = f", training {self.training}" if self.training else ""
        return f"{', '.join(place)}, seed {self.seed}{training}"

    def __str__(self) -> str:
        return f"{self.policy} on {self.where}"


CellT = TypeVar("CellT", bound=BaseCell)


def in_order(place: Place) -> Place:
    """Return a place as it is sorted: numbers before names, numbers in names as numbers."""
    return tuple((1, *_natural(value)) if isinstance(value, str) else (0, value) for value in place)


def _natural(name: str) -> tuple[str | int, ...]:
    """Split a name into text and numbers in turn: 4gpu comes before 16gpu."""
    return tuple(int(p) if i % 2 else p for i, p in enumerate(re.split(r"([0-9]+)", name)))


def grid(suite: BaseSuite) -> list[Any]:
    """List every cell of a suite, policies outermost."""
    return [
        suite.cell(policy, *place, seed, *([training] if training else []))
        for policy in suite.policies
        for place in suite.places()
        for seed in suite.seed_list
        for training in range(suite.trainings(policy, place))
    ]


def cell_id(cell: BaseCell, settings_hash: str, policy_fingerprint: Any) -> str:
    """Hash everything that determines a cell's result, see `inframind_gym.benchmark.provenance`."""
    return content_hash([cell.to_json(), settings_hash, policy_fingerprint])


def content_hash(content: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of JSON content, whatever its keys' order."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _seed_of(*parts: str | float | int) -> int:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def batches(cells: Sequence[CellT], batch_size: int) -> list[list[CellT]]:
    """Group cells that one vector environment can run in lock-step, at most `batch_size` each.

    Rows of a batch share their `group`. They are ordered by their coordinates, because episodes of
    one place end at about the same step.
    """
    groups: dict[tuple[Any, ...], list[CellT]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    result: list[list[CellT]] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda cell: cell.sort_key)
        result += [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return result
