"""Suites: which policies meet which sweeps, as YAML checked by pydantic."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import Field, ValidationInfo, field_validator

from inframind_gym.benchmark.cells import BaseCell, Budget, Cell, Place
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import ROUTING, family
from inframind_gym.configs import (
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    validate,
)
from inframind_gym.errors import ConfigError, require_positive, unknown
from inframind_gym.live.settings import LiveSettings

Budgets = Annotated[tuple[Positive | Literal["tiers"], ...], Field(min_length=1)]

_SEEDS_RULE = "must be a count of at least 1 (5) or a list of seeds from 0 on (0,1,2), got {!r}"


def name_of(name_or_path: str) -> str:
    """What a configuration is called in results: a file by its name, wherever it lies."""
    return Path(name_or_path).name.removesuffix(".yaml").removesuffix(".yml")


def absolute(name_or_path: str) -> str:
    """A configuration that is a file by its absolute path, any other by its name."""
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


def check_axis(values: tuple[Any, ...]) -> None:
    """Check an axis of a suite.

    Raises:
        ValueError: It names nothing, or something twice.
    """
    if not values:
        raise ValueError("names nothing")
    repeated = {str(item) for item in values if values.count(item) > 1}
    if repeated:
        raise ValueError(f"names {', '.join(sorted(repeated))} more than once")


class BaseSuite(StrictModel):
    """What suites of all families have.

    `axes` are the fields that name nothing twice, and `files` those of them that hold names or
    paths of configurations. Cells, and with them seeds and results, have their names alone
    (`name_of`): it makes no difference where a file lies, and a changed copy meets the same sweeps
    as the original.

    Attributes:
        name: What results are called.
        description: One or two sentences.
        policies: Names of baselines, or ``package.module:Class``.
        seeds: Number of repetitions (0, 1, ...), or a list of their indices.
    """

    axes: ClassVar[tuple[str, ...]]
    files: ClassVar[tuple[str, ...]]

    name: str
    description: str = ""
    policies: tuple[str, ...] = Field(min_length=1)
    seeds: PositiveInt | tuple[Annotated[int, Field(ge=0)], ...] = 5

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_or_list(cls, seeds: Any) -> Any:
        listed = isinstance(seeds, list | tuple)
        least, items = (0, seeds) if listed else (1, [seeds])
        if not items or any(type(item) is not int or item < least for item in items):
            raise ValueError(_SEEDS_RULE.format(seeds))
        return seeds

    @field_validator("*")
    @classmethod
    def _without_repeats(cls, axis: Any, info: ValidationInfo) -> Any:
        if isinstance(axis, tuple) and info.field_name in cls.axes:
            check_axis(axis)
            if info.field_name in cls.files:
                check_names(axis)
        return axis

    def names(self, axis: str) -> tuple[str, ...]:
        """What the configurations of one of `files` are called."""
        return tuple(name_of(given) for given in getattr(self, axis))

    def source(self, axis: str, name: str) -> str:
        """The name or path behind one of `names`; a name that the suite has not, as it is."""
        given: tuple[str, ...] = getattr(self, axis)
        return next((one for one in given if name_of(one) == name), name)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Indices of the repetitions."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def places(self) -> Iterable[Place]:
        """The product of the axes between policies and seeds."""
        raise NotImplementedError

    def cell(self, policy: str, place: Place, seed: int) -> BaseCell:
        """The cell of a policy."""
        raise NotImplementedError


class WorkloadSettings(StrictModel):
    """What a suite says of one workload alone; what is None is as for the others.

    Attributes:
        budgets_s: See `SuiteConfig`.
        num_queries: See `SuiteConfig`.
    """

    budgets_s: Budgets | None = None
    num_queries: PositiveInt | None = None

    @field_validator("budgets_s")
    @classmethod
    def _without_repeats(cls, budgets_s: Any) -> Any:
        if budgets_s is not None:
            check_axis(budgets_s)
        return budgets_s


class SuiteConfig(BaseSuite):
    """A suite of routing: the product of its axes, and what every sweep of it shares.

    Attributes:
        pool: Name or path of the pool of servers.
        workloads: Names or paths of workloads.
        rates_per_min: Mean arrival rates.
        budgets_s: Latency budgets; "tiers" draws every query's budget from the workload's tiers.
        num_queries: Queries of one sweep; null takes each workload's own number.
        by_workload: Budgets and numbers of queries of single workloads in place of these; one that
            is a file goes by its name (`name_of`).
        arrivals: An arrival process: "poisson", "burst", "sustained", or a mapping such as
            ``{kind: trace, path: arrivals.csv, rescale: true}``.
        execution: How a workflow's calls are carried out and counted; null takes each workload's
            own.
        scheduler: Order of the servers' queues; null takes the pool's.
        tasks: "builtin", or a folder of questions.
        split: Which part of the tasks is asked.
        system_features: What of the servers' telemetry a policy observes.
        metrics_poll_s: Seconds between two polls of it; null takes the pool's.
        down_models: Aliases of models that are out of service.
        backend: "surrogate", or "vllm": the pool's live servers, on the wall clock.
        live: How live servers are called; see `inframind_gym.live.settings.LiveSettings`.
    """

    axes: ClassVar = ("policies", "workloads", "rates_per_min", "budgets_s", "seeds")
    files: ClassVar = ("workloads",)

    pool: str = "b200-2gpu"
    workloads: tuple[str, ...] = Field(min_length=1)
    rates_per_min: tuple[Positive, ...] = Field(min_length=1)
    budgets_s: Budgets
    num_queries: PositiveInt | None = None
    by_workload: dict[str, WorkloadSettings] = Field(default_factory=dict)
    arrivals: str | dict[str, Any] = "poisson"
    execution: Literal["parallel", "sequential"] | None = None
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    tasks: str = "builtin"
    split: Literal["train", "val", "test", "all"] = "test"
    system_features: tuple[str, ...] = ("queue", "e2e")
    metrics_poll_s: Positive | None = None
    down_models: tuple[str, ...] = ()
    backend: Literal["surrogate", "vllm"] = "surrogate"
    live: LiveSettings = LiveSettings()

    def places(self) -> Iterator[Place]:
        """Every workload at every rate with every budget."""
        for workload in self.names("workloads"):
            yield from itertools.product((workload,), self.rates_per_min, self.budgets_of(workload))

    def budgets_of(self, workload: str) -> tuple[Budget, ...]:
        """Budgets with which a workload is played."""
        own = self.by_workload.get(name_of(workload))
        return self.budgets_s if own is None or own.budgets_s is None else own.budgets_s

    def queries_of(self, workload: str) -> int | None:
        """Queries of a sweep of a workload; None: its own number."""
        own = self.by_workload.get(name_of(workload))
        return self.num_queries if own is None or own.num_queries is None else own.num_queries

    def cell(self, policy: str, place: Place, seed: int) -> Cell:
        """The cell of a policy."""
        workload, rate_per_min, budget_s = place
        return Cell(policy, workload, rate_per_min, budget_s, seed)


SuiteT = TypeVar("SuiteT", bound=BaseSuite)


def load_suite(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> SuiteConfig:
    """Read a suite of routing and replace some of its settings.

    Args:
        name_or_path: A shipped suite's name, or the path of a YAML file.
        overrides: Settings that replace the file's; None values are left alone.

    Returns:
        The checked suite.

    Raises:
        ConfigError: The suite is unknown, its file malformed, or an override has a value that the
            suite cannot take.
    """
    return _load(find_config("suites", name_or_path), SuiteConfig, overrides)


def load_any_suite(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> BaseSuite:
    """`load_suite` for suites of any family, which the file's ``kind`` names.

    Raises:
        BenchmarkError: There is no such family.
        ConfigError: As of `load_suite`.
    """
    path = find_config("suites", name_or_path)
    return _load(path, family(kind_of_file(path)).suite, overrides)


def kind_of_file(path: Path) -> str:
    """What a suite's file says under ``kind``; what else is wrong with it is found out later."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ROUTING
    return str(content.get("kind", ROUTING)) if isinstance(content, dict) else ROUTING


