"""The shipped pool, workloads and draws hold the constants of the fit on file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.fidelity import FIT, POOL
from benchmarks.fit.replay import AGGREGATION_GAINS, Constants, load_constants
from inframind_gym.configs import find_config
from inframind_gym.simulator.workflow.topology import STRUCTURES

DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")
FITTED = json.loads(FIT.read_text("utf-8"))
# Seconds that each further sequence adds to a step, before the fitted factor.
PER_SEQ_S = (6.6e-5, 3.0e-5, 2.7e-5, 2.0e-5, 1.5e-5)


def shipped(constants: Constants) -> Iterator[tuple[str, float]]:
    """Yield the fitted constants as the shipped files have them, by their names in the fit."""
    for gpu in constants.pool.gpus:
        yield "colocation_slowdown", gpu.colocation_slowdown
    for model, per_seq_s in zip(constants.pool.models, PER_SEQ_S, strict=True):
        yield f"{model.alias}: base_s", model.server.step.base_s
        yield "per_seq_s: common factor", model.server.step.per_seq_s / per_seq_s
    for dataset, profile in constants.profiles.items():
        output, quality = profile.output, profile.quality
        yield "sigma_query", output.sigma_query
        yield "sigma_call", output.sigma_call
        yield "overhead_tokens", profile.prompt.overhead_tokens
        for strategy, factor in output.strategy_factor.items():
            yield f"strategy_factor.{strategy}", factor
        yield f"{dataset}: final_factor", output.final_factor
        yield f"{dataset}: difficulty_sd", quality.difficulty_sd
        yield f"{dataset}: aggregation_gain", AGGREGATION_GAINS[dataset]
        for structure, gain in quality.structure_gain.items():
            yield f"{dataset}: structure_gain.{structure}", gain
        for strategy in ("Flash", "DeepThink"):
            yield f"{dataset}: strategy_gain.{strategy}", quality.strategy_gain[strategy]
        for alias, of in profile.models.items():
            yield f"{dataset}: {alias}: output_tokens_median", of.output_tokens_median
            yield f"{dataset}: {alias}: ability", of.ability


def test_the_shipped_files_hold_the_fit() -> None:
    found = list(shipped(load_constants(POOL, DATASETS)))
    assert {name for name, _ in found} == FITTED["values"].keys()
    for name, value in found:
        logits = name.endswith(("ability", "aggregation_gain"))  # two decimals, also near 0
        fitted = pytest.approx(FITTED["values"][name], rel=2e-3, abs=0.006 if logits else 0.0)
        assert value == fitted, name


def test_the_shipped_draws_spread_as_the_fit_says() -> None:
    path = find_config("workloads", "math").with_name("posterior.csv")
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    for name in DATASETS:
        for structure in STRUCTURES:
            key = f"quality.structure_gain.{structure}"
            drawn = np.array([float(row[key]) for row in rows if row["workload"] == name])
            fitted = FITTED["posterior"]["gains"][name][structure]
            assert drawn.mean() == pytest.approx(fitted["mean"], abs=2e-4), (name, structure)
            assert drawn.std() == pytest.approx(fitted["sd"], abs=1e-3), (name, structure)
