"""A workload fitted to a table of outcomes says what the table was made with."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from inframind_gym.calibration.outcomes import (
    Outcomes,
    fit_lengths,
    fit_rasch,
    hold_out,
    read_outcomes,
)
from inframind_gym.cli import app
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.workload import load_profiles, load_workload

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "mmlu_pro_outcomes.csv.gz"
ABILITY = np.array([-1.0, 0.3, 1.5, 0.0])
MEDIAN = np.array([50.0, 200.0, 900.0, 120.0])
SD, SLOPE, QUERY, CALL = 1.6, 0.2, 0.3, 0.4
QUESTIONS = 1500


def table(seed: int = 0) -> Outcomes:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(QUESTIONS)
    chance = 1.0 / (1.0 + np.exp(SD * z - ABILITY[:, None]))
    right = (rng.random(chance.shape) < chance).astype(float)
    log = np.log(MEDIAN)[:, None] + SLOPE * z + QUERY * rng.standard_normal(QUESTIONS)
    length = np.exp(log + CALL * rng.standard_normal(chance.shape))
    right[3, 700:] = np.nan
    return Outcomes(("a", "b", "c", "d"), tuple(f"q{i}" for i in range(QUESTIONS)), right, length)


@pytest.fixture(scope="module")
def made() -> Outcomes:
    return table()


def test_what_a_table_was_made_with_is_found_within_the_errors(made: Outcomes) -> None:
    rasch = fit_rasch(made)
    assert (np.abs(rasch.ability - ABILITY) < 3.0 * rasch.ability_error).all()
    assert (rasch.ability_error[:3] < 0.09).all() and rasch.ability_error[3] > 0.08
    assert abs(rasch.difficulty_sd - SD) < 3.0 * rasch.difficulty_sd_error < 0.3
    lengths = fit_lengths(made, rasch)
    assert (np.abs(lengths.median - MEDIAN) < 3.5 * lengths.median_error).all()
    found = (lengths.slope_pooled, lengths.sigma_query, lengths.sigma_call)
    assert found == pytest.approx((SLOPE, QUERY, CALL), abs=0.04)


def test_held_out_outcomes_are_predicted_within_chance(made: Outcomes) -> None:
    found = [hold_out(table(seed), 0.5, seed) for seed in range(8)]
    np.testing.assert_allclose(found[0].count / np.isfinite(made.right).sum(axis=1), 0.5, atol=0.05)
    in_sd = np.array([(of.predicted - of.measured) / of.chance_sd for of in found])
    assert np.sqrt((in_sd**2).mean()) == pytest.approx(1.0, abs=0.35)
    assert abs(in_sd.mean()) < 0.5
    assert (found[0].chance_sd < 0.04).all()


def test_extreme_tables_stay_finite() -> None:
    right = np.vstack([np.ones(40), np.zeros(40)])
    names = tuple(map(str, range(40)))
    rasch = fit_rasch(Outcomes(("best", "worst"), names, right, right + 10.0))
    assert np.isfinite([*rasch.ability, *rasch.ability_error, rasch.difficulty_sd]).all()
    assert accuracy(rasch.ability, rasch.difficulty_sd)[0] > 0.9
    alone = Outcomes(("one",), names, right[:1], right[:1] + 10.0)
    assert fit_lengths(alone, fit_rasch(alone)).sigma_call == 0.0


def test_columns_are_found_by_usual_names_or_by_those_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Question,LLM,is_correct,n,input_tokens\nwhy?,m,TRUE,10,30\nhow?,m,0,,50\n")
    with pytest.raises(ConfigError, match=r"no column of length.*--column length=NAME"):
        read_outcomes(path)
    with pytest.raises(ConfigError, match=r"no column domain.*--domain Math"):
        read_outcomes(path, {"length": "n"})
    read = read_outcomes(path, {"length": "n"}, "Math")["Math"]
    assert read.models == ("m",) and read.questions == ("how?", "why?")
    assert read.prompt_tokens == 40.0 and read.unit == "tokens"
    np.testing.assert_array_equal(read.length, [[np.nan, 10.0]])


def written(path: Path, made: Outcomes, domains: Sequence[str]) -> None:
    rows = ["query_id,model,correct,completion_tokens,domain"]
    for m, model in enumerate(made.models):
        for q in range(0, 400):
            if np.isfinite(made.right[m, q]):
                name = domains[q % len(domains)]
                rows.append(f"q{q},{model},{made.right[m, q]:.0f},{made.length[m, q]:.0f},{name}")
    with gzip.open(path, "wt") as file:
        file.write("\n".join(rows))


def test_a_table_of_several_domains_becomes_a_mix_that_works_from_any_folder(
    tmp_path: Path, made: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "o.csv.gz", made, ["Math", "Code"])
    monkeypatch.chdir(tmp_path)
    fit = ["workload", "fit", "o.csv.gz", "--out", "fitted/w.yaml"]
    Path("fitted").mkdir()
    done = CliRunner().invoke(app, fit)
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, fit)
    assert again.exit_code == 2 and "--force" in again.output
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    profiles = load_profiles(load_workload("../fitted/w.yaml"))
    assert {name: part.weight for name, part in profiles.items()} == {"o_math": 0.5, "o_code": 0.5}


@pytest.mark.skipif(not DATA.is_file(), reason="../shared is not beside the repository")
def test_held_out_outcomes_of_mmlu_pro_are_predicted_within_two_points() -> None:
    found = hold_out(read_outcomes(DATA, domain="Commonsense")["Commonsense"], 0.5)
    points = 100.0 * (found.predicted - found.measured)
    chance = 100.0 * found.chance_sd
    assert np.abs(points).mean() < 1.5
    assert np.sqrt((points**2).mean()) < 1.25 * np.sqrt((chance**2).mean())
