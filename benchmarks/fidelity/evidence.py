"""What the fidelity page shows, computed anew: logs calibrated, measured runs replayed."""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity import sources
from benchmarks.fidelity.sources import LogEntry, LogFile, Peer
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.machine import keep_to_one_core
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.provenance import provenance
from inframind_gym.calibration.fit import Calibration, calibrate
from inframind_gym.calibration.log import read_log
from inframind_gym.calibration.measured import MeasuredCell, read_runs
from inframind_gym.calibration.replay_choices import HARNESSES
from inframind_gym.calibration.replay_report import compare, summarise
from inframind_gym.calibration.replay_runs import (
    DEFAULT_SEEDS,
    Constants,
    Prediction,
    load_constants,
    predict,
)
from inframind_gym.calibration.report import report
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record

OBLIVIOUS: Final = "mas"  # the method whose choices do not depend on load: latencies are fitted
LOAD_PER_MIN: Final = tuple(np.geomspace(5.0, 200.0, 25).tolist())  # of the predicted curves
_TIMED_S: Final = 0.3  # one measurement of speed


@dataclass(frozen=True)
class LogEvidence:
    """A request log, the card fitted to its first part, and how well the rest is predicted."""

    file: str
    entry: LogEntry
    calibration: Calibration
    figures: dict[str, Any]  # inframind_gym.calibration.report.report
    speed: float  # simulated seconds in a second

    @property
    def slug(self) -> str:
        """The log's name as part of a file name."""
        return Path(self.file).stem.lower().replace("_", "-")


@dataclass(frozen=True)
class LoadCurve:
    """Predicted mean latency of a dataset at one cost rate, over the arrival rate."""

    dataset: str
    cost_rate: float | None
    measured: tuple[MeasuredCell, ...]  # by arrival rate
    rate_per_min: NDArray[np.float64]  # (k,)
    latency_s: NDArray[np.float64]  # (k,)


@dataclass(frozen=True)
class RunEvidence:
    """Measured cells and what the simulation says of them."""

    file: str
    pool: str
    seeds: int
    cells: tuple[MeasuredCell, ...]
    predictions: tuple[Prediction, ...]
    rows: list[dict[str, Any]]  # replay_report.compare
    summary: dict[str, dict[str, float | int | None]]  # by method
    curves: tuple[LoadCurve, ...]


@dataclass(frozen=True)
class Evidence:
    """All that the page is made of."""

    logs: tuple[LogEvidence, ...]
    runs: RunEvidence
    peers: tuple[Peer, ...]
    fit: dict[str, Any] | None  # of benchmarks.fit.measured
    outcomes: dict[str, Any] | None  # of benchmarks.fit.outcomes
    repeats: int  # measurements of speed
    where: dict[str, Any]  # versions and machine


def gather(
    data: Path,
    *,
    pool: str = "b200-2gpu",
    workloads: Path | None = None,
    listing: Path = sources.LOGS,
    peers: Path = sources.PEERS,
    fit: Path = sources.FIT,
    outcomes: Path = sources.OUTCOMES,
    seeds: int = DEFAULT_SEEDS,
    repeats: int = 5,
) -> Evidence:
    """Calibrate on every request log and replay the measured runs.

    Args:
        data: Folder with `vllm_traces/*.jsonl` and `measured_runs.json`.
        pool: Pool of the measured runs, a name or a path.
        workloads: Folder of workloads; None: the shipped ones.
        listing: Server limits of the logs.
        peers: Claims of other simulators.
        fit: What `benchmarks.fit.measured` reported; need not exist.
        outcomes: What `benchmarks.fit.outcomes` reported; need not exist.
        seeds: Sweeps of every cell.
        repeats: Measurements of speed, of which the median counts.

    Raises:
        BenchmarkError: A file is missing, a log has no entry in the listing, or the fit reports
            other constants than are in use.
        InfraMindError: A file is wrong.
    """
    files = sources.log_files(_existing(data / "vllm_traces"), listing)
    runs = _existing(data / "measured_runs.json")
    fitted = sources.read_results(fit)
    claims = tuple(sources.read_peers(peers))
    cells = [cell for cell in read_runs(runs) if cell.method in HARNESSES]
    constants = load_constants(pool, [cell.dataset for cell in cells], workloads)
    if fitted is not None:
        sources.check_fit(fitted.get("values", {}), constants, fit)
    return Evidence(
        logs=tuple(_log(file, repeats) for file in files),
        runs=_runs(runs.name, cells, constants, seeds),
        peers=claims,
        fit=fitted,
        outcomes=sources.read_results(outcomes),
        repeats=repeats,
        where=provenance(),
    )


def _existing(path: Path) -> Path:
    if not path.exists():
        raise BenchmarkError(
            f"{path} does not exist. DATA_DIR holds vllm_traces/*.jsonl and measured_runs.json."
        )
    return path


