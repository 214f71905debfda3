"""What is measured from outcomes is what they were made with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fit.constants import OUTCOMES
from benchmarks.fit.outcomes import cut_right_frac, read_outcomes, same_model_correlation
from inframind_gym.calibration.outcomes import fit_rasch

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "mmlu_pro_outcomes.csv.gz"


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
