"""Suites: which policies play which episodes, as YAML checked by pydantic.

A family of environments is a subclass of `Suite`: its fields are the settings of a suite file, its
class attributes say how episodes are played, measured and shown. A new family is such a class and a
line in FAMILIES; player, store, intervals, board and comparison are written once, over these.

A cell is one policy in one episode: a policy, the coordinates of its family (for routing a
workload, a rate and a budget) and a seed.

Common random numbers. The episode's seed is derived from all coordinates but the policy: every
policy meets the same queries, arrival times, budgets and latent outcomes, so that two policies are
compared query by query. Episodes of different rates or budgets get unrelated seeds: cells are then
independent, which the stratified bootstrap over cells assumes. A file counts by its name, not by
its folder: a changed copy of a workload that keeps the name meets the episodes of the original.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import gymnasium as gym
import yaml
from gymnasium.envs.registration import load_env_creator
from pydantic import Field, ValidationInfo, field_validator

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.configs import StrictModel, find_config, load_yaml_model, validate
from inframind_gym.errors import ConfigError, require_within, unknown
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.metrics import Layout, Metric
from inframind_gym.evaluation.tables import Table
from inframind_gym.files import parse_json, read_yaml
from inframind_gym.policies import resolve_policy
from inframind_gym.simulator.posterior import split_draw

ROUTING: Final = "routing"
FAMILIES: Final = {  # by the ``kind`` of a suite file
    ROUTING: "inframind_gym.evaluation.routing:RoutingSuite",
    "tracks": "inframind_gym.evaluation.tracks:TrackSuite",
    "placement": "inframind_gym.evaluation.placement:PlacementSuite",
    "assignment": "inframind_gym.evaluation.teams:AssignmentSuite",
    "coordination": "inframind_gym.evaluation.teams:CoordinationSuite",
    "token_budget": "inframind_gym.evaluation.teams:TokenBudgetSuite",
}
MOST_SEEDS: Final = 10_000
_SHORT: Final = {  # names of settings on a command line
    **{"rates": "rates_per_min", "budgets": "budgets_s"},
    **{"queries": "num_queries", "decisions": "num_decisions"},
}
_SEEDS_RULE: Final = (
    f"must be a count of at least 1 and at most {MOST_SEEDS} (5) or a list of seeds from 0 on "
    "(0,1,2), got {!r:.60}"
)

Place = tuple[Any, ...]  # the coordinates of a cell between policy and seed


# Cells


class Axis(NamedTuple):
    """A coordinate of a cell.

    Attributes:
        name: Key in JSON.
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


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy in one episode; made by `Suite.cell`.

    Attributes:
        policy: Name or ``package.module:Class``, as given on the command line or in the suite.
        place: Coordinates along `axes`.
        seed: Index of the repetition.
        training: Which of its trainings plays, where a policy was trained with several seeds.
        axes: Of its family.
    """

    policy: str
    place: Place
    seed: int
    training: int = 0
    axes: tuple[Axis, ...] = field(default=(), compare=False, repr=False)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order of cells in results, independent of how they were scheduled."""
        return (self.policy, *in_order(self.place), self.seed, self.training)

    @property
    def episode_seed(self) -> int:
        """Seed of the environment's reset, the same for all policies and trainings; [0, 2**31)."""
        return self._seed_of("sweep")  # another word would give other episodes

    @property
    def policy_seed(self) -> int:
        """Seed of the policy's own randomness, unrelated to the environment's; in [0, 2**31)."""
        return self._seed_of("policy")

    def _seed_of(self, what: str) -> int:
        parts = [what, *without_draw(self.place)[0], self.seed]
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
    """Return a place with `math` for `math#7`, and 7; posterior draws share its episodes."""
    name, draw = split_draw(place[0])
    return (name, *place[1:]), draw


def in_order(place: Place) -> Place:
    """Return a place as it is sorted: numbers before names, numbers in names as numbers."""

    def natural(name: str) -> tuple[str | int, ...]:  # 4gpu comes before 16gpu
        parts = re.split(r"([0-9]+)", name)
        return tuple(int(part) if i % 2 else part for i, part in enumerate(parts))

    return tuple((1, *natural(value)) if isinstance(value, str) else (0, value) for value in place)


# Names and hashes of configurations