def _log(file: LogFile, repeats: int) -> LogEvidence:
    say(f"calibrating on {file.path.name} ...")
    calibration = calibrate(read_log(file.path), file.entry.limits)
    for warning in (figures := report(calibration))["warnings"]:
        say(f"warning: {file.path.name}: {warning}")
    return LogEvidence(
        file=file.path.name,
        entry=file.entry,
        calibration=calibration,
        figures=figures,
        speed=replay_speed(calibration, repeats),
    )


def replay_speed(calibration: Calibration, repeats: int) -> float:
    """Simulated seconds in a second of replaying the log on one core, the median of repeats."""
    log, record = calibration.log, card_record(calibration.card)
    server = np.zeros(len(log), np.int64)
    simulated_s = float(calibration.served["finish_s"].max() - calibration.submit_s[0])

    def replay() -> None:
        replay_requests(record, server, calibration.submit_s, log.prompt_tokens, log.output_tokens)

    with keep_to_one_core():
        began = time.perf_counter()
        replay()
        count = max(1, math.ceil(_TIMED_S / max(time.perf_counter() - began, 1e-6)))
        rates = []
        for _ in range(repeats):
            began = time.perf_counter()
            for _ in range(count):
                replay()
            rates.append(count * simulated_s / (time.perf_counter() - began))
    return statistics.median(rates)


def _runs(
    file: str, cells: Sequence[MeasuredCell], constants: Constants, seeds: int
) -> RunEvidence:
    say(f"replaying {len(cells)} measured cells, {seeds} sweeps each ...")
    predictions = predict(cells, constants, seeds)
    rows = compare(cells, predictions)
    return RunEvidence(
        file=file,
        pool=constants.pool.name,
        seeds=seeds,
        cells=tuple(cells),
        predictions=tuple(predictions),
        rows=rows,
        summary=summarise(rows),
        curves=tuple(_curves(cells, constants, seeds)),
    )


def _curves(cells: Sequence[MeasuredCell], constants: Constants, seeds: int) -> list[LoadCurve]:
    """Curves of the oblivious method, between the measured rates and beyond.

    At a rate that was not measured, the choices are interpolated between the measured cells: they
    hardly differ, because they do not depend on load.
    """
    groups: dict[tuple[str, float | None], list[MeasuredCell]] = {}
    for cell in cells:
        if cell.method == OBLIVIOUS:
            groups.setdefault((cell.dataset, cell.cost_rate), []).append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: cell.arrival_rate_per_min)
    rates = [
        sorted({*LOAD_PER_MIN, *(cell.arrival_rate_per_min for cell in group)})
        for group in groups.values()
    ]
    say(f"predicting {len(groups)} curves over load ...")
    between = [
        at_rate(group, rate)
        for group, at in zip(groups.values(), rates, strict=True)
        for rate in at
    ]
    said = iter(predict(between, constants, seeds))
    return [
        LoadCurve(
            dataset,
            cost_rate,
            tuple(group),
            np.array(at),
            np.array([next(said).latency_s["mean"] for _ in at]),
        )
        for ((dataset, cost_rate), group), at in zip(groups.items(), rates, strict=True)
    ]


def at_rate(cells: Sequence[MeasuredCell], rate_per_min: float) -> MeasuredCell:
    """A cell at a rate that was not measured, with shares interpolated in the log of the rate.

    Args:
        cells: Of one dataset and cost rate, by arrival rate.
        rate_per_min: The rate; beyond the measured ones the shares of the outermost hold.
    """
    rates = [cell.arrival_rate_per_min for cell in cells]
    above = bisect_left(rates, rate_per_min)
    low, high = cells[max(above - 1, 0)], cells[min(above, len(cells) - 1)]
    span = math.log(high.arrival_rate_per_min / low.arrival_rate_per_min)
    weight = math.log(rate_per_min / low.arrival_rate_per_min) / span if span else 0.0
    return replace(
        low,
        arrival_rate_per_min=rate_per_min,
        model_share=_mixed(low.model_share, high.model_share, weight),
        topology_share=_mixed(low.topology_share, high.topology_share, weight),
    )


def _mixed(
    low: Mapping[str, float] | None, high: Mapping[str, float] | None, weight: float
) -> Mapping[str, float] | None:
    if low is None or high is None:
        return low
    names = dict.fromkeys([*low, *high])
    return {
        name: (1.0 - weight) * low.get(name, 0.0) + weight * high.get(name, 0.0) for name in names
    }


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Ends of Wilson's 95 % interval of a share that was seen in `count` trials.

    Source: E. B. Wilson, "Probable Inference", JASA 22:158, 1927.
    """
    if count < 1:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / 2 / count) ** 2)
    return middle - half, middle + half
