"""Records of boards and the pages that are made of them; the benchmark of speed."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import agents
from benchmarks.results import read_board, record, refresh_pages, scenarios_table
from benchmarks.speed import measure
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.scenarios import Fit, add_fits
from tests.evaluation.test_tracks import suite

ROOT = Path(__file__).resolve().parents[2]


def test_committed_pages_are_up_to_date_with_the_records() -> None:
    refreshed = (of(ROOT / "docs", check=True) for of in (refresh_pages, agents.refresh_pages))
    assert not any(refreshed), "run `python -m benchmarks results`"


def test_a_record_has_the_board_and_every_episode(tmp_path: Path) -> None:
    """Of a run of two policies, one of them trained twice."""
    (folder := tmp_path / "results").mkdir()
    trainings = ("static:llama-3b:Flash", "static:llama-8b:Flash")
    fits = {"random": {"mine/plain": Fit(policy=trainings, queries=7)}}
    add_fits(folder / "refits.yaml", 10, fits)
    run(suite(folder, refits=str(folder / "refits.yaml"), loads=[0.5]), folder / "standard")
    out = record(folder / "standard", tmp_path)
    board, whole = read_board("standard", tmp_path), leaderboard(load_results(folder / "standard"))
    for row, other in zip(board["tracks"], whole["tracks"], strict=True):
        assert row["score"] == pytest.approx(other["score"], rel=1e-5)
        assert row["score_ci95"] == pytest.approx(other["score_ci95"], rel=1e-4)
    assert board["pairs"] == whole["pairs"] and board["fits"] == whole["fits"]
    text = gzip.decompress((out / "episodes.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == board["origin"]["episodes"] == 2 * (2 + 1) + 2 * 2
    for at in board["rows"]:
        own = [
            float(row["goodput"])
            for row in rows
            if (row["policy"], row["scenario"]) == (at["policy"], at["scenario"])
        ]
        assert at["goodput"] == pytest.approx(np.mean(own), rel=1e-5)
    assert {row["training"] for row in rows} == {"0", "1"}
    before = {path: path.read_bytes() for path in out.iterdir()}
    record(folder / "standard", tmp_path)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert "mine/plain" in scenarios_table(board)


def test_a_figure_of_speed_is_measured_here_and_there() -> None:
    (row,) = measure(["import"], 1, ".")
    assert row[0] == "import inframind_gym"
    assert all(cell.endswith(" s") for cell in row[1:3])
    assert float(row[3].partition(" ")[0]) > 0.0


def test_a_training_is_recorded_by_update(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inframind train ppo_lagrangian"):
        agents.record([tmp_path], tmp_path)
    lines = ({"step": 9, "lagrange/mu": 0.001}, {"step": 9, "validation/goodput": 0.75})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    agents.record([tmp_path], tmp_path)
    [row] = agents.read(tmp_path)
    assert (row["queries"], row["lagrange/mu"], row["validation/goodput"]) == ("9", "0.001", "0.75")
