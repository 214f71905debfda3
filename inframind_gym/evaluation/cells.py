"""Cells: one policy in one episode, and the names and hashes of configurations.

A cell is a policy, the coordinates of its family (for routing a workload, a rate and a budget; for
tracks a scenario at a load) and a seed.

Common random numbers. The episode's seed is derived from all coordinates but the policy: every
policy meets the same queries, arrival times, budgets and latent outcomes, so that two policies are
compared query by query. Episodes of different rates or budgets get unrelated seeds: cells are then
independent, which the stratified bootstrap over cells assumes. A file counts by its name, not by
its folder: a changed copy of a workload that keeps the name meets the episodes of the original.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.posterior import split_draw

Place = tuple[Any, ...]  # the coordinates of a cell between policy and seed


class Axis(NamedTuple):
    """A coordinate of a cell."""

    name: str  # key in JSON
    setting: str  # the suite's field with its values
    label: str  # heading in tables
    # Title of its tables on a board. With "{}": a table of metrics for each value; without: one
    # table of scores ("{score}") by value; empty: no table
    title: str = ""
    is_file: bool = False  # the suite has names or paths of configurations, cells their names
    text: Callable[[Any], str] = str  # formats a value
    read: Callable[[Any], Any] = str  # makes a value from JSON; float: the axis is a load

    @property
    def table(self) -> str:
        """Key of a leaderboard's averages along this axis: "by_rate" for "rate/min"."""
        return "by_" + self.label.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy in one episode; made by `Suite.cell`."""

    policy: str  # name or ``package.module:Class``, as given on the command line or in the suite
    place: Place  # coordinates along `axes`
    seed: int  # index of the repetition
    training: int = 0  # index of the training, for policies that were trained with several seeds
    axes: tuple[Axis, ...] = field(default=(), compare=False, repr=False)  # of its family

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order of cells in results, independent of how they were scheduled."""
        return (self.policy, *in_order(self.place), self.seed, self.training)

    @property
    def episode_seed(self) -> int:
        """Seed of the environment's reset, the same for all policies and trainings; [0, 2**31)."""
        return self._hashed_seed("sweep")  # another word would give other episodes

    @property
    def policy_seed(self) -> int:
        """Seed of the policy's own randomness, unrelated to the environment's; in [0, 2**31)."""
        return self._hashed_seed("policy")

    def _hashed_seed(self, purpose: str) -> int:
        parts = [purpose, *without_draw(self.place)[0], self.seed]
        digest = hashlib.sha256(json.dumps(parts).encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1

    def to_json(self) -> dict[str, Any]:
        """Return the coordinates as JSON; `Suite.read_cell` inverts it."""
        place = {axis.name: value for axis, value in zip(self.axes, self.place, strict=True)}
        content = {"policy": self.policy, **place, "seed": self.seed}
        return content | ({"training": self.training} if self.training else {})

    def id(self, settings_hash: str, policy_fingerprint: Any) -> str:
        """Hash what determines the cell's result."""
        return content_hash([self.to_json(), settings_hash, policy_fingerprint])

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


def without_draw(place: Place) -> tuple[Place, int | None]:
    """Split off the posterior draw of a place: `math#7` becomes `math` and 7."""
    name, draw = split_draw(place[0])
    return (name, *place[1:]), draw


def in_order(place: Place) -> Place:
    """Return the sort key of a place: numbers before names, numbers in names as numbers."""

    def natural(name: str) -> tuple[str | int, ...]:  # 4gpu comes before 16gpu
        parts = re.split(r"([0-9]+)", name)
        return tuple(int(part) if i % 2 else part for i, part in enumerate(parts))

    return tuple((1, *natural(value)) if isinstance(value, str) else (0, value) for value in place)


# Names and hashes of configurations


def content_hash(content: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of JSON content, whatever its keys' order."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def rounded(content: Any, figures: int) -> Any:
    """Round the numbers of JSON content to significant figures."""
    if isinstance(content, float):
        return float(f"{content:.{figures}g}")
    if isinstance(content, Mapping):
        return {str(key): rounded(value, figures) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value, figures) for value in content]
    return content


def file_hash(path: str | Path) -> str:
    """Return 16 hexadecimal digits of a file's content; empty if there is no such file."""
    path = Path(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def name_of(name_or_path: str) -> str:
    """Return a configuration's name in results: a file's name without folder and suffix."""
    path, mark, draw = name_or_path.partition("#")
    return Path(path).name.removesuffix(".yaml").removesuffix(".yml") + mark + draw


def absolute(name_or_path: str) -> str:
    """Make the path of a configuration absolute; a name is returned unchanged."""
    is_path = name_of(name_or_path) != name_or_path
    return str(Path(name_or_path).absolute()) if is_path else name_or_path


def check_names(configurations: Iterable[str]) -> None:
    """Check that no two configurations have the same name in results.

    Raises:
        ConfigError: Two of them have one name.
    """
    by_name: dict[str, str] = {}
    for source in configurations:
        other = by_name.setdefault(name_of(source), source)
        if other != source:
            raise ConfigError(
                f"{other} and {source} are both called {name_of(source)!r} in results, which go by "
                "the names of files. Rename one of them."
            )
