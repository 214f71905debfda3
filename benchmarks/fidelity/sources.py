"""What the fidelity page reads beside the data: limits of the logs, peers' claims, fits on file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from benchmarks.fit.constants import FITTED
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.replay_runs import Constants
from inframind_gym.calibration.trial import Limits
from inframind_gym.configs import (
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
)
from inframind_gym.errors import did_you_mean

_HERE: Final = Path(__file__).resolve().parent
LOGS: Final = _HERE / "logs.yaml"
PEERS: Final = _HERE / "peers.yaml"
FIT: Final = FITTED / "b200-2gpu.json"
OUTCOMES: Final = FITTED / "outcomes.json"


class LogTargets(StrictModel):
    """Largest absolute errors of the requests that were not fitted, percent."""

    e2e_mean: Positive
    e2e_percentiles: Positive  # p50, p90, p95 and p99
    ttft_mean: Positive


class LogEntry(StrictModel):
    """What a request log does not say of itself."""

    title: str
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt
    num_kv_blocks: PositiveInt | None = None
    block_size: PositiveInt = 16
    source: str  # where these numbers are from
    targets: LogTargets | None = None

    @property
    def limits(self) -> Limits:
        """The server's launch options."""
        return Limits(
            self.max_num_seqs, self.max_num_batched_tokens, self.num_kv_blocks, self.block_size
        )


class LogListing(StrictModel):
    """The file of server limits."""

    logs: dict[str, LogEntry]


class PeerErrors(StrictModel):
    """Signed errors of the means on one log, percent."""

    ttft_s: Number
    tpot_s: Number
    e2e_s: Number


class Peer(StrictModel):
    """What another simulator claims."""

    name: str
    error_pct: tuple[NonNegative, NonNegative]
    measure: str
    speed: str
    basis: str
    source: str
    logs: dict[str, PeerErrors] = Field(default_factory=dict)


class PeerListing(StrictModel):
    """The file of peers."""

    peers: list[Peer]


@dataclass(frozen=True)
class LogFile:
    """A log that is there, and its entry."""

    path: Path
    entry: LogEntry


def log_files(folder: Path, listing: Path = LOGS) -> list[LogFile]:
    """The request logs of a folder, each with its entry.

    Raises:
        BenchmarkError: There is no log, or one that the listing does not know.
        ConfigError: The listing is wrong.
    """
    entries = load_yaml_model(listing, LogListing).logs
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise BenchmarkError(f"{folder}: holds no request log (*.jsonl).")
    for path in paths:
        if path.name not in entries:
            raise BenchmarkError(
                f"{path.name}: {listing.name} has no entry for this log."
                f"{did_you_mean(path.name, entries)} Add one with its server's max_num_seqs, "
                "max_num_batched_tokens and, if known, num_kv_blocks: a log does not say them."
            )
    return [LogFile(path, entries[path.name]) for path in paths]


def read_peers(path: Path = PEERS) -> list[Peer]:
    """The claims of other simulators."""
    return load_yaml_model(path, PeerListing).peers


def read_results(path: Path) -> dict[str, Any] | None:
    """The JSON object of an earlier fit, or None where there is no such file.

    Raises:
        BenchmarkError: The file cannot be read or is no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path}: cannot be read as JSON ({error}).") from None
    if not isinstance(found, dict):
        raise BenchmarkError(f"{path}: wanted a JSON object.")
    return found


def check_fit(values: Mapping[str, float], constants: Constants, path: Path) -> None:
    """Check that the constants in use are those that a fit reports, up to rounding.

    Raises:
        BenchmarkError: They are not: the page would list others than it shows the errors of.
    """
    in_use = fitted_values(constants)
    off = [
        name for name, value in values.items() if name in in_use and _differ(name, value, in_use)
    ]
    if off:
        name = off[0]
        raise BenchmarkError(
            f"{path.name} and the constants in use differ in {len(off)} of {len(values)} places: "
            f"{name} is {values[name]:g} there and {in_use[name]:g} here. Give the pool, workloads "
            "and fit that belong together: --pool, --workloads, --fit."
        )


def _differ(name: str, value: float, in_use: Mapping[str, float]) -> bool:
    """Whether a constant differs by more than the YAML files round it."""
    if name.endswith(": ability"):
        return abs(value - in_use[name]) > 0.01
    return not math.isclose(value, in_use[name], rel_tol=0.01)


def fitted_values(constants: Constants) -> dict[str, float]:
    """The fitted constants in use, by their names in a fit (`benchmarks.fit.constants.Layout`)."""
    pool = constants.pool
    found = {f"{model.alias}: base_s": model.server.step.base_s for model in pool.models}
    found["colocation_slowdown"] = pool.gpus[0].colocation_slowdown
    for dataset, profile in constants.profiles.items():
        found["sigma_query"] = profile.output.sigma_query
        found["sigma_call"] = profile.output.sigma_call
        found[f"{dataset}: difficulty_sd"] = profile.quality.difficulty_sd
        for alias, of in profile.models.items():
            found[f"{dataset}: {alias}: output_tokens_median"] = of.output_tokens_median
            found[f"{dataset}: {alias}: ability"] = of.ability
    return found
