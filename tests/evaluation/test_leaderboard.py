from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.compare import Side, compare
from inframind_gym.evaluation.queries import imbalance
from inframind_gym.evaluation.suite import load_suite
from tests.evaluation.synthetic_results import completed, drawn, routing, write_folder

QUALITY = {"good": (0.8, 0.5), "bad": (0.6, 1.0)}
CELLS = [
    routing(policy, "w", rate, budget, seed)
    for policy in QUALITY
    for rate in (10.0, 100.0)
    for budget in (30.0, "tiers")
    for seed in range(5)
]


def make(cell: Cell) -> np.ndarray:
    return drawn(cell, *QUALITY[cell.policy])


def test_a_row_can_be_computed_by_hand(tmp_path: Path) -> None:
    cell = routing("good", "w", 10.0, 30.0, 0)
    latency_s = np.array([5.0, 20.0, 40.0, 120.0])
    write_folder(tmp_path, [cell], lambda _: completed(np.array([1, 0, 1, 1]), latency_s))
    (row,) = leaderboard(load_results(tmp_path), num_resamples=100)["rows"]
    found = [row[key] for key in ("policy", "workload", "rate_per_min", "budget_s")]
    assert found == ["good", "w", 10.0, 30.0]
    assert (row["records"], row["seeds"]) == (4, [0])
    assert row["accuracy"] == 0.75
    assert row["goodput"] == 0.25  # solved within 30 s: the first alone
    assert row["slo_own"] == 0.5
    assert [row[f"slo_{t}s"] for t in (10, 30, 50, 100, 200, 300)] == [0.25, 0.5, 0.75, 0.75, 1, 1]
    assert row["latency_mean_s"] == pytest.approx(46.25)
    assert row["latency_p95_s"] == pytest.approx(np.quantile(latency_s, 0.95))
    assert row["cost_ratio"] == pytest.approx(46.25 / 30)
    assert row["tokens_per_query"] == 150
    assert row["model_share"] == {"big": 1.0, "small": 0.0}
    assert row["strategy_share"] == {"Flash": 0.5, "Concise": 0.0, "DeepThink": 0.5}
    assert row["topology_share"]["IO"] == 1.0
    assert row["imbalance"] == 1.0


def test_imbalance_is_the_golden_number_of_the_specification() -> None:
    assert imbalance(np.array([2.0, 4, 1, 1])) == pytest.approx(0.612, abs=5e-4)
    assert imbalance(np.array([[3.0, 3, 3], [0, 0, 0]])) == pytest.approx([0, 0])


def test_unfinished_policies_are_ranked_on_what_all_have(tmp_path: Path) -> None:
    some = [c for c in CELLS if c.policy == "good" or (c.place[1] == 10.0 and c.seed < 3)]
    write_folder(tmp_path, some, make)
    board = leaderboard(load_results(tmp_path), num_resamples=200)
    assert [row["policy"] for row in board["ranking"]] == ["good", "bad"]  # the best goodput first
    assert {row["cells"] for row in board["ranking"]} == {2}
    for row in board["ranking"]:
        own = [r for r in board["rows"] if (r["policy"], r["rate_per_min"]) == (row["policy"], 10)]
        assert row["goodput"] == pytest.approx(np.mean([r["goodput"] for r in own]))
    assert {row["rate_per_min"] for row in board["by_rate"]} == {10.0}
    assert any("2 of 4 cells" in note for note in board["notes"])
    assert any("3 seeds" in note for note in board["notes"])
    assert len(board["rows"]) == 6


def test_a_run_ranks_its_own_cells_and_says_what_else_the_folder_holds(folder: Path) -> None:
    own: dict[str, Any] = {"policies": ("bad",), "budgets_s": (30.0,), "workloads": ("w",)}
    for rates, ranked in ((10.0,), ["bad", "good"]), ((10.0, 50.0), ["bad"]):  # good lacks 50
        suite = load_suite("starter", {**own, "rates_per_min": rates, "seeds": 2})
        board = leaderboard(load_results(folder).of(suite), num_resamples=50)
        assert sorted(row["policy"] for row in board["ranking"]) == ranked
        assert (board["cells"], board["missing"]) == (2 * len(ranked), {})
        assert f"holds {20 - board['cells']} more cells, of other runs: " in board["notes"][0]


def test_paired_differences_find_what_was_put_in(tmp_path: Path) -> None:
    write_folder(tmp_path, CELLS, make)
    results = load_results(tmp_path)
    found = compare(Side(results, "bad"), Side(results, "good"), num_resamples=2000)
    assert found["cells"] == 4
    latency = found["overall"]["latency_mean_s"]
    assert latency["difference"] == pytest.approx(latency["b"] - latency["a"])
    assert latency["difference"] == pytest.approx(-10.0, abs=1.5)  # 20 s mean, halved
    assert latency["difference_ci95"][0] <= latency["difference"] <= latency["difference_ci95"][1]
    low, high = found["overall"]["accuracy"]["difference_ci95"]
    assert low < 0.2 < high
    assert low > 0


def test_a_bound_holds_no_place_and_measures_the_others(tmp_path: Path) -> None:
    write_folder(tmp_path, CELLS, make, bounds=["good"])
    board = leaderboard(load_results(tmp_path), num_resamples=500)
    bound, other = board["ranking"]
    assert (bound["policy"], bound["bound"], other["bound"]) == ("good", True, False)
    assert other["of_bound"] == pytest.approx(other["goodput"] / bound["goodput"])
    assert other["of_bound_ci95"][0] < other["of_bound"] < other["of_bound_ci95"][1] < 1.0
    sheet, *_ = leaderboard_tables(board)
    assert [row[0] for row in sheet.rows] == ["", "1"]
    assert sheet.headings[-1] == "of bound %"
    assert {row for row, _ in sheet.best} == {1}
    assert "Not ranked, because it knows what contestants cannot: good." in sheet.caption
