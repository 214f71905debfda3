"""The shipped constants are those of the fit on file."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from benchmarks.fidelity import FIT, POOL
from inframind_gym.calibration.replay import load_constants
from inframind_gym.configs import find_config
from inframind_gym.simulator.workflow.topology import STRUCTURES

DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")


def test_shipped_files_hold_the_fit_on_file() -> None:
    """Up to the rounding of the YAML files; the fidelity page shows errors of these constants."""
    fitted, start = json.loads(FIT.read_text("utf-8"))["values"], load_constants(POOL, DATASETS)
    found = {f"{model.alias}: base_s": model.server.step.base_s for model in start.pool.models}
    found["colocation_slowdown"] = start.pool.gpus[0].colocation_slowdown
    for dataset, profile in start.profiles.items():
        found |= {name: getattr(profile.output, name) for name in ("sigma_query", "sigma_call")}
        found[f"{dataset}: difficulty_sd"] = profile.quality.difficulty_sd
        found["overhead_tokens"] = profile.prompt.overhead_tokens
        found[f"{dataset}: final_factor"] = profile.output.final_factor
        for strategy, factor in profile.output.strategy_factor.items():
            found[f"strategy_factor.{strategy}"] = factor
        for name, gain in profile.quality.structure_gain.items():
            found[f"{dataset}: structure_gain.{name}"] = gain
        for name in ("Flash", "DeepThink"):
            found[f"{dataset}: strategy_gain.{name}"] = profile.quality.strategy_gain[name]
        found[f"{dataset}: aggregation_gain"] = start.aggregation_gains[dataset]
        for alias, of in profile.models.items():
            for name in ("output_tokens_median", "ability"):
                found[f"{dataset}: {alias}: {name}"] = getattr(of, name)
    assert set(fitted) - set(found) == {"per_seq_s: common factor"}
    for name, value in found.items():
        assert value == pytest.approx(fitted[name], rel=0.01, abs=0.006), name


def test_the_shipped_draws_spread_as_the_fit_on_file_says() -> None:
    path = find_config("workloads", "math").with_name("posterior.csv")
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    gains = json.loads(FIT.read_text("utf-8"))["posterior"]["gains"]
    for name in DATASETS:
        for structure in STRUCTURES:
            key = f"quality.structure_gain.{structure}"
            drawn = np.array([float(row[key]) for row in rows if row["workload"] == name])
            on_file = gains[name][structure]
            assert drawn.mean() == pytest.approx(on_file["mean"], abs=2e-4), (name, structure)
            assert drawn.std() == pytest.approx(on_file["sd"], abs=1e-3), (name, structure)
