"""The fit finds what is to be found, and writes what it found."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit.constants import (
    ACCURACY,
    AGGREGATION_SD,
    STRUCTURE_SD,
    QualityLayout,
    layout_of,
    middle_cost_rate,
    outcomes,
    time_prior,
    with_constants,
    with_facts,
)
from benchmarks.fit.measured import (
    DRAWS,
    FITTED,
    Fit,
    Posterior,
    accuracy_noise,
    contrasts,
    draw,
    gains_table,
    to_csv,
    write,
)
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import Constants, load_constants, predict
from inframind_gym.configs import find_config
from inframind_gym.simulator.item_response import ability_of
from inframind_gym.simulator.workflow.topology import STRUCTURES
from inframind_gym.simulator.workload import load_workload

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


def test_ability_is_that_of_the_accuracy_over_all_difficulties() -> None:
    assert ability_of(0.5, 1.43) == pytest.approx(0.0, abs=1e-6)
    z = np.random.default_rng(0).standard_normal(200_000)
    right = 1.0 / (1.0 + np.exp(-(ability_of(0.8, 1.43) - 1.43 * z)))
    assert right.mean() == pytest.approx(0.8, abs=0.003)


def test_every_constant_has_a_name_and_a_place(start: Constants) -> None:
    layout = layout_of(start)
    names = layout.names()
    time, time_precision = time_prior(layout)
    able, able_precision = layout.quality.prior()
    assert len(time) == len(time_precision) == layout.num_time
    assert len(able) == len(able_precision)
    assert len(names) == len(set(names)) == len(time) + len(able) == 113
    x = np.concatenate([time, able])
    assert list(layout.values(x)) == names
    moved = x.copy()
    moved[names.index("mbpp: qwen-14b: output_tokens_median")] = np.log(77.0)
    moved[names.index("gsm_hard: llama-3b: ability")] = -3.0
    moved[names.index("humaneval: difficulty_sd")] = np.log(0.9)
    moved[names.index("colocation_slowdown")] = np.log(0.5)
    moved[names.index("sigma_call")] = np.log(0.6)
    moved[names.index("strategy_factor.DeepThink")] = np.log(1.7)
    moved[names.index("math: final_factor")] = np.log(0.3)
    moved[names.index("math: structure_gain.debate")] = -0.4
    moved[names.index("mbpp: strategy_gain.Flash")] = 0.6
    moved[names.index("mbpp: aggregation_gain")] = 0.9
    made = with_constants(start, layout, moved)
    assert made.profiles["mbpp"].models["qwen-14b"].output_tokens_median == pytest.approx(77.0)
    published = ability_of(ACCURACY["gsm_hard"][4], outcomes()["difficulty_sd"])
    assert made.profiles["gsm_hard"].models["llama-3b"].ability == pytest.approx(published - 3.0)
    humaneval = made.profiles["humaneval"]
    assert humaneval.quality.difficulty_sd == pytest.approx(0.9)
    # At every spread, an ability that is not moved gives the published accuracy.
    assert humaneval.models["qwen-14b"].ability == pytest.approx(
        ability_of(ACCURACY["humaneval"][2], 0.9)
    )
    assert {gpu.colocation_slowdown for gpu in made.pool.gpus} == {0.5}
    assert {profile.output.sigma_call for profile in made.profiles.values()} == {0.6}
    factors = {p.output.strategy_factor["DeepThink"] for p in made.profiles.values()}
    assert [round(factor, 9) for factor in factors] == [1.7]
    assert made.profiles["math"].output.final_factor == pytest.approx(0.3)
    assert made.profiles["mbpp"].output.final_factor == pytest.approx(1.0)
    assert made.profiles["math"].quality.structure_gain["debate"] == -0.4
    assert made.profiles["gsm_hard"].quality.structure_gain["debate"] == 0.0
    assert made.profiles["mbpp"].quality.strategy_gain == {
        "Flash": 0.6,
        "Concise": 0,
        "DeepThink": 0.1,
    }
    assert made.aggregation_gains == {**dict.fromkeys(DATASETS, 0.0), "mbpp": 0.9}
    np.testing.assert_allclose(layout.vector(layout.values(moved)), moved, atol=1e-9)


def test_facts_are_the_mixes_of_the_middle_cost_rate(start: Constants) -> None:
    cells = [cell(cost_rate=rate) for rate in (5.0, 15.0)] + [cell(20.0), cell(50.0)]
    assert [c.arrival_rate_per_min for c in middle_cost_rate(cells)] == [20.0, 50.0]
    found = with_facts(Constants(start.pool, {"math": start.profiles["math"]}), cells).profiles[
        "math"
    ]
    assert found.models["qwen-14b"].share == 0.75
    assert found.planner.topologies["IO"] == 0.6
    assert found.planner.num_agents == {3: 1.0}
    assert found.agents.role_calls
    assert found.quality.latent_correlation == outcomes()["latent_correlation"]
    assert found.quality.truncated_right_frac == outcomes()["truncated_right_frac"]
    assert found.output.difficulty_slope == outcomes()["difficulty_slope"]


def test_shipped_files_hold_the_fit_on_file(start: Constants) -> None:
    """Up to the rounding of the YAML files; the fidelity page shows errors of these constants."""
    fitted = json.loads((FITTED / "b200-2gpu.json").read_text("utf-8"))["values"]
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


def test_the_fit_on_file_is_written_as_the_shipped_files(start: Constants, tmp_path: Path) -> None:
    layout = layout_of(start)
    fitted = json.loads((FITTED / "b200-2gpu.json").read_text("utf-8"))["values"]
    write(with_constants(start, layout, layout.vector(fitted)), tmp_path)
    assert not changed_lines(tmp_path)


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
    layout = layout_of(only_math)
    truth = layout.vector({})
    truth[:5] += 0.3
    plain = [cell(rate) for rate in (5.0, 60.0)]
    said = predict(plain, with_constants(only_math, layout, truth), 3)
    cells = [
        cell(c.arrival_rate_per_min, latency_s=p.latency_s)
        for c, p in zip(plain, said, strict=True)
    ]
    fit = Fit(cells, only_math)
    fit.run()
    found = predict(cells, fit.constants(), 3)
    for c, p in zip(cells, found, strict=True):
        assert p.latency_s["mean"] == pytest.approx(c.latency_s["mean"], rel=0.05)


def test_published_scores_place_models_as_well_as_the_docs_say() -> None:
    """Over the shipped workloads: the figures of docs/surrogate.md, "Models of your own"."""
    workloads = {name: load_workload(name).profile for name in ACCURACY}
    fitted = {name: [m.ability for m in of.models.values()] for name, of in workloads.items()}
    missed = np.array(
        [
            np.subtract(fitted[name], [ability_of(a, of.quality.difficulty_sd) for a in scores])
            for (name, of), scores in zip(workloads.items(), ACCURACY.values(), strict=True)
        ]
    )
    assert np.sqrt((missed**2).mean()) == pytest.approx(0.51, abs=0.005)
    assert np.sqrt(missed.var(axis=1, ddof=1).mean()) == pytest.approx(0.22, abs=0.005)
    elsewhere = [
        own - other - np.delete(np.subtract(fitted[to], fitted[of]), m).mean()
        for of in fitted
        for to in fitted
        if to != of
        for m, (own, other) in enumerate(zip(fitted[to], fitted[of], strict=True))
    ]
    assert np.sqrt(np.square(elsewhere).mean()) == pytest.approx(0.90, abs=0.005)


# The posterior of quality


LAYOUT = QualityLayout(("math", "gsm_hard", "mbpp"), ("Math", "Math", "Code"), tuple("abcde"))


def cell_of(
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


def test_pairs_of_draws_have_exact_moments() -> None:
    posterior = posterior_of([cell_of("mas", "math", 0.6)] * 5, 0.05)
    enough = 2 * len(posterior.mean)
    draws = draw(posterior, enough)
    np.testing.assert_allclose(draws[:16].mean(axis=0), posterior.mean, atol=1e-9)
    away = draws - posterior.mean
    np.testing.assert_allclose(away.T @ away / enough, posterior.covariance, atol=1e-9)
    fewer = draw(posterior, enough - 2)
    assert np.linalg.matrix_rank(fewer - posterior.mean) == enough // 2 - 1


def test_contrasts_and_gains_are_weighted_means() -> None:
    cells = [
        cell_of("mas", "gsm_hard", a, rate) for a, rate in ((0.6, 5.0), (0.5, 10.0), (0.55, 15.0))
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
    posterior = posterior_of([cell_of("mas", "math", 0.6)], 0.05)
    text = to_csv(LAYOUT, posterior.mean[None] + 0.125)
    comment, *lines = text.splitlines()
    assert comment.startswith("#")
    rows = list(csv.DictReader(lines))
    assert [row["workload"] for row in rows] == list(LAYOUT.datasets)
    assert float(rows[2]["quality.structure_gain.chain"]) == 0.125
    assert float(rows[0]["quality.strategy_gain.Flash"]) == pytest.approx(-0.175)
    assert "models.b.ability" in rows[0] and not any("aggregation" in key for key in rows[0])


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
