"""The fit finds what is to be found, and writes what it found."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit.constants import with_constants
from benchmarks.fit.measured import FITTED, Fit, write
from benchmarks.fit.measured_runs import MeasuredCell
from benchmarks.fit.replay import Constants, load_constants, predict
from inframind_gym.configs import find_config
from inframind_gym.simulator.workflow.topology import STRUCTURES

DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")


@pytest.fixture(scope="module")
def start() -> Constants:
    return load_constants("b200-2gpu", DATASETS)


def cell(
    rate: float = 20.0, *, cost_rate: float = 10.0, latency_s: dict[str, float] | None = None
) -> MeasuredCell:
    return MeasuredCell(
        source="f: c",
        method="mas",
        dataset="math",
        arrival_rate_per_min=rate,
        num_queries=80,
        accuracy=0.5,
        latency_s=latency_s or {"mean": 1.0},
        cost_rate=cost_rate,
        model_share={"deepseek-32b": 0.25, "qwen-14b": 0.75},
        topology_share={"IO": 0.6, "Chain": 0.4},
        num_agents=3.0,
    )


def test_the_fit_on_file_is_written_as_the_shipped_files(start: Constants, tmp_path: Path) -> None:
    """The fidelity page shows errors of these constants."""
    fitted = json.loads((FITTED / "b200-2gpu.json").read_text("utf-8"))["values"]
    on_file = with_constants(start, fitted)
    write(on_file, tmp_path)
    assert not changed_lines(tmp_path)
    assert start.aggregation_gains == pytest.approx(on_file.aggregation_gains, abs=0.006)


def changed_lines(folder: Path) -> list[str]:
    """Lines in which written files differ from the shipped ones."""
    found = []
    for kind, names in (("pools", ("b200-2gpu",)), ("workloads", DATASETS)):
        for name in names:
            shipped = find_config(kind, name).read_text("utf-8").splitlines()
            written = (folder / kind / f"{name}.yaml").read_text("utf-8").splitlines()
            found += [b for a, b in zip(shipped, written, strict=True) if a != b]
    # Shares that were rounded are scaled to sum to 1 when they are read.
    return [line for line in found if "topologies" not in line]


def test_the_fit_returns_to_the_truth(start: Constants) -> None:
    """Cells made by the simulation itself, with slower servers than the fit starts from."""
    only_math = Constants(start.pool, {"math": start.profiles["math"]})
    plain = [cell(rate) for rate in (5.0, 60.0)]
    truth = Fit(plain, only_math).values()  # the prior
    truth |= {name: value * np.exp(0.3) for name, value in truth.items() if "base_s" in name}
    said = predict(plain, with_constants(only_math, truth), 3)
    cells = [
        cell(c.arrival_rate_per_min, latency_s=p.latency_s)
        for c, p in zip(plain, said, strict=True)
    ]
    fit = Fit(cells, only_math)
    fit.run()
    found = predict(cells, fit.constants(), 3)
    for c, p in zip(cells, found, strict=True):
        assert p.latency_s["mean"] == pytest.approx(c.latency_s["mean"], rel=0.05)


# The posterior of quality


def shipped_draws() -> list[dict[str, str]]:
    path = find_config("workloads", "math").with_name("posterior.csv")
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def test_the_shipped_draws_spread_as_the_fit_on_file_says() -> None:
    rows = shipped_draws()
    gains = json.loads((FITTED / "b200-2gpu.json").read_text("utf-8"))["posterior"]["gains"]
    for name in DATASETS:
        for structure in STRUCTURES:
            key = f"quality.structure_gain.{structure}"
            drawn = np.array([float(row[key]) for row in rows if row["workload"] == name])
            on_file = gains[name][structure]
            assert drawn.mean() == pytest.approx(on_file["mean"], abs=2e-4), (name, structure)
            assert drawn.std() == pytest.approx(on_file["sd"], abs=1e-3), (name, structure)