def _load(path: Path, model: type[SuiteT], overrides: Mapping[str, Any] | None) -> SuiteT:
    suite = load_yaml_model(path, model)
    if isinstance(suite, SuiteConfig):
        for name in suite.by_workload:
            if name not in suite.names("workloads"):
                message = unknown("workload", name, suite.names("workloads"))
                raise ConfigError(f"{path}: by_workload: {message}")
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if not given:
        return suite
    content = suite.model_dump()
    for own in content.get("by_workload", {}).values():  # what is said now is said of all
        own.update({key: None for key in own if key in given})
    return validate({**content, **given}, model, source="command line")


def split_list(text: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated option; blanks around items are dropped."""
    if text is None:
        return None
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def parse_numbers(
    option: str, text: str | None, *, words: Sequence[str] = ()
) -> tuple[float | str, ...] | None:
    """Read a comma-separated list of positive numbers.

    Args:
        option: The option's name, for the error.
        text: What was given; None if the option was not used.
        words: Words that may stand in place of a number.

    Raises:
        BenchmarkError: An item is neither a positive finite number nor one of `words`.
    """
    items = split_list(text)
    if items is None:
        return None
    numbers: list[float | str] = []
    for item in items:
        if item in words:
            numbers.append(item)
            continue
        try:
            number = float(item)
        except ValueError:
            expected = " or ".join(["a number", *(repr(word) for word in words)])
            raise BenchmarkError(f"{option}: {item!r} is not {expected}.") from None
        numbers.append(require_positive(option, number))
    return tuple(numbers)


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
        BenchmarkError: Malformed JSON, or a trace that does not exist.
    """
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        try:
            spec = json.loads(text)
        except json.JSONDecodeError as error:
            raise BenchmarkError(f"--arrivals: not valid JSON: {error}") from None
        return dict(spec)
    if text.endswith(".csv") or "/" in text:
        if not Path(text).is_file():
            raise BenchmarkError(f"--arrivals: there is no file {text}")
        return {"kind": "trace", "path": str(Path(text).resolve()), "rescale": True}
    return text
