"""Draws and checks of the posterior of answers' quality."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from benchmarks.fit.measured import FITTED
from benchmarks.fit.posterior import (
    DRAWS,
    Posterior,
    columns,
    contrasts,
    draw,
    gains_table,
    slice_samples,
    to_csv,
)
from benchmarks.fit.quality import (
    AGGREGATION_SD,
    STRUCTURE_SD,
    QualityLayout,
    accuracy_noise,
    accuracy_residuals,
)
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import Prediction
from inframind_gym.configs import find_config
from inframind_gym.simulator.workflow.topology import STRUCTURES
from inframind_gym.simulator.workload import load_workload

DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")
LAYOUT = QualityLayout(("math", "gsm_hard", "mbpp"), ("Math", "Math", "Code"), tuple("abcde"))


def cell(
    method: str, dataset: str, accuracy: float, cost_rate: float | None = None
) -> MeasuredCell:
    return MeasuredCell(
        source="f: c",
        method=method,
        dataset=dataset,
        arrival_rate_per_min=10.0,
        num_queries=500,
        accuracy=accuracy,
        latency_s={"mean": 1.0},
        cost_rate=cost_rate,
    )


def posterior_of(cells: list[MeasuredCell], sensitivity: float, weight: float = 1.0) -> Posterior:
    """One whose likelihood is nearly linear where `sensitivity` is small."""
    mean, precision = LAYOUT.prior()
    rng = np.random.default_rng(1)
    slope = sensitivity * rng.standard_normal((len(cells), len(mean)))
    inverse = np.linalg.inv(accuracy_noise(cells))
    hessian = weight * slope.T @ inverse @ slope + precision
    covariance = np.asarray(np.linalg.inv(hessian), np.float64)
    accuracy = np.array([c.accuracy for c in cells])
    return Posterior(LAYOUT, mean, covariance, accuracy, slope)


def test_the_prior_lets_datasets_of_a_domain_share_a_part() -> None:
    names, (_, precision) = LAYOUT.names(), LAYOUT.prior()
    covariance = np.linalg.inv(precision)
    assert len(names) == len(set(names)) == len(covariance)

    def of(first: str, second: str) -> float:
        return float(covariance[names.index(first), names.index(second)])

    debate = "structure_gain.debate"
    assert of(f"math: {debate}", f"math: {debate}") == pytest.approx(np.square(STRUCTURE_SD).sum())
    assert of(f"math: {debate}", f"gsm_hard: {debate}") == pytest.approx(STRUCTURE_SD[0] ** 2)
    assert of(f"math: {debate}", f"mbpp: {debate}") == pytest.approx(0.0, abs=1e-12)
    assert of(f"math: {debate}", "math: structure_gain.chain") == pytest.approx(0.0, abs=1e-12)


def test_residuals_have_the_noise_that_they_are_said_to_have() -> None:
    cells = [
        cell("mas", "math", 0.6),
        cell("inframind", "math", 0.6),
        cell("inframind", "math", 0.5),
    ]
    noise = accuracy_noise(cells)
    assert noise[0, 0] == pytest.approx(0.24 / 500 + 0.01**2)
    assert noise[1, 2] == pytest.approx(0.02**2)
    assert noise[0, 1] == 0.0
    said = [Prediction(c.accuracy + 0.03, {}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0) for c in cells]
    r = accuracy_residuals(cells, said)
    apart = np.full(3, 0.03)
    assert r @ r == pytest.approx(apart @ np.linalg.solve(noise, apart))
    assert r[0] == pytest.approx(0.03 / math.sqrt(noise[0, 0]))


def test_draws_have_the_mean_and_the_covariance() -> None:
    posterior = posterior_of([cell("mas", "math", 0.6)], 0.05)
    draws = draw(posterior, 4000)
    np.testing.assert_allclose(draws.mean(axis=0), posterior.mean, atol=1e-9)
    ratio = draws.var(axis=0) / np.diag(posterior.covariance)
    np.testing.assert_allclose(ratio, 1.0, atol=0.15)
    np.testing.assert_array_equal(draws, draw(posterior, 4000))


def test_pairs_of_draws_have_exact_moments() -> None:
    posterior = posterior_of([cell("mas", "math", 0.6)] * 5, 0.05)
    enough = 2 * len(posterior.mean)
    draws = draw(posterior, enough)
    np.testing.assert_allclose(draws[:16].mean(axis=0), posterior.mean, atol=1e-9)
    away = draws - posterior.mean
    np.testing.assert_allclose(away.T @ away / enough, posterior.covariance, atol=1e-9)
    fewer = draw(posterior, enough - 2)
    assert np.linalg.matrix_rank(fewer - posterior.mean) == enough // 2 - 1


def test_slice_sampling_finds_a_normal_posterior() -> None:
    cells = [cell("mas", "math", 0.6), cell("mas", "mbpp", 0.7)] * 10
    posterior = posterior_of(cells, 0.004)
    found = slice_samples(posterior, cells, steps=6000)
    sd = np.sqrt(np.diag(posterior.covariance))
    assert np.abs((found.mean(axis=0) - posterior.mean) / sd).max() < 0.35
    ratio = found.std(axis=0) / sd
    assert np.median(ratio) == pytest.approx(1.0, abs=0.1)
    # The check sees a covariance that is wrong: here the likelihood counts for nothing.
    loose = posterior_of(cells, 0.02, weight=0.0)
    tight = slice_samples(loose, cells, steps=2000).std(axis=0)
    assert np.median(tight / np.sqrt(np.diag(loose.covariance))) < 0.97


def test_contrasts_and_gains_are_weighted_means() -> None:
    cells = [
        cell("mas", "gsm_hard", a, rate) for a, rate in ((0.6, 5.0), (0.5, 10.0), (0.55, 15.0))
    ]
    posterior = posterior_of(cells, 0.05)
    first, second = contrasts(posterior, cells)
    assert first["measured"] == first["posterior"] == pytest.approx(-10.0)
    assert second["measured"] == pytest.approx(5.0)
    assert first["measured_sd"] == pytest.approx(100 * math.sqrt((0.24 + 0.25) / 500))
    slope = posterior.slope[1] - posterior.slope[0]
    expected = 100 * math.sqrt(slope @ posterior.covariance @ slope)
    assert first["posterior_sd"] == pytest.approx(expected)
    table = gains_table(posterior)
    assert set(table) == {*LAYOUT.datasets, "Math", "Code"}
    assert table["Math"]["debate"]["prior_sd"] == pytest.approx(
        math.hypot(STRUCTURE_SD[0], STRUCTURE_SD[1] / math.sqrt(2)), abs=1e-3
    )
    assert table["math"]["aggregation_gain"]["prior_sd"] == pytest.approx(
        math.hypot(*AGGREGATION_SD), abs=1e-3
    )


def test_a_table_of_draws_names_parameters_of_the_workload() -> None:
    posterior = posterior_of([cell("mas", "math", 0.6)], 0.05)
    text = to_csv(LAYOUT, posterior.mean[None] + 0.125)
    comment, *lines = text.splitlines()
    assert comment.startswith("#")
    rows = list(csv.DictReader(lines))
    assert [row["workload"] for row in rows] == list(LAYOUT.datasets)
    assert float(rows[2]["quality.structure_gain.chain"]) == 0.125
    assert float(rows[0]["quality.strategy_gain.Flash"]) == pytest.approx(-0.175)
    assert "models.b.ability" in rows[0] and not any("aggregation" in key for key in rows[0])
    assert len(columns(LAYOUT, "math")) == len(rows[0]) - 2


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


def test_the_shipped_draws_are_of_the_shipped_workloads() -> None:
    rows = shipped_draws()
    assert [(int(r["draw"]), r["workload"]) for r in rows] == [
        (n, name) for n in range(DRAWS) for name in DATASETS
    ]
    for name in DATASETS:
        own = [row for row in rows if row["workload"] == name]
        content = load_workload(name).model_dump()
        for key in list(rows[0])[2:]:
            value: object = content
            for part in key.split("."):
                assert isinstance(value, dict) and part in value, (name, key)
                value = value[part]
            drawn = np.array([float(row[key]) for row in own])
            assert drawn.std() > 0.0
            assert isinstance(value, float)
            # Medians: abilities and spread of difficulty are not linear in what is normal.
            off = abs(float(np.median(drawn)) - value)
            assert off < 0.4 * float(drawn.std()) + 0.01, (name, key)
