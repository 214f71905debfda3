"""Metrics of trainings and boards reach JSON lines, TensorBoard and W&B."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.tracker import EVENTS, METRICS, track_board


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars of TensorBoard's event files: steps and values by tag."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read: Any = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    return {
        tag: [(one.step, float(one.tensor_proto.float_val[0])) for one in read.Tensors(tag)]
        for tag in read.Tags()["tensors"]
        if not tag.startswith("board/")
    }


def test_tensorboard_has_the_means_over_the_load(folder: Path) -> None:
    results = load_results(folder)
    board = leaderboard(results, num_resamples=50)
    for _ in range(2):  # again: in place of earlier events
        track_board(results, board, ["tensorboard"])
    found = events(folder / EVENTS)
    for row in board["ranking"]:
        ((step, value),) = found[f"{row['policy']}/goodput/mean"]
        assert (step, value) == (0, pytest.approx(row["goodput"]))
    rows = [row for row in board["by_rate"] if row["policy"] == "good"]
    wanted = [(int(row["rate_per_min"]), pytest.approx(row["goodput"])) for row in rows]
    assert found["good/goodput/by_rate"] == wanted
    lines = (folder / EVENTS / METRICS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 10, 100]


def test_wandb_has_tables_and_means(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    run = Mock(summary={})
    monkeypatch.setattr(wandb, "init", lambda **_: run)
    results = load_results(folder)
    board = leaderboard(results, num_resamples=50)
    monkeypatch.setattr(
        "inframind_gym.evaluation.report.page.write_report",
        lambda folders, out: out.write_text("<html>"),
    )
    track_board(results, board, ["wandb"])
    assert run.summary["good/goodput/mean"] in [row["goodput"] for row in board["ranking"]]
    shown = run.log.call_args.args[0]
    assert "report" in shown and len(shown) > 2 and run.finish.called
