"""The report's figures, the card's provenance and the warnings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inframind_gym.calibration.report import (
    FIGURES,
    METRICS,
    card_yaml,
    compare,
    log_report,
    warnings,
)
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import Calibration, Limits, calibrate
from inframind_gym.configs import load_yaml_model
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from tests.calibration.synthetic import card, rows, write

STARVED = card(max_num_seqs=64, num_kv_blocks=240, max_model_len=1200)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    folder = tmp_path_factory.mktemp("log")
    return calibrate(read_log(write(folder, rows(card()))), Limits(16, 1024))


def test_figures_are_those_of_the_requests(calibration: Calibration) -> None:
    figures = log_report(calibration)
    json.dumps(figures, allow_nan=False)
    log = calibration.log
    for part, requests in (("all", slice(0, 120)), ("unseen", slice(60, 120))):
        assert set(figures[part]) == set(METRICS)
        e2e_s = (log.last_token_s - calibration.submit_s)[requests]
        predicted_s = (calibration.served["finish_s"] - calibration.submit_s)[requests]
        of = figures[part]["e2e_s"]
        assert set(of) == {*FIGURES, "mae_pct"}
        assert of["mean"]["measured"] == pytest.approx(e2e_s.mean())
        assert of["p95"]["predicted"] == pytest.approx(np.percentile(predicted_s, 95))
        assert of["mae_pct"] == pytest.approx(100 * np.abs(predicted_s / e2e_s - 1).mean())
    assert figures["parameters"]["count"] == len(figures["parameters"]["values"])
    assert figures["log"]["fitted"] == 60
    assert figures["warnings"] == []


def test_errors_have_a_sign() -> None:
    figures = compare(np.array([1.0, 3.0]), np.array([1.5, 3.5]))
    assert figures["mean"] == {"measured": 2.0, "predicted": 2.5, "error_pct": pytest.approx(25.0)}


def test_the_card_reads_as_a_card_and_says_where_it_is_from(
    calibration: Calibration, tmp_path: Path
) -> None:
    text = card_yaml(calibration)
    path = tmp_path / "card.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_yaml_model(path, ServerCard) == calibration.card
    for said in ("log.jsonl", calibration.log.sha256, "first 60 requests", "fit-fraction 0.5"):
        assert said in text
    count = len(calibration.parameters)
    assert f"parameters fitted or chosen: {count} (base_s" in text
    assert "e2e: mean" in text
    assert "num_kv_blocks was not given" in text
    assert "new tokens a step" in text


def test_the_load_and_what_it_leaves_open_are_said(tmp_path: Path) -> None:
    """Nothing is read off cached tokens, so the log cannot say how long that takes."""
    step = StepCost(base_s=0.01, per_new_token_s=4e-5)
    found = calibrate(read_log(write(tmp_path, rows(card(step=step)))), Limits(16, 1024))
    evidence = found.card.evidence
    assert evidence is not None
    assert evidence.sequences[1] == 16 < evidence.new_tokens[1] <= 1024
    assert "per_kv_token_s" in evidence.not_identified
    assert "base_s" not in evidence.not_identified
    assert log_report(found)["notes"][0].startswith("per_kv_token_s")


def test_starvation_without_a_known_cache_is_warned_of(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, rows(STARVED)))
    found = warnings(calibrate(log, Limits(64, 1024)))
    assert any("Give --num-kv-blocks" in text for text in found)
    hint = next(text for text in found if "up to about" in text).split("up to about ")[1]
    assert any("taken to be one that holds 2" in text for text in found)
    assert 200 < int(hint.split()[0]) < 300  # 239 were there
    assert warnings(calibrate(log, Limits(64, 1024, 240))) == []


def test_other_things_that_speak_against_the_options(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, rows(card())))
    found = warnings(calibrate(log, Limits(4, 1024)))
    assert any("taken to be 4 data-parallel engines" in text for text in found)
    lines = rows(card())
    for line in lines[10:]:
        line["arrival_time"] -= 20.0
        line["arrival_time"] = max(line["arrival_time"], lines[9]["arrival_time"])
    found = warnings(calibrate(read_log(write(tmp_path, lines)), Limits(16, 1024)))
    assert any("clocks drift apart" in text for text in found)
