"""Suites: which policies play which episodes, as YAML checked by pydantic.

A family of environments is a subclass of `Suite`: its class variables say what a cell is, what is
measured in it and what a board shows; its fields are the settings of a suite file. A new family is
a subclass and a line in FAMILIES: player, store, intervals, board and comparison work on any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Self

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from pydantic import Field, ValidationInfo, field_validator

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.configs import (
    StrictModel,
    find_config,
    load_yaml_model,
    read_setting,
    validate,
    within,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation.cells import Axis, Cell, Place, absolute, check_names, name_of
from inframind_gym.evaluation.metrics import Layout, Metric
from inframind_gym.evaluation.play import Player
from inframind_gym.evaluation.tables import Table
from inframind_gym.files import read_yaml
from inframind_gym.policies import resolve_policy

FAMILIES: Final = {  # suites by the ``kind`` of their files
    "routing": "inframind_gym.evaluation.routing:RoutingSuite",
    "tracks": "inframind_gym.evaluation.tracks:TrackSuite",
    "placement": "inframind_gym.evaluation.placement:PlacementSuite",
    "assignment": "inframind_gym.evaluation.teams:AssignmentSuite",
    "coordination": "inframind_gym.evaluation.teams:CoordinationSuite",
    "token_budget": "inframind_gym.evaluation.teams:TokenBudgetSuite",
}
MOST_SEEDS: Final = 10_000
_SHORT: Final = {  # names of settings on a command line
    "rates": "rates_per_min",
    "budgets": "budgets_s",
    "queries": "num_queries",
    "decisions": "num_decisions",
}


class Suite(StrictModel):
    """A family of environments (class variables), and the settings of one suite (fields).

    A family adds a field for each axis and for each setting that all cells share. In cells and
    results a configuration file goes by its name, without its folder (`name_of`).
    """

    env_id: ClassVar[str]  # of the environment
    players: ClassVar[str]  # family of the policies that play
    axes: ClassVar[tuple[Axis, ...]]  # coordinates of a cell
    together: ClassVar[int] = 1  # leading axes that the rows of one batch have in common
    metrics: ClassVar[Mapping[str, Metric]]  # by name, in the order in which they are explained
    layout_class: ClassVar[type[Layout]] = Layout  # of sums over records
    score: ClassVar[str]  # name of the metric that ranks
    # Metric in brackets after the score in tables by axis; empty: the score's interval
    beside: ClassVar[str] = ""
    main: ClassVar[Sequence[str]]  # names of the metrics that the ranking shows
    compared: ClassVar[Sequence[str]]  # names of the metrics that a comparison shows cell by cell
    unit: ClassVar[str]  # name of a record, in the plural
    title: ClassVar[str] = "{suite}: {records}{about}"  # of the ranking; see `about`
    caption: ClassVar[str]  # of the ranking; "{cells}" is their number
    batch: ClassVar[type[Any]]  # the `play.Batch` that keeps the records of cells
    player_class: ClassVar[type[Player]] = Player
    shown: ClassVar[Sequence[str]] = ()  # settings that a leaderboard copies from the suite
    # Keys of `header` under which ``run.json`` also keeps what earlier runs of the folder have
    merged: ClassVar[Sequence[str]] = ()
    # Bound from which a leaderboard shows the difference, for scores without a natural zero;
    # empty: it shows the ratio to the best bound
    regret: ClassVar[str] = ""

    kind: str  # name of the family in suite files
    name: str  # name of the results
    description: str = ""  # one or two sentences
    # Names of policies, or ``package.module:Class``
    policies: tuple[str, ...] = Field(min_length=1)
    # Number of repetitions (0, 1, ...), or a list of their indices
    seeds: int | tuple[int, ...] = 5
    # Seconds after which a policy that has not answered a call is left out
    policy_limit_s: Annotated[float, within(0.001, 1e6)] = 3600.0

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_or_list(cls, seeds: Any) -> Any:
        listed = isinstance(seeds, list | tuple)
        least, most, items = (0, 2**53, seeds) if listed else (1, MOST_SEEDS, [seeds])
        if not items or any(type(item) is not int or not least <= item <= most for item in items):
            raise ValueError(
                f"must be a count from 1 to {MOST_SEEDS} (5) or a list of seeds from 0 on (0,1,2; "
                f"one: 7,), got {seeds!r:.60}"
            )
        return seeds

    @field_validator("*")
    @classmethod
    def _without_repeats(cls, values: Any, info: ValidationInfo) -> Any:
        lists = ["policies", "seeds", *(axis.setting for axis in cls.axes)]
        if isinstance(values, tuple) and info.field_name in lists:
            if repeated := {str(item) for item in values if values.count(item) > 1}:
                raise ValueError(f"names {', '.join(sorted(repeated))} more than once")
            if info.field_name in cls.files():
                check_names(values)
        return values

    # What a board shows

    @classmethod
    def layout(cls, header: Mapping[str, Any]) -> Layout:
        """Return the layout of sums for a folder with this header."""
        return cls.layout_class(cls.metrics, header.get("names"))

    @classmethod
    def about(cls, board: Mapping[str, Any]) -> str:
        """Return the last part of a ranking's title."""
        return ""

    @classmethod
    def scores(cls, header: Mapping[str, Any], scored: Mapping[str, Any]) -> dict[str, Any]:
        """Return further keys of a leaderboard, beside averages of metrics.

        `scored`: policy -> place that all have finished -> `Estimate` of the score.
        """
        return {}

    @classmethod
    def tables(cls, board: Mapping[str, Any], tables: list[Table]) -> list[Table]:
        """Return the tables of a board, given those that every family has."""
        return tables

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

    def plays(self, cell: Cell) -> str:
        """Return the policy, with arguments, that plays a cell; results keep the cell's own."""
        return cell.policy

    def group_of(self, cell: Cell) -> tuple[Any, ...]:
        """Return what the cells of a batch share: policies, leading coordinates and training."""
        return (cell.policy, self.plays(cell), *cell.place[: self.together], cell.training)

    @classmethod
    def files(cls) -> dict[str, str]:
        """Return the axes whose values are files: field of the suite -> name of the axis."""
        return {axis.setting: axis.name for axis in cls.axes if axis.is_file}

    def places(self) -> Iterable[Place]:
        """Return the coordinates of cells between policy and seed: the product of the axes."""
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
        """Return the number of trainings of a policy at a place; each plays every episode."""
        return 1

    def length(self, cell: Cell) -> int:
        """Return the number of records of a cell, for the progress."""
        return 1

    # Configurations that a suite names, and what its results depend on

    def names(self, setting: str) -> tuple[str, ...]:
        """Return the names of the configurations in a field, one of `files`."""
        return tuple(map(name_of, getattr(self, setting)))

    def source(self, setting: str, name: str) -> str:
        """Return the name or path behind one of `names`; any other name unchanged."""
        sources: tuple[str, ...] = getattr(self, setting)
        return next((source for source in sources if name_of(source) == name), name)

    def overridden(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with some of them replaced, not yet checked."""
        return {**self.model_dump(), **changes}

    def resolve(self) -> Self:
        """Check all that the suite names, and make its paths absolute.

        Raises:
            InfraMindError: Something cannot be used.
        """
        files = self.files()
        return self.model_copy(
            update={setting: tuple(map(absolute, getattr(self, setting))) for setting in files}
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings on which the results of all cells depend, as JSON.

        Paths are replaced by hashes of the files' content: a folder can be moved, and a changed
        file is noticed.
        """
        axes = {axis.setting for axis in self.axes}
        excluded = {"name", "description", "policies", "seeds", "policy_limit_s", *axes}
        return self.model_dump(mode="json", exclude=excluded)

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash the content of a configuration, one of `names`."""
        raise NotImplementedError

    def fitted_as(self, policy: str) -> dict[str, Any]:
        """Return what else a policy's results depend on, such as its fits, as JSON."""
        return {}

    def header(self) -> dict[str, Any]:
        """Return the family's part of ``run.json``."""
        return {}

    @classmethod
    def join(cls, header: dict[str, Any], earlier: Mapping[str, Any]) -> None:
        """Merge the family's part of ``run.json`` with that of earlier runs of the folder."""
        for key in header.keys() & set(cls.merged):
            header[key] = {**header[key], **earlier.get(key, {}), **header[key]}

    # How a cell is played

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the JSON arguments of the environment in which a policy plays a place."""
        raise NotImplementedError

    def environment(self) -> Any:
        """Return the class of the single environment."""
        return load_env_creator(str(gym.spec(self.env_id).entry_point))

    @classmethod
    def resolve_policy(cls, name: str) -> Any:
        """Make a policy from its name or ``package.module:Class``."""
        return resolve_policy(name, family=cls.players)

    def prepare(self, policy: Any) -> None:
        """Prepare a policy that was just reset for how the suite is played."""

    def options(self, cells: Sequence[Cell]) -> dict[str, Any] | None:
        """Return the options of the reset: arrays with a value for each cell of a batch."""
        return None

    def player(self, progress: Callable[[int], None] = lambda _: None, **live: Any) -> Player:
        """Make the player of the suite's cells; `live`: options of a player on live servers."""
        return self.player_class(self, progress)


# Files and command lines


def family_of(content: Mapping[str, Any]) -> type[Suite]:
    """Return the class of a suite, a leaderboard or a comparison that was written as JSON.

    Raises:
        ConfigError: There is no family of that kind.
    """
    kind = content.get("kind", "routing")
    if kind not in FAMILIES:
        raise ConfigError(unknown("kind of suite", kind, FAMILIES))
    module, _, name = FAMILIES[kind].partition(":")
    suite: type[Suite] = getattr(import_module(module), name)
    return suite


def load_suite(
    name_or_path: str, overrides: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
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
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: kind: {error}") from None
    suite = load_yaml_model(path, model)
    changes = {key: value for key, value in (overrides or {}).items() if value is not None}
    for text in settings:
        name, mark, value = text.partition("=")
        name, setting = name.strip(), _SHORT.get(name.strip(), name.strip())
        if mark and setting not in model.model_fields:
            short = [key for key, field in _SHORT.items() if field in model.model_fields]
            known = unknown("setting", name, [*short, *model.model_fields])
            raise ConfigError(f"command line: {known}")
        key, changes[key] = read_setting(f"{setting}={value}" if mark else text, model)
    return validate(suite.overridden(changes), model, source="command line") if changes else suite
