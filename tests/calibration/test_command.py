"""`inframind calibrate` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.configs import load_yaml_model
from inframind_gym.simulator.server.pool import ServerCard
from tests.calibration.synthetic import card, rows, write

RUNNER = CliRunner()


def arguments(log: Path, folder: Path) -> list[str]:
    return [
        *("calibrate", str(log), "--max-num-seqs", "16", "--max-num-batched-tokens", "1024"),
        *("--out", str(folder / "cards" / "card.yaml"), "--report", str(folder / "report.json")),
    ]


def test_a_log_becomes_a_card_and_a_report(tmp_path: Path) -> None:
    log = write(tmp_path, rows(card()))
    done = RUNNER.invoke(app, [*arguments(log, tmp_path), "--fit-fraction", "0.4"])
    assert done.exit_code == 0, done.output
    assert "the 72 requests not fitted" in " ".join(done.output.split())
    found = load_yaml_model(tmp_path / "cards" / "card.yaml", ServerCard)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (16, 1024)
    figures = json.loads((tmp_path / "report.json").read_text())
    assert abs(figures["unseen"]["e2e_s"]["mean"]["error_pct"]) < 1.0
    assert figures["log"]["fitted"] == 48


def test_the_report_may_be_left_out(tmp_path: Path) -> None:
    log = write(tmp_path, rows(card(), requests=40))
    done = RUNNER.invoke(app, arguments(log, tmp_path)[:-2])
    assert done.exit_code == 0, done.output
    assert "report:" not in done.output
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "cards"}


def test_errors_are_said_in_words(tmp_path: Path) -> None:
    lines = rows(card())
    lines[5]["queued_ts"] = -1.0
    done = RUNNER.invoke(app, arguments(write(tmp_path, lines), tmp_path))
    assert done.exit_code == 2
    assert "log.jsonl, line 6: " in done.output
    assert "queued_ts: input should be greater than or equal to 0" in done.output
    assert not (tmp_path / "report.json").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    log = write(tmp_path, rows(card(), requests=40))
    (tmp_path / "cards").write_text("a file, not a folder")
    done = RUNNER.invoke(app, arguments(log, tmp_path))
    assert done.exit_code == 2
    assert "cannot be written" in done.output
