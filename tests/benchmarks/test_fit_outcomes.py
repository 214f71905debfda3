"""What is measured from outcomes is what they were made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit import outcomes as outcomes_module
from benchmarks.fit.constants import OUTCOMES
from benchmarks.fit.outcomes import cut_right_frac, measure, read_outcomes, same_model_correlation
from inframind_gym.calibration.outcomes import Outcomes, Rasch, fit_rasch
from inframind_gym.errors import ConfigError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "mmlu_pro_outcomes.csv.gz"
QUESTIONS = 4000
ABILITY = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 0.2])
SD = 1.6
LATENT = 0.6  # between the last two models, as if they were siblings
CUT_RIGHT = 0.3


@pytest.fixture(scope="module")
def made() -> tuple[Outcomes, np.ndarray]:
    rng = np.random.default_rng(0)
    difficulty = SD * rng.standard_normal(QUESTIONS)
    logit = ABILITY[:, None] - difficulty
    z = rng.standard_normal(logit.shape)
    z[5] = LATENT * z[4] + math.sqrt(1.0 - LATENT**2) * z[5]
    uniform = 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2.0))
    chars = np.exp(5.0 + 0.2 * difficulty / SD + 0.1 * rng.standard_normal(logit.shape))
    cut = rng.random(logit.shape) < 0.03
    chars[cut] = outcomes_module.CUT_CHARS + 1.0
    share = np.where(cut, CUT_RIGHT, 1.0)
    right = (uniform < share / (1.0 + np.exp(-logit))).astype(float)
    right[0, :50] = np.nan
    names = ("a", "b", "c", "d", "one", "other")
    return Outcomes(names, tuple(map(str, range(QUESTIONS))), right, chars), difficulty


@pytest.fixture(scope="module")
def rasch(made: tuple[Outcomes, np.ndarray]) -> Rasch:
    return fit_rasch(made[0])


def test_the_spread_of_difficulty_is_found(made: tuple[Outcomes, np.ndarray], rasch: Rasch) -> None:
    # The siblings and the cut answers are beyond the model: the margins leave room for them.
    assert rasch.difficulty_sd == pytest.approx(SD, rel=0.15)
    np.testing.assert_allclose(rasch.ability, ABILITY, atol=0.2)
    assert np.corrcoef(rasch.difficulty, made[1])[0, 1] > 0.8


def test_the_agreement_of_siblings_is_found(
    made: tuple[Outcomes, np.ndarray], rasch: Rasch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "SIBLINGS", (("one", "other"),))
    assert same_model_correlation(made[0], rasch) == pytest.approx(LATENT, abs=0.1)
    monkeypatch.setattr(outcomes_module, "SIBLINGS", (("b", "c"),))
    assert same_model_correlation(made[0], rasch) < 0.15


def test_cut_answers_are_compared_with_what_was_expected_of_them(
    made: tuple[Outcomes, np.ndarray], rasch: Rasch
) -> None:
    frac, cuts = cut_right_frac(made[0], rasch)
    assert cuts == pytest.approx(0.03 * 6 * QUESTIONS, rel=0.1)
    assert frac == pytest.approx(CUT_RIGHT, abs=0.08)


def test_questions_are_matched_by_id(made: tuple[Outcomes, np.ndarray]) -> None:
    outcomes, difficulty = made
    rng = np.random.default_rng(3)
    embeddings = rng.standard_normal((QUESTIONS, 8))
    embeddings[:, 0] = difficulty
    ids = [*map(str, range(QUESTIONS)), "unknown"]
    order = rng.permutation(QUESTIONS + 1)
    rows = np.vstack([embeddings, np.zeros(8)])[order]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes_module, "SIBLINGS", (("one", "other"),))
        table, direction = measure(outcomes, [ids[i] for i in order], rows)
    assert table["embedding_difficulty_r2"]["value"] > 0.5
    assert direction[0] > 0.99
    assert table["difficulty_slope"]["value"] > 0.05
    with pytest.raises(ConfigError, match="no id in common"):
        measure(outcomes, ["x"], np.zeros((1, 8)))


def test_outcomes_are_read_with_their_gaps(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("id,model,correct,output_chars\nq1,m,1,10\nq2,m,0,20\nq1,n,0,30\n")
    read = read_outcomes(path)
    assert read.models == ("m", "n") and read.questions == ("q1", "q2")
    np.testing.assert_array_equal(read.right, [[1, 0], [0, np.nan]])
    path.write_text("id,model,correct\nq1,m,1\n")
    with pytest.raises(ConfigError, match="output_chars"):
        read_outcomes(path)
    path.write_text("id,model,correct,output_chars\n")
    with pytest.raises(ConfigError, match="no outcome"):
        read_outcomes(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(tmp_path / "none.csv")


@pytest.mark.skipif(not DATA.is_file(), reason="../shared is not beside the repository")
def test_the_shipped_quantities_are_those_of_the_data() -> None:
    said = json.loads(OUTCOMES.read_text())
    outcomes = read_outcomes(DATA)
    rasch = fit_rasch(outcomes)
    assert rasch.difficulty_sd == pytest.approx(said["difficulty_sd"]["value"], rel=2e-3)
    assert same_model_correlation(outcomes, rasch) == pytest.approx(
        said["latent_correlation"]["value"], abs=2e-3
    )
    assert cut_right_frac(outcomes, rasch)[0] == pytest.approx(
        said["truncated_right_frac"]["value"], abs=2e-3
    )
