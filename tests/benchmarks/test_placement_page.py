"""The page of placement results."""

import re
from pathlib import Path

from benchmarks.placement_page import tables
from inframind_gym.benchmark.compare import Side, compare
from inframind_gym.benchmark.results import load_results
from inframind_gym.benchmark.runner import run
from tests.benchmark.test_placement import suite

PAGE = Path(__file__).resolve().parents[2] / "docs" / "placement.md"


def test_the_page_shows_which_policy_is_better_at_each_place(tmp_path: Path) -> None:
    run(suite(policies=["random", "greedy", "everywhere"], num_decisions=20), tmp_path)
    results = load_results(tmp_path)
    found = tables(results, "greedy")
    assert set(re.findall(r"<!-- table: ([\w-]+)", PAGE.read_text())) == set(found)
    assert found["origin"].startswith("Seeds: 2 on h100-4gpu. ")
    head, _, *rows = found["latency"].splitlines()
    assert head == "| cluster | demand | random |"
    places = ["| h100-4gpu | shifting |", "| h100-4gpu | steady |", "| all | mean |"]
    assert [row.rpartition("|")[0].rpartition("|")[0] + "|" for row in rows] == places
    mean = compare(Side(results, "random"), Side(results, "greedy"))["overall"]["call_latency_s"]
    assert f"{mean['difference']:.1f} [" in rows[-1]
    assert ("**" in rows[-1]) == (mean["difference_ci95"][1] < 0.0)
