"""Circumstances: what differs from the suite that policies were fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.suite import RoutingSuite
from inframind_gym.benchmark.suite import load_suite, name_of
from inframind_gym.configs import Number, Positive, PositiveInt, StrictModel, find_config
from inframind_gym.configs import load_yaml_model as load_yaml
from inframind_gym.errors import unknown
from inframind_gym.files import replace_text
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload

CIRCUMSTANCES: Final = Path(__file__).with_name("circumstances.yaml")
_STEP_TIMES: Final = (
    "base_s",
    "per_seq_s",
    "per_kv_token_s",
    "per_new_token_s",
    "per_attention_unit_s",
    "sparse_s",
)


class Circumstance(StrictModel):
    """One circumstance.

    Attributes:
        what: In words.
        suite: Settings of `RoutingSuite` in place of the suite's own.
        traced: Whether arrivals are those of a recorded trace, which has to be given.
        step_factors: By the model's alias: times the duration of its engine steps.
        ability_offsets: By the model's alias: added to its ability in every workload, in logits.
        quality: Settings of `QualityConfig` in place of every workload's own.
    """

    what: str
    suite: dict[str, Any] = Field(default_factory=dict)
    traced: bool = False
    step_factors: dict[str, Positive] = Field(default_factory=dict)
    ability_offsets: dict[str, Number] = Field(default_factory=dict)
    quality: dict[str, Any] = Field(default_factory=dict)


class Circumstances(StrictModel):
    """A file of circumstances.

    Attributes:
        suite: What they are variations of.
        seeds: Sweeps of every cell.
        ours: The policy whose differences to all others are shown.
        policies: Who plays.
        circumstances: By name.
    """

    suite: str
    seeds: PositiveInt
    ours: str
    policies: tuple[str, ...] = Field(min_length=2)
    circumstances: dict[str, Circumstance] = Field(min_length=1)

    @property
    def rivals(self) -> tuple[str, ...]:
        """All policies but `ours`, whatever its checkpoint."""
        return tuple(name for name in self.policies if name.partition(":")[0] != self.ours)


def load_circumstances(
    path: Path = CIRCUMSTANCES, policies: Sequence[str] | None = None
) -> Circumstances:
    """Read a file of circumstances.

    Args:
        path: The file.
        policies: Who plays instead of the file's.

    Raises:
        ConfigError: It is malformed.
        BenchmarkError: `ours` does not play, or nobody else does.
    """
    found = load_yaml(path, Circumstances)
    if policies is not None:
        found = found.model_copy(update={"policies": tuple(policies)})
    if found.ours not in found.policies:
        raise BenchmarkError(f"{path}: ours: {unknown('policy', found.ours, found.policies)}")
    if not found.rivals:
        raise BenchmarkError(f"{path}: policies: add one that is not {found.ours!r}, to compare.")
    return found


def chosen(
    circumstances: Circumstances, only: Sequence[str] | None, *, traced: bool
) -> tuple[str, ...]:
    """Names of the circumstances to play.

    Args:
        circumstances: The file.
        only: The wanted ones; None takes all.
        traced: Whether there is a trace; None of `only` leaves out what needs one.

    Raises:
        BenchmarkError: One is unknown, or needs a trace.
    """
    known = circumstances.circumstances
    if only is None:
        return tuple(name for name, one in known.items() if traced or not one.traced)
    for name in only:
        if _known("circumstance", name, known).traced and not traced:
            raise BenchmarkError(f"circumstance {name!r}: give recorded arrivals with --trace.")
    return tuple(only)


def folder_of(name: str) -> str:
    """The results folder of a circumstance."""
    return name.replace(" ", "-")


def suite_of(
    circumstances: Circumstances,
    name: str,
    folder: Path,
    trace: Path | None = None,
) -> RoutingSuite:
    """The suite of one circumstance.

    Args:
        circumstances: The file.
        name: Of the circumstance.
        folder: Of all results; what differs from a pool or workload is written into it.
        trace: The CSV file of recorded arrivals, if the circumstance is `traced`.

    Raises:
        ConfigError: Something that the circumstance names does not exist.
        InfraMindError: A file cannot be written.
    """
    circumstance = circumstances.circumstances[name]
    settings: dict[str, Any] = {"policies": circumstances.policies, "seeds": circumstances.seeds}
    settings |= circumstance.suite
    if circumstance.traced:
        settings["arrivals"] = {"kind": "trace", "path": str(trace), "rescale": True}
    suite: RoutingSuite = load_suite(circumstances.suite, settings)
    here = folder / "worlds" / folder_of(name)
    changes: dict[str, Any] = {}
    if circumstance.step_factors:
        changes["pool"] = _write_pool(suite.pool, circumstance.step_factors, here)
    if circumstance.ability_offsets or circumstance.quality:
        changes["workloads"] = tuple(
            _write_workload(workload, circumstance, here) for workload in suite.workloads
        )
    return suite.model_copy(update=changes)


def _write_pool(pool: str, factors: Mapping[str, float], folder: Path) -> str:
    data = yaml.safe_load(find_config("pools", pool).read_text(encoding="utf-8"))
    models = {model["alias"]: model for model in data["models"]}
    for alias, factor in factors.items():
        step = _known("model", alias, models)["server"]["step"]
        step.update({key: step[key] * factor for key in _STEP_TIMES if key in step})
    path = _write(data, folder / f"{data['name']}.yaml")
    load_pool(path)
    return path


def _write_workload(workload: str, circumstance: Circumstance, folder: Path) -> str:
    """Write a changed workload, under the name of its own: it meets the same sweeps."""
    data = yaml.safe_load(find_config("workloads", workload).read_text(encoding="utf-8"))
    if "models" not in data:
        raise BenchmarkError(f"workload {workload} mixes others: name those in the suite instead.")
    for alias, offset in circumstance.ability_offsets.items():
        _known("model", alias, data["models"])["ability"] += offset
    data["quality"] = {**data["quality"], **circumstance.quality}
    path = _write(data, folder / f"{name_of(workload)}.yaml")
    load_workload(path)
    return path


def _known(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise BenchmarkError(unknown(kind, name, table))
    return table[name]


def _write(data: Mapping[str, Any], path: Path) -> str:
    """Write a file; one with this content is left alone."""
    text = yaml.safe_dump(dict(data), sort_keys=False)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        replace_text(path, text)
    return str(path)
