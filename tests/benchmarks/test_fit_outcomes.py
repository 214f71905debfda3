"""What is measured from outcomes is what they were made with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit import outcomes as outcomes_module
from benchmarks.fit.constants import OUTCOMES
from benchmarks.fit.outcomes import (
    cut_right_frac,
    measure,
    read_outcomes,
    reading_gain,
    same_model_correlation,
)
from inframind_gym.calibration.outcomes import Outcomes, fit_rasch

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "mmlu_pro_outcomes.csv.gz"
QUESTIONS = 4000


def test_what_is_planted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    difficulty = 1.6 * rng.standard_normal(QUESTIONS)
    logit = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 0.2])[:, None] - difficulty
    z = rng.standard_normal(logit.shape)
    z[5] = 0.6 * z[4] + 0.8 * z[5]  # the last two are siblings
    uniform = 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2.0))
    chars = np.exp(5.0 + 0.125 * difficulty + 0.1 * rng.standard_normal(logit.shape))
    cut = rng.random(logit.shape) < 0.03
    chars[cut] = outcomes_module.CUT_CHARS + 1.0
    right = (uniform < np.where(cut, 0.3, 1.0) / (1.0 + np.exp(-logit))).astype(float)
    ids = [*map(str, range(QUESTIONS))]
    made = Outcomes(("a", "b", "c", "d", "one", "other"), tuple(ids), right, chars)
    rasch = fit_rasch(made)
    frac, cuts = cut_right_frac(made, rasch)
    assert (frac, cuts) == (pytest.approx(0.3, abs=0.08), cut.sum())
    monkeypatch.setattr(outcomes_module, "SIBLINGS", (("b", "c"),))
    assert same_model_correlation(made, rasch) < 0.15
    monkeypatch.setattr(outcomes_module, "SIBLINGS", (("one", "other"),))
    assert same_model_correlation(made, rasch) == pytest.approx(0.6, abs=0.1)
    embeddings = np.vstack([rng.standard_normal((QUESTIONS, 8)), np.zeros(8)])
    embeddings[:-1, 0] = difficulty
    order = rng.permutation(QUESTIONS + 1)
    monkeypatch.setattr(outcomes_module, "POOLS", {"pair": {"a": 8.0, "b": 8.0}})
    table, direction = measure(made, [[*ids, "unknown"][i] for i in order], embeddings[order])
    assert table["embedding_difficulty_r2"]["value"] > 0.5 and direction[0] > 0.99
    assert table["difficulty_slope"]["value"] > 0.05


def test_reading_is_worth_what_the_text_tells_of_specialists() -> None:
    rng = np.random.default_rng(0)
    topic, text = rng.integers(0, 2, QUESTIONS), rng.standard_normal((QUESTIONS, 8))
    right = (rng.random((2, QUESTIONS)) < np.where(topic == [[0], [1]], 0.8, 0.4)).astype(float)
    reading, knowing = reading_gain(right, text, np.ones(2))
    assert abs(reading) < 0.03  # the text says nothing of the topic
    assert knowing == pytest.approx(1.0 - 0.2 * 0.6 - 0.6, abs=0.03)
    reading, _ = reading_gain(right, text + 9.0 * topic[:, None], np.ones(2))
    assert reading == pytest.approx(0.2, abs=0.03)


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
