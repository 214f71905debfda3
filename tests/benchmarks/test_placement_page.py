"""The page of placement results."""

from pathlib import Path

import pytest

from benchmarks import placement_page as page
from benchmarks.placement_solver import SOLVERS
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.runner import run
from tests.benchmark.test_placement import suite


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placements")
    run(suite(policies=["random", "greedy", "everywhere"], num_decisions=20), path)
    return path


def test_the_page_shows_who_is_better_where(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = load_results(folder)
    monkeypatch.setattr(page, "OURS", "greedy")
    solved = [{"gpus": 4, "models": 6, **dict.fromkeys(SOLVERS, 1.5), "ortools": None}]
    text = page.write(results, tmp_path, solver=solved).read_text()
    assert "$" not in text
    assert "Seeds: 2 on h100-4gpu." in text
    assert "| 4 | 6 | 1.50 | 1.50 | 1.50 | 1.50 |  |" in text
    latency, slo = page.paired_sheets(results, "greedy")
    assert [row[:2] for row in slo.rows] == [
        ["h100-4gpu", "shifting"],
        ["h100-4gpu", "steady"],
        ["all", "mean"],
    ]
    assert latency.headings == ["cluster", "demand", "random"]
    [mean] = latency.rows[-1][2:]
    found = compare(Side(results, "random"), Side(results, "greedy"))["overall"]["call_latency_s"]
    assert f"{found['difference']:.1f} [" in mean
    assert mean.startswith("**") == (found["difference_ci95"][1] < 0.0)
