import dataclasses
import json
from pathlib import Path

import pytest

from inframind_gym.benchmark.cells import batches, cell_id, grid, in_order
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.benchmark.suite import (
    load_suite,
    parse_arrivals,
    parse_numbers,
    parse_seeds,
    split_list,
)
from inframind_gym.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
CELL = RoutingCell("random", "mixed", 100.0, 30.0, 0)


def suite(**changes: object) -> RoutingSuite:
    content: dict[str, object] = {
        "name": "test",
        "policies": ["a", "b"],
        "workloads": ["w"],
        "rates_per_min": [10, 100],
        "budgets_s": [30, "tiers"],
        "seeds": 3,
    }
    return RoutingSuite.model_validate({**content, **changes})


def test_grid_is_the_product_of_the_axes() -> None:
    cells = grid(suite())
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 3
    assert cells[0] == RoutingCell("a", "w", 10.0, 30.0, 0)


def test_policies_meet_the_same_sweep_and_other_cells_another() -> None:
    other = dataclasses.replace(CELL, policy="static")
    assert other.episode_seed == CELL.episode_seed
    changed = [
        dataclasses.replace(CELL, workload="math"),
        dataclasses.replace(CELL, rate_per_min=10.0),
        dataclasses.replace(CELL, budget_s="tiers"),
        dataclasses.replace(CELL, seed=1),
    ]
    assert len({cell.episode_seed for cell in [CELL, *changed]}) == 5
    assert CELL.policy_seed != CELL.episode_seed
    assert CELL.episode_seed == 714190615  # part of the results' definition: a change changes them
    math = RoutingCell("random", "math", 100.0, "tiers", 3)
    assert (math.episode_seed, math.policy_seed) == (1165796508, 1141034651)


def test_cell_id_covers_everything_that_determines_the_result() -> None:
    ids = {
        cell_id(CELL, "s", "p"),
        cell_id(CELL, "s2", "p"),
        cell_id(CELL, "s", "p2"),
        cell_id(dataclasses.replace(CELL, policy="static"), "s", "p"),
        cell_id(dataclasses.replace(CELL, seed=1), "s", "p"),
    }
    assert len(ids) == 5
    again = RoutingCell.from_json(json.loads(json.dumps(CELL.to_json())))
    assert again == CELL
    assert cell_id(again, "s", "p") == cell_id(CELL, "s", "p")


def test_batches_hold_every_cell_once_and_share_policy_and_workload() -> None:
    cells = grid(suite())
    made = batches(cells, 4)
    assert sorted((c for b in made for c in b), key=str) == sorted(cells, key=str)
    for batch in made:
        assert len(batch) <= 4
        assert len({(c.policy, c.workload) for c in batch}) == 1


@pytest.mark.parametrize("name", ["quick", "standard", "paper"])
def test_shipped_suites_are_valid(name: str) -> None:
    loaded = load_suite(name)
    assert loaded.name == name
    assert len(loaded.seed_list) >= 5


def test_paper_suite_is_the_published_grid() -> None:
    paper = load_suite("paper")
    assert set(paper.workloads) == {"math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro"}
    assert paper.budgets_s == (10, 30, 50, 100, 200, 300, 600, 1000)
    assert (paper.num_queries, paper.execution) == (500, "sequential")


def test_workloads_may_have_budgets_and_lengths_of_their_own() -> None:
    """Those of the published runs: HumanEval has 131 questions, MATH met more budgets."""
    suite = load_suite("results_published")
    assert suite.budgets_of("math") == (10, 30, 50, 100, 200, 300, 600, 1000)
    assert suite.budgets_of("humaneval") == (30, 50, 100, 200, 300)
    places = list(suite.places())
    assert len(places) == len(set(places)) == 4 * (8 + 4 * 5)
    assert ("humaneval", 10, 1000) not in places
    assert (suite.queries_of("humaneval"), suite.queries_of("math")) == (131, 500)
    humaneval = next(cell for cell in grid(suite) if cell.workload == "humaneval")
    assert suite.length(humaneval) == 131
    short = load_suite("results_published", {"num_queries": 7})
    assert (short.queries_of("humaneval"), short.queries_of("math")) == (7, 7)
    assert short.budgets_of("math") == suite.budgets_of("math")


def test_a_workload_has_no_budget_twice_and_no_other_settings() -> None:
    with pytest.raises(ConfigError, match=r"by_workload.math.budgets_s.*more than once"):
        load_suite("quick", {"by_workload": {"math": {"budgets_s": [10, 10]}}})
    with pytest.raises(ConfigError, match=r"by_workload.math.rates.*budgets_s, num_queries"):
        load_suite("quick", {"by_workload": {"math": {"rates": [10]}}})


def test_a_file_goes_by_its_name_wherever_it_lies() -> None:
    """Cells, and with them seeds and results, are the same in every folder."""
    shipped = suite(workloads=["math"])
    for path in ("math.yaml", "a/math.yaml", "/b/c/math.yml"):
        assert grid(suite(workloads=[path])) == grid(shipped), path
    assert grid(suite(workloads=["a/v1.5.yaml"]))[0].workload == "v1.5"
    mine = suite(workloads=["mbpp", "a/math.yaml"])
    assert mine.names("workloads") == ("mbpp", "math")
    assert mine.source("workloads", "math") == "a/math.yaml"


