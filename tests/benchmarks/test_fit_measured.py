"""The fit finds what is to be found, and writes what it found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit import measured
from benchmarks.fit.facts import middle_cost_rate, with_facts
from benchmarks.fit.joint import Fit
from benchmarks.fit.layout import layout_of, time_prior, with_constants
from benchmarks.fit.measured import FITTED
from benchmarks.fit.quality import ACCURACY, outcomes
from benchmarks.fit.shipped import write
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import Constants, load_constants, predict
from inframind_gym.configs import find_config
from inframind_gym.simulator.item_response import ability_of
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
    math = with_facts(Constants(start.pool, {"math": start.profiles["math"]}), cells).profiles[
        "math"
    ]
    assert math.models["qwen-14b"].share == 0.75
    assert math.planner.topologies["IO"] == 0.6
    assert math.planner.num_agents == {3: 1.0}
    assert math.agents.role_calls
    assert math.quality.latent_correlation == outcomes()["latent_correlation"]
    assert math.quality.truncated_right_frac == outcomes()["truncated_right_frac"]
    assert math.output.difficulty_slope == outcomes()["difficulty_slope"]


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


def test_shipped_constants_are_written_as_the_shipped_files(
    start: Constants, tmp_path: Path
) -> None:
    write(start, tmp_path)
    assert not changed_lines(tmp_path)


def test_what_is_written_is_what_is_read(start: Constants, tmp_path: Path) -> None:
    cells = [cell()]
    facts = with_facts(Constants(start.pool, {"math": start.profiles["math"]}), cells)
    layout = layout_of(facts)
    made = with_constants(facts, layout, layout.vector({}))
    read = write(made, tmp_path)
    for ours, theirs in zip(made.pool.models, read.pool.models, strict=True):
        step = theirs.server.step.model_dump()
        assert step == pytest.approx(ours.server.step.model_dump(), rel=1e-3)
    ours_profile, theirs_profile = made.profiles["math"], read.profiles["math"]
    for field in ("planner", "prompt", "agents"):
        assert getattr(theirs_profile, field) == getattr(ours_profile, field), field
    for alias, of in theirs_profile.models.items():
        assert of.ability == pytest.approx(ours_profile.models[alias].ability, abs=0.006)
        assert of.share == pytest.approx(ours_profile.models[alias].share, abs=0.001)


def test_the_fit_returns_to_the_truth(start: Constants) -> None:
    """Cells made by the simulation itself, with slower servers than the fit starts from."""
    math = Constants(start.pool, {"math": start.profiles["math"]})
    layout = layout_of(math)
    truth = layout.vector({})
    truth[:5] += 0.3
    plain = [cell(rate) for rate in (5.0, 60.0)]
    said = predict(plain, with_constants(math, layout, truth), 3)
    cells = [
        cell(c.arrival_rate_per_min, latency_s=p.latency_s)
        for c, p in zip(plain, said, strict=True)
    ]
    fit = Fit(cells, math)
    fit.run()
    found = predict(cells, fit.constants(), 3)
    for c, p in zip(cells, found, strict=True):
        assert p.latency_s["mean"] == pytest.approx(c.latency_s["mean"], rel=0.05)


def test_a_fit_without_a_rate_is_made_once(
    start: Constants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    math = Constants(start.pool, {"math": start.profiles["math"]})
    cells = [cell(10.0), cell(50.0)]
    made = Fit(cells[1:], math)
    monkeypatch.setattr(made, "run", lambda: None)
    monkeypatch.setattr(measured, "Fit", lambda *_, **__: made)
    found = measured.left_out(cells, math, 10.0, tmp_path)
    assert found["mas"]["cells"] == 1
    monkeypatch.setattr(measured, "Fit", None)  # a second fit would fail
    assert measured.left_out(cells, math, 10.0, tmp_path) == found
    with pytest.raises(TypeError):
        measured.left_out([*cells, cell(90.0)], math, 10.0, tmp_path)


def test_a_neutral_prior_knows_nothing_of_a_dataset(start: Constants) -> None:
    layout = layout_of(start)
    names = layout.names()
    mean, _ = time_prior(layout, neutral=True)
    places = [
        [names.index(f"{dataset}: {model}: output_tokens_median") for dataset in DATASETS]
        for model in start.pool.aliases
    ]
    for of_model in places:
        assert len(set(mean[of_model])) == 1


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
