import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inframind_gym.evaluation.cli import app
from tests.evaluation.synthetic_results import drawn, routing, write_folder


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_is_one_object_and_nothing_else(folder: Path) -> None:
    code, out, err = call("leaderboard", folder, "--json")
    assert (code, err) == (0, "")
    assert {"policy", "workload", "rate_per_min", "budget_s"} <= set(json.loads(out)["rows"][0])
    code, out, err = call("compare", folder, "bad", "good", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["comparisons"]) == 1


def test_compare_takes_policies_or_folders(folder: Path) -> None:
    assert call("compare", folder, "bad", "good")[0] == 0
    code, out, _ = call("compare", folder, folder)
    assert code == 0
    assert all(f"Note: {name} is compared with itself.\n" in out for name in ("good", "bad"))
    mine = [routing(p, "w", 10.0, 30.0, seed) for p in ("good", "mine") for seed in range(5)]
    own = {"good": {"version": 1}, "mine": {"version": 1}}
    write_folder(folder.parent / "m", mine, lambda cell: drawn(cell, 0.7, 1.0), policies=own)
    code, out, _ = call("compare", folder, folder.parent / "m")
    assert code == 0 and "A = bad in" in out and "B = mine in" in out and "itself" not in out
    code, out, _ = call("compare", folder, folder, "bad", "good", "--json")
    assert code == 0
    assert json.loads(out)["comparisons"][0]["b"]["policy"] == "good"


def test_a_run_ranks_its_own_cells_and_who_played_them_all(tmp_path: Path) -> None:
    few = ("--set", "queries=10", "--set", "budgets=100")
    runs = (
        ("--policies=random", "--seeds=1", "--set", "rates=10"),
        ("--policies=spill", "--seeds=2", "--set", "rates=10"),  # `random` lacks a seed
        ("--policies=jsq", "--seeds=2", "--set", "rates=10"),  # `spill` played the same
        ("--policies=sq2", "--seeds=1", "--set", "rates=20"),
    )
    shown = []
    for options in runs:
        suite = ("--suite", "starter", "--workloads=math", "--out", tmp_path / "runs")
        code, out, _ = call("run", *suite, *options, *few, "--json")
        board = json.loads(out)
        assert code == 0 and board["missing"] == {}
        others = next((x.split()[2] for x in board["notes"] if "of other runs" in x), "0")
        shown.append(({row["policy"] for row in board["ranking"]}, board["cells"], int(others)))
    assert shown == [
        ({"random"}, 1, 0),
        ({"spill"}, 2, 1),
        ({"spill", "jsq"}, 4, 1),
        ({"sq2"}, 1, 5),
    ]


def test_a_report_is_put_into_its_folder_and_not_overwritten(folder: Path, tmp_path: Path) -> None:
    code, out, err = call("report", folder)
    assert (code, out, err) == (0, f"{folder / 'report.html'}\n", "")
    (folder / "report.html").write_text("mine")
    code, out, err = call("report", folder)
    assert code == 2 and "--force" in err and (folder / "report.html").read_text() == "mine"
    assert call("report", folder, "--force")[0] == 0
    assert "<html" in (folder / "report.html").read_text()
    assert call("report", folder, "--out", tmp_path / "other.html")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["leaderboard", "nowhere"], "does not exist"),
        (["compare", "FOLDER", "goood", "bad"], "Did you mean 'good'"),
        (["compare", "FOLDER"], "two policies"),
        (["compare", "no/where", "FOLDER"], "there is no folder no/where"),
        (["run", "--suite", "startr"], "Did you mean 'starter'"),
        (["run", "--set", "rates=0"], "rates_per_min"),
        (["run", "--set", "rates=1e3,1e9"], "rates_per_min.1"),
        (["run", "--set", "budgets=nan"], "budgets_s"),
        (["run", "--seeds", "x"], "seeds: must be a count"),
        (["run", "--seeds", "100001"], "from 1 to 10000 (5)"),
        (["run", "--set", "queries=0"], "num_queries: must be a number from 1 to 1e+06"),
    ],
)
def test_errors_are_one_line_without_a_traceback(
    folder: Path, arguments: list[str], message: str
) -> None:
    code, out, err = call(*(str(folder) if a == "FOLDER" else a for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and message in err
    assert len(err.splitlines()) == 1
