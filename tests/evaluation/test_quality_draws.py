"""Boards over draws of what is uncertain of quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, load_results
from inframind_gym.evaluation.compare import Side, compare
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import without_draw

DRAWS = 3


def suite(**changes: Any) -> RoutingSuite:
    content = {
        "name": "small",
        "policies": ["random", "least_loaded", "round_robin"],
        "workloads": ["math", "mbpp"],
        "quality_draws": DRAWS,
        "rates_per_min": [20, 200],
        "budgets_s": [30],
        "seeds": 2,
        "num_queries": 12,
        "by_workload": {"mbpp": {"num_queries": 8}},
    }
    return RoutingSuite.model_validate({**content, **changes}).resolve()


def test_all_draws_meet_the_episodes_of_the_workload() -> None:
    drawn = [cell for cell in suite().cells() if cell.policy == "random"]
    plain = [cell for cell in suite(quality_draws=None).cells() if cell.policy == "random"]
    assert len(drawn) == DRAWS * len(plain)
    for cell in plain:
        its = [
            other
            for other in drawn
            if (without_draw(other.place)[0], other.seed) == (cell.place, cell.seed)
        ]
        assert [other.place[0] for other in its] == [f"{cell.place[0]}#{d}" for d in range(DRAWS)]
        assert {other.episode_seed for other in its} == {cell.episode_seed}
        assert {other.policy_seed for other in its} == {cell.policy_seed}
    assert suite().queries_of("mbpp#1") == 8
    assert "quality_draws" not in suite(quality_draws=None).settings()


def test_a_board_counts_the_draws_in_which_an_order_holds(tmp_path: Path) -> None:
    run(suite(), tmp_path)
    results = load_results(tmp_path)
    board = leaderboard(results, num_resamples=50)
    assert len(board["rows"]) == 3 * 2 * 2 * DRAWS
    assert {row["cells"] for row in board["ranking"]} == {4}
    assert [row["workload"] for row in board["by_workload"]] == ["math"] * 3 + ["mbpp"] * 3
    score: dict[tuple[str, int], list[float]] = {}
    for row in board["rows"]:
        draw = int(row["workload"].split("#")[1])
        score.setdefault((row["policy"], draw), []).append(row["goodput"])
    for row, behind in zip(board["ranking"], board["ranking"][1:], strict=False):
        held = sum(
            np.mean(score[row["policy"], draw]) > np.mean(score[behind["policy"], draw])
            for draw in range(DRAWS)
        )
        assert row["ahead_of_next"] == {"draws_ahead": held, "draws": DRAWS}
        mean = np.mean([np.mean(score[row["policy"], draw]) for draw in range(DRAWS)])
        assert row["goodput"] == pytest.approx(mean)
    assert "ahead_of_next" not in board["ranking"][-1]
    counted = [row.get("ahead_of_next", {}).get("draws") for row in board["by_rate"]]
    assert counted == [DRAWS, DRAWS, None] * 2

    shown = CliRunner().invoke(app, ["bench", "leaderboard", str(tmp_path)]).output
    held = board["ranking"][0]["ahead_of_next"]["draws_ahead"]
    assert "ahead of next in" in " ".join(shown.split())
    assert f"{held}/{DRAWS}" in shown

    pair = compare(Side(results, "random"), Side(results, "least_loaded"), num_resamples=50)
    held = sum(
        np.mean(score["least_loaded", draw]) > np.mean(score["random", draw])
        for draw in range(DRAWS)
    )
    assert pair["b_ahead_of_a"] == {"draws_ahead": held, "draws": DRAWS}
    assert [row["workload"] for row in pair["rows"]] == ["math", "math", "mbpp", "mbpp"]
    said = CliRunner().invoke(app, ["bench", "compare", str(tmp_path), "random", "least_loaded"])
    assert f"in {held} of {DRAWS} draws" in " ".join(said.output.split())


def test_draws_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match="unknown draw"):
        suite(quality_draws=999)
    with pytest.raises(BenchmarkError, match="math#1 is a draw already"):
        suite(workloads=["math#1"], by_workload={})
    one = suite(workloads=["math#1"], quality_draws=None, by_workload={})
    assert {cell.place[0] for cell in one.cells()} == {"math#1"}
    assert without_draw(("mine", 1.0, 2.0)) == (("mine", 1.0, 2.0), None)