def test_a_resolved_suite_does_not_depend_on_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run.json replays from anywhere."""
    for kind, name in (("workloads", "math"), ("pools", "b200-2gpu")):
        text = (ROOT / "envs_configs" / kind / f"{name}.yaml").read_text()
        (tmp_path / f"my-{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    mine = suite(policies=["random"], workloads=["my-math.yaml", "mbpp"], pool="my-b200-2gpu.yaml")
    made = mine.resolve()
    assert made.workloads == (str(tmp_path / "my-math.yaml"), "mbpp")
    assert made.pool == str(tmp_path / "my-b200-2gpu.yaml")
    assert suite(policies=["random"], workloads=["math"]).resolve().pool == "b200-2gpu"


def test_two_files_of_one_name_are_refused() -> None:
    for workloads in (["a/math.yaml", "b/math.yaml"], ["math", "b/math.yaml"]):
        with pytest.raises(ValueError, match=r"workloads\n.*b/math.yaml are both called 'math'"):
            suite(workloads=workloads)
    with pytest.raises(ConfigError, match=r"workloads: a/x.yaml and b/x.yaml are both.*Rename"):
        load_suite("quick", {"workloads": ("a/x.yaml", "b/x.yaml")})


def test_a_workload_that_is_a_file_has_settings_of_its_own_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: t\npolicies: [random]\nworkloads: [own/math.yaml, mbpp]\nrates_per_min: [5]\n"
        "budgets_s: [30]\nby_workload: {math: {num_queries: 7, budgets_s: [10, 20]}}\n"
    )
    loaded = load_suite(str(path))
    assert (loaded.queries_of("math"), loaded.queries_of("mbpp")) == (7, None)
    assert list(loaded.places()) == [("math", 5, 10), ("math", 5, 20), ("mbpp", 5, 30)]


def test_a_workload_that_a_suite_does_not_play_has_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text(
        "name: t\npolicies: [random]\nworkloads: [math]\nrates_per_min: [5]\n"
        "budgets_s: [30]\nby_workload: {maths: {num_queries: 7}}\n"
    )
    with pytest.raises(ConfigError, match=r"by_workload: unknown workload 'maths'.*math"):
        load_suite(str(path))


def test_suite_files_can_be_anywhere_and_options_replace_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\npolicies: [random]\nworkloads: [math]\nrates_per_min: [5]\n"
        "budgets_s: [30, tiers]\nseeds: [3, 9]\nnum_queries: 7\n"
    )
    loaded = load_suite(str(path), {"rates_per_min": (50.0,), "num_queries": None})
    assert loaded.seed_list == (3, 9)
    assert loaded.rates_per_min == (50.0,)
    assert loaded.num_queries == 7
    assert loaded.budgets_s == (30.0, "tiers")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rates_per_min": [0]}, "rates_per_min"),
        ({"budgets_s": [float("nan")]}, "budgets_s"),
        ({"seeds": 0}, "seeds"),
        ({"policies": []}, "policies"),
        ({"policies": ["a", "a"]}, "more than once"),
        ({"num_queries": 0}, "num_queries"),
    ],
)
def test_bad_overrides_are_errors_that_name_the_setting(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_suite("quick", change)


def test_a_typo_in_a_suite_names_file_key_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text("name: t\npolicies: [random]\nworkload: [mixed]\n")
    with pytest.raises(ConfigError, match=r"typo.yaml:3: workload.*workloads"):
        load_suite(str(path))
    with pytest.raises(ConfigError, match="quick"):
        load_suite("quik")


def test_options_are_parsed() -> None:
    assert split_list(" a, b:C ,") == ("a", "b:C")
    assert parse_numbers("--budgets", "30,tiers", words=("tiers",)) == (30.0, "tiers")
    assert parse_seeds("5") == 5
    assert parse_seeds("0,1") == (0, 1)
    assert parse_seeds("7,") == (7,)
    assert parse_arrivals("burst") == "burst"
    assert parse_arrivals('{"kind": "burst", "factor": 3}') == {"kind": "burst", "factor": 3}
    assert parse_arrivals(None) is parse_seeds(None) is parse_numbers("--rates", None) is None


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "ten"])
def test_rates_and_budgets_must_be_positive_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="--rates"):
        parse_numbers("--rates", f"10,{text}")


def test_other_bad_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="--seeds"):
        parse_seeds("five")
    with pytest.raises(BenchmarkError, match="JSON"):
        parse_arrivals("{kind: burst}")
    with pytest.raises(BenchmarkError, match="no file"):
        parse_arrivals(str(tmp_path / "none.csv"))


def test_numbers_in_names_are_sorted_as_numbers_and_tiers_come_last() -> None:
    places = [
        ("gpu16", 50.0, "tiers"),
        ("gpu4", 200.0, 30.0),
        ("gpu16", 50.0, 300.0),
        ("gpu", 1, 1),
    ]
    assert sorted(places, key=in_order) == [places[3], places[1], places[2], places[0]]