def content_hash(content: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of JSON content, whatever its keys' order."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def file_hash(path: str | Path) -> str:
    """Return 16 hexadecimal digits of a file's content; empty if there is no such file."""
    path = Path(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def name_of(name_or_path: str) -> str:
    """Return a configuration's name in results: of a file its own, wherever it lies."""
    path, mark, draw = name_or_path.partition("#")
    return Path(path).name.removesuffix(".yaml").removesuffix(".yml") + mark + draw


def absolute(name_or_path: str) -> str:
    """Return the absolute path of a configuration that is a file, any other by its name."""
    is_path = name_of(name_or_path) != name_or_path
    return str(Path(name_or_path).absolute()) if is_path else name_or_path


def check_names(configurations: Iterable[str]) -> None:
    """Check that results, which go by names of files, can tell configurations apart.

    Raises:
        BenchmarkError: Two of them have one name.
    """
    first: dict[str, str] = {}
    for one in configurations:
        other = first.setdefault(name_of(one), one)
        if other != one:
            raise BenchmarkError(
                f"{other} and {one} are both called {name_of(one)!r} in results, which go by the "
                "names of files. Rename one of them."
            )


class Suite(StrictModel):
    """A family of environments, and the settings of one of its suites.

    Class attributes describe the family. A family adds a field for each axis, and what all cells
    share; cells, seeds and results have the names of configuration files alone (`name_of`).

    Attributes:
        env_id: Of the environment.
        axes: Coordinates of a cell.
        together: Number of leading axes that the rows of one batch have in common.
        metrics: By name, in the order in which they are shown.
        score: Name of the metric that ranks.
        compared: Names of the metrics that a comparison shows cell by cell.
        scored: Names of the metrics that `scores` needs; none: it needs no estimates.
        shown: Settings that are copied into a leaderboard.
        unit: Name of a record, in the plural.
        regret: Bound to which a leaderboard has the difference, in place of the ratio to the best
            one, for scores that have no zero; empty: it has the ratio.
        play: Class of the `inframind_gym.evaluation.play.Player` of its cells.
        kind: Name of the family in suite files.
        name: Name of the results.
        description: One or two sentences.
        policies: Names of policies, or ``package.module:Class``.
        seeds: Number of repetitions (0, 1, ...), or a list of their indices.
    """

    env_id: ClassVar[str]
    axes: ClassVar[tuple[Axis, ...]]
    together: ClassVar[int] = 1
    metrics: ClassVar[Mapping[str, Metric]]
    score: ClassVar[str]
    compared: ClassVar[Sequence[str]]
    scored: ClassVar[Sequence[str]] = ()
    shown: ClassVar[Sequence[str]] = ()
    unit: ClassVar[str]
    regret: ClassVar[str] = ""
    play: ClassVar[type[Any]]

    kind: str
    name: str
    description: str = ""
    policies: tuple[str, ...] = Field(min_length=1)
    seeds: int | tuple[int, ...] = 5

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_or_list(cls, seeds: Any) -> Any:
        listed = isinstance(seeds, list | tuple)
        least, most, items = (0, 2**53, seeds) if listed else (1, MOST_SEEDS, [seeds])
        if not items or any(type(item) is not int or not least <= item <= most for item in items):
            raise ValueError(_SEEDS_RULE.format(seeds))
        return seeds

    @field_validator("*")
    @classmethod
    def _without_repeats(cls, values: Any, info: ValidationInfo) -> Any:
        axes = ["policies", "seeds", *(axis.setting for axis in cls.axes)]
        if isinstance(values, tuple) and info.field_name in axes:
            if repeated := {str(item) for item in values if values.count(item) > 1}:
                raise ValueError(f"names {', '.join(sorted(repeated))} more than once")
            if info.field_name in cls.files():
                check_names(values)
        return values

    # Which cells there are

    @classmethod
    def cell(cls, policy: str, *place: Any, seed: int, training: int = 0) -> Cell:
        """Return the cell of a policy, a place and a seed."""
        return Cell(policy, place, seed, training, cls.axes)

    @classmethod
    def read_cell(cls, record: Mapping[str, Any]) -> Cell:
        """Return a cell from JSON; further keys are ignored."""
        place = [axis.read(record[axis.name]) for axis in cls.axes]
        seed, training = int(record["seed"]), int(record.get("training", 0))
        return cls.cell(str(record["policy"]), *place, seed=seed, training=training)

    @classmethod
    def describe(cls, place: Place) -> dict[str, Any]:
        """Return the coordinates of a place by their names."""
        return {axis.name: value for axis, value in zip(cls.axes, place, strict=True)}

    @classmethod
    def group_of(cls, cell: Cell) -> tuple[Any, ...]:
        """Return policy, training and the coordinates that the rows of one batch share."""
        return (cell.policy, *cell.place[: cls.together], cell.training)

    def places(self) -> Iterable[Place]:
        """Return the product of the axes between policies and seeds."""
        return itertools.product(
            *(
                self.names(axis.setting) if axis.is_file else getattr(self, axis.setting)
                for axis in self.axes
            )
        )

    def cells(self) -> list[Cell]:
        """List every cell, policies outermost."""
        return [
            self.cell(policy, *place, seed=seed, training=training)
            for policy in self.policies
            for place in self.places()
            for seed in self.seed_list
            for training in range(self.trainings(policy, place))
        ]

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def trainings(self, policy: str, place: Place) -> int:
        """Return how many trainings of a policy play a place, each in every episode."""
        return 1

    def length(self, cell: Cell) -> int:
        """Return the number of records of a cell, for the progress."""
        return 1

    # What a suite names, and what its results depend on

    @classmethod
    def files(cls) -> dict[str, str]:
        """Return the axes of configuration files: field of the suite -> name of the axis."""
        return {axis.setting: axis.name for axis in cls.axes if axis.is_file}

    def names(self, setting: str) -> tuple[str, ...]:
        """Return the names of the configurations of one of `files`."""
        return tuple(map(name_of, getattr(self, setting)))

    def source(self, setting: str, name: str) -> str:
        """Return the name or path behind one of `names`; a name that the suite has not, as is."""
        listed: tuple[str, ...] = getattr(self, setting)
        return next((one for one in listed if name_of(one) == name), name)

    def overridden(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with some of them replaced, not yet checked."""
        return {**self.model_dump(), **changes}

    def resolve(self) -> Self:
        """Check all that the suite names, and make its paths absolute.

        Raises:
            InfraMindError: Something cannot be used.
        """
        files = {setting: tuple(map(absolute, getattr(self, setting))) for setting in self.files()}
        return self.model_copy(update=files)

    def settings(self) -> dict[str, Any]:
        """Return what all cells share and what their results depend on, as JSON.

        Paths are replaced by the hash of what they hold, so that a folder can be moved and a
        changed file shows.
        """
        axes = {axis.setting for axis in self.axes}
        return self.model_dump(
            mode="json", exclude={"name", "description", "policies", "seeds", *axes}
        )

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash the content of a file that cells name: one of `names` of one of `files`."""
        raise NotImplementedError

    def fitted_as(self, policy: str) -> dict[str, Any]:
        """Return what a policy's results depend on beside what its name stands for, as JSON."""
        return {}

    def header(self, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return the family's part of ``run.json``, "env_specs" at least.

        Args:
            policies: The suite's policies by their names.
        """
        return {
            "env_specs": {
                "/".join([name, *map(str, place[: self.together])]): self.env_spec(
                    self.env_kwargs(place, policy)
                )
                for name, policy in policies.items()
                for place in self.places()
            }
        }

    # How a cell is played: a scenario, its plan and its policy come together in `env_kwargs`

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the JSON arguments of the environment in which a policy plays a place."""
        raise NotImplementedError

    @classmethod
    def env_spec(cls, kwargs: Mapping[str, Any], env_id: str = "") -> dict[str, Any]:
        """Return the JSON spec of the single environment with some arguments."""
        spec = copy.deepcopy(gym.spec(env_id or cls.env_id))
        spec.kwargs.update(kwargs)
        return dict(json.loads(spec.to_json()))

    @classmethod
    def environment(cls) -> Any:
        """Return the class of the single environment."""
        return load_env_creator(str(gym.spec(cls.env_id).entry_point))

    @classmethod
    def policy_family(cls) -> str:
        """Return the family of the policies that play."""
        kind: str = cls.model_fields["kind"].default
        return ROUTING if kind == "tracks" else kind

    @classmethod
    def resolve_policy(cls, name: str) -> Any:
        """Make a policy from its name or ``package.module:Class``."""
        return resolve_policy(name, family=cls.policy_family())

    def player(self, progress: Callable[[int], None] = lambda _: None, **live: Any) -> Any:
        """Make the player of the suite's cells.

        Args:
            progress: Called with the number of records since its last call.
            live: Options of a player on live servers, which others ignore.
        """
        return self.play(self, progress)

    # How results are summed up and shown

    @classmethod
    def layout(cls, header: Mapping[str, Any]) -> Layout:
        """Make the layout of sums of a folder.

        Raises:
            KeyError, TypeError: The header is not of this version.
        """
        raise NotImplementedError

    @classmethod
    def scores(cls, results: Any, estimates: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a leaderboard has beside averages of metrics.

        Args:
            results: A results folder.
            estimates: `scored` of every policy, by the places that all have finished.
        """
        return {}

    @classmethod
    def tables(cls, board: Mapping[str, Any]) -> list[Table]:
        """Make the tables of a leaderboard."""
        raise NotImplementedError


# Files and command lines


@cache
def family(kind: str) -> type[Suite]:
    """Return a family by its name.

    Raises:
        BenchmarkError: There is none of that name.
    """
    if kind not in FAMILIES:
        raise BenchmarkError(unknown("kind of suite", kind, FAMILIES))
    module, _, name = FAMILIES[kind].partition(":")
    suite: type[Suite] = getattr(import_module(module), name)
    return suite


def family_of(content: Mapping[str, Any]) -> type[Suite]:
    """Return the family of a suite, a leaderboard or a comparison that was written as JSON."""
    return family(content.get("kind", ROUTING))


def load_suite(
    name_or_path: str,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> Any:
    """Read a suite and replace some of its settings.

    Args:
        name_or_path: A shipped suite's name, or the path of a YAML file.
        overrides: Settings that replace the file's; None values are left alone.
        settings: The same as KEY=VALUE, as a command line has them.

    Returns:
        The checked suite, of the family that the file's ``kind`` names.

    Raises:
        ConfigError: The suite or its family is unknown, its file malformed, or an override has a
            value that the suite cannot take.
    """
    path = find_config("suites", name_or_path)
    content, _ = read_yaml(path)
    try:
        model = family_of(content if isinstance(content, dict) else {})
    except (BenchmarkError, TypeError) as error:
        raise ConfigError(f"{path}: kind: {error}") from None
    suite = load_yaml_model(path, model)
    changes = {key: value for key, value in (overrides or {}).items() if value is not None}
    changes |= dict(parse_setting(text, model) for text in settings)
    return validate(suite.overridden(changes), model, source="command line") if changes else suite


def parse_setting(text: str, model: type[Suite]) -> tuple[str, Any]:
    """Read KEY=VALUE of a command line: the setting's name, and its value, not yet checked.

    Several values have commas between; anything else is read as YAML. Seeds are a count (5) or a
    list (0,1); arrivals are a process's name, a trace's CSV file or a JSON mapping.

    Raises:
        InfraMindError: There is no ``=``, or a value cannot be read.
    """
    name, mark, value = text.partition("=")
    key = _SHORT.get(name.strip(), name.strip())
    items = split_list(value)
    if not mark:
        raise BenchmarkError(f"--set {text}: write KEY=VALUE, such as rates=10,100.")
    if key == "seeds":
        if not items or not all(item.isdecimal() for item in items) or items == ("0",) == (value,):
            raise BenchmarkError(f"--seeds: {_SEEDS_RULE.format(value)}. The seed 0 alone is '0,'.")
        return key, tuple(map(int, items)) if "," in value else int(items[0])
    if key == "arrivals":
        if value.lstrip().startswith("{"):
            return key, dict(parse_json(value, "arrivals"))
        if not value.endswith(".csv") and "/" not in value:
            return key, value
        if not Path(value).is_file():
            raise BenchmarkError(f"arrivals: there is no file {value}")
        return key, {"kind": "trace", "path": str(Path(value).resolve()), "rescale": True}
    annotation = str(model.model_fields[key].annotation) if key in model.model_fields else ""
    if "tuple[" in annotation:
        return key, items if "[str, ...]" in annotation else tuple(map(_number, items))
    try:
        return key, value if annotation.startswith("<class 'str'>") else yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value


def split_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated option; blanks around items are dropped."""
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def _number(item: str) -> float | str:
    """Return a positive number, or a word that the suite checks."""
    try:
        return require_within(float(item), 1e-6, 1e9)
    except ValueError:
        return item
