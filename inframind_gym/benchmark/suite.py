"""Suites: which policies play which episodes, as YAML checked by pydantic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator

from inframind_gym.benchmark.cells import BaseCell, Place
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.configs import (
    StrictModel,
    find_config,
    load_yaml_model,
    validate,
)
from inframind_gym.errors import ConfigError, require_within
from inframind_gym.files import parse_json, read_yaml

MOST_SEEDS = 10_000
_SEEDS_RULE = (
    f"must be a count of at least 1 and at most {MOST_SEEDS} (5) or a list of seeds from 0 on "
    "(0,1,2), got {!r:.60}"
)


def name_of(name_or_path: str) -> str:
    """Return a configuration's name in results: of a file its own, wherever it lies."""
    path, mark, draw = name_or_path.partition("#")
    return Path(path).name.removesuffix(".yaml").removesuffix(".yml") + mark + draw


def absolute(name_or_path: str) -> str:
    """Return the absolute path of a configuration that is a file, any other by its name."""
    is_path = name_of(name_or_path) != name_or_path
    return str(Path(name_or_path).absolute()) if is_path else name_or_path


def check_names(given: Iterable[str]) -> None:
    """Check that results can tell configurations apart.

    Raises:
        BenchmarkError: Two of them have one name.
    """
    first: dict[str, str] = {}
    for one in given:
        other = first.setdefault(name_of(one), one)
        if other != one:
            raise BenchmarkError(
                f"{other} and {one} are both called {name_of(one)!r} in results, which go by the "
                "names of files. Rename one of them."
            )


def check_axis(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values along an axis of a suite; a ValueError if one comes twice."""
    repeated = {str(item) for item in values if values.count(item) > 1}
    if repeated:
        raise ValueError(f"names {', '.join(sorted(repeated))} more than once")
    return values


class BaseSuite(StrictModel):
    """Settings of every family's suites.

    A family adds a field for each axis of its `cell`, and what all cells share. Cells, and with
    them seeds and results, have the names of configuration files alone (`name_of`): it makes no
    difference where a file lies, and a changed copy meets the same episodes as the original.

    Attributes:
        cell: Class of the cells.
        name: Name of the results.
        description: One or two sentences.
        policies: Names of policies, or ``package.module:Class``.
        seeds: Number of repetitions (0, 1, ...), or a list of their indices.
    """

    cell: ClassVar[type[BaseCell]]

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
        axes = ["policies", "seeds", *(axis.setting for axis in cls.cell.axes)]
        if isinstance(values, tuple) and info.field_name in axes:
            check_axis(values)
            if info.field_name in cls.files():
                check_names(values)
        return values

    @classmethod
    def files(cls) -> dict[str, str]:
        """Return the axes of configuration files: field of the suite -> coordinate of a cell."""
        return {axis.setting: axis.name for axis in cls.cell.axes if axis.is_file}

    def names(self, setting: str) -> tuple[str, ...]:
        """Return the names of the configurations of one of `files`."""
        return tuple(name_of(given) for given in getattr(self, setting))

    def source(self, setting: str, name: str) -> str:
        """Return the name or path behind one of `names`; a name that the suite has not, as is."""
        given: tuple[str, ...] = getattr(self, setting)
        return next((one for one in given if name_of(one) == name), name)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def places(self) -> Iterable[Place]:
        """Return the product of the axes between policies and seeds."""
        return itertools.product(
            *(
                self.names(axis.setting) if axis.is_file else getattr(self, axis.setting)
                for axis in self.cell.axes
            )
        )

    def trainings(self, policy: str, place: Place) -> int:
        """Return how many trainings of a policy play a place, each in every episode."""
        return 1

    def fitted_as(self, policy: str) -> dict[str, Any]:
        """Return what a policy's results depend on beside what its name stands for, as JSON."""
        return {}

    def overridden(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with some of them replaced, not yet checked."""
        return {**self.model_dump(), **given}

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
        axes = {axis.setting for axis in self.cell.axes}
        return self.model_dump(
            mode="json", exclude={"name", "description", "policies", "seeds", *axes}
        )

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash the content of a file that cells name: one of `names` of one of `files`."""
        raise NotImplementedError

    def length(self, cell: Any) -> int:
        """Return the number of records of a cell, for the progress."""
        raise NotImplementedError


def load_suite(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Any:
    """Read a suite and replace some of its settings.

    Args:
        name_or_path: A shipped suite's name, or the path of a YAML file.
        overrides: Settings that replace the file's; None values are left alone.

    Returns:
        The checked suite, an instance of the `suite` of the family that the file's ``kind`` names.

    Raises:
        ConfigError: The suite or its family is unknown, its file malformed, or an override has a
            value that the suite cannot take.
    """
    from inframind_gym.benchmark.families import ROUTING, family

    path = find_config("suites", name_or_path)
    content, _ = read_yaml(path)
    kind = content.get("kind", ROUTING) if isinstance(content, dict) else ROUTING
    try:
        model = family(str(kind)).suite
    except BenchmarkError as error:
        raise ConfigError(f"{path}: kind: {error}") from None
    suite = load_yaml_model(path, model)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if not given:
        return suite
    return validate(suite.overridden(given), model, source="command line")


def split_list(text: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated option; blanks around items are dropped."""
    if text is None:
        return None
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def parse_numbers(
    option: str, text: str | None, *, words: Sequence[str] = ()
) -> tuple[float | str, ...] | None:
    """Read a comma-separated list of positive numbers, of which words may replace some.

    Raises:
        InfraMindError: An item is neither a positive finite number nor one of `words`.
    """

    def number(item: str) -> float:
        try:
            return require_within(float(item), 1e-6, 1e9, option)
        except ValueError:
            expected = " or ".join(["a positive number", *map(repr, words)])
            raise BenchmarkError(f"{option}: {item!r} is not {expected}.") from None

    items = split_list(text)
    return items and tuple(item if item in words else number(item) for item in items)


def parse_seeds(text: str | None) -> int | tuple[int, ...] | None:
    """Read ``--seeds``: one number is a count, a comma-separated list names the seeds.

    Raises:
        BenchmarkError: Not whole numbers, or a count of 0.
    """
    items = split_list(text)
    if items is None:
        return None
    if not items or not all(item.isdecimal() for item in items):
        raise BenchmarkError(f"--seeds: {_SEEDS_RULE.format(text)}.")
    if len(items) == 1 and text is not None and "," not in text:
        if int(items[0]) < 1:
            raise BenchmarkError(f"--seeds: {_SEEDS_RULE.format(text)}. The seed 0 alone is '0,'.")
        return int(items[0])
    return tuple(int(item) for item in items)


def parse_arrivals(text: str | None) -> str | dict[str, Any] | None:
    """Read ``--arrivals``: a process's name, a trace's CSV file, or a JSON mapping.

    Raises:
        BenchmarkError: A trace that does not exist.
        ConfigError: Malformed JSON.
    """
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        return dict(parse_json(text, "--arrivals"))
    if text.endswith(".csv") or "/" in text:
        if not Path(text).is_file():
            raise BenchmarkError(f"--arrivals: there is no file {text}")
        return {"kind": "trace", "path": str(Path(text).resolve()), "rescale": True}
    return text
