"""The results page, on results whose right numbers are known, and once through everything."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.results_page import evidence as evidence_module
from benchmarks.results_page.evidence import Evidence, gather
from benchmarks.results_page.page import blocks, revision, write
from benchmarks.results_page.plan import (
    PLAN,
    EntryRun,
    load_plan,
    runs_of,
    suites_of,
)
from benchmarks.results_page.plots import goodput_figure
from benchmarks.results_page.published import load_published
from benchmarks.results_page.records import Record, record_of
from benchmarks.results_page.scores import Scores, scores_of
from benchmarks.results_page.tables import summary_table
from benchmarks.results_page.targets import points
from benchmarks.results_page.trainings import trainings_of
from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.errors import ConfigError
from inframind_gym.policies import PolicyEntry, register_policy
from tests.benchmarks.synthetic_plan import fill_results, fluid, plan, suite


@pytest.fixture
def gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    fill_results(chosen, tmp_path / "results")
    return gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")


def test_targets_say_what_is_reached_and_where_it_is_missed(gathered: Evidence) -> None:
    beats, in_time, accurate, near, *effects = gathered.targets
    assert beats.met
    assert beats.reached == "8 of 8 paired differences are above 0"
    assert in_time.met
    assert accurate.met
    assert near.met is not None
    assert near.reached.endswith("]")
    assert [effect.reached[:27] for effect in effects][1:] == ["same direction in 4 of 4 ce"] * 2
    scores = gathered.scores["default"]
    assert scores.matrix("good", ("math", 10.0), "goodput").shape == (3, 3)
    assert scores.matrix("mas", ("math", 10.0), "goodput").shape == (1, 3)
    expected = np.mean([scores.draws("good", place, "goodput").value for place in scores.places])
    assert scores.mean("good", "goodput").value == pytest.approx(expected)


def test_a_missed_target_names_the_cells_and_by_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path, agent="paper")
    chosen = chosen.model_copy(
        update={
            "entries": tuple(
                e.model_copy(
                    update={"kind": {"good": "baseline", "paper": "agent"}.get(e.name, e.kind)}
                )
                for e in chosen.entries
            )
        }
    )
    fill_results(chosen, tmp_path / "results")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    beats, _, accurate, near, *_ = shown.targets
    assert (beats.met, accurate.met, near.met) == (False, False, False)
    assert beats.short.startswith("good on ")
    assert near.short.endswith("points short")


def test_the_page_has_every_table_and_figure(gathered: Evidence, tmp_path: Path) -> None:
    written = write(gathered, tmp_path / "docs")
    text = written.page.read_text()
    pages = {path.name: path.read_text() for path in written.more}
    assert list(pages) == ["load.md", "published.md", "math.md", "mbpp.md"]
    assert not any("{{" in page for page in (text, *pages.values()))
    assert [path.name for path in written.figures] == [
        "goodput-default.svg",
        "goodput-published.svg",
    ]
    assert "| MATH, 10/min | 70.8 / 27 / 98.7 | 70.0 / 50 / 89.6 |" in text
    assert "`inframind`, measured elsewhere" in text
    assert "| no EDF |" in text
    assert "*fluid bound, knows the sweeps*" in text
    assert "Not run:\n\nNothing." in text
    names = blocks(gathered)
    bold = [line for line in names["summary"].splitlines() if "**" in line]
    assert len(bold) == 1
    assert bold[0].startswith("| `good` |")  # not the bound, which is higher
    assert names["differences"].count("| `paper` |") == 1
    assert pages["math.md"].count("| `paper` |") == 2 + 1 + 2  # metrics, differences, metrics
    assert pages["math.md"].count("| *fluid bound, knows the sweeps* |") == 4
    assert "MATH, 10/min" in pages["published.md"]
    assert "deepseek-32b" in pages["load.md"]
    assert "[MBPP](mbpp.md)" in pages["math.md"]
    assert "worse" not in names["summary"]
    again = write(gathered, tmp_path / "again")
    assert [p.read_bytes() for p in again.figures] == [p.read_bytes() for p in written.figures]
    assert len(goodput_figure(gathered, "default").axes) == 2


def test_the_page_is_short_and_its_links_lead_somewhere(gathered: Evidence, tmp_path: Path) -> None:
    written = write(gathered, tmp_path)
    for page in (written.page, *written.more):
        links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
        assert links
        for link in set(links) - {"bounds.md"}:  # which stands beside it in docs
            assert (page.parent / link).is_file(), f"{page.name}: {link}"
    shipped = Path(__file__).parents[2] / "docs" / "results.md"
    assert len(shipped.read_text().splitlines()) < 330
    assert max(len(table) for table in _tables(shipped)) < 40


def found(run: EntryRun) -> Record:
    record = record_of(run)
    assert not isinstance(record, int)
    return record


def _tables(page: Path) -> list[list[str]]:
    """The tables of a page, as their lines."""
    groups = itertools.groupby(page.read_text().splitlines(), lambda line: line.startswith("|"))
    return [list(lines) for is_table, lines in groups if is_table]


def test_what_has_not_been_run_is_listed_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    fill_results(chosen, tmp_path / "results", leave_out="good")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    assert shown.missing == [
        "good (default protocol): 36 cells have not been run",
        "good (published protocol): 36 cells have not been run",
    ]
    assert [target.met for target in shown.targets[:4]] == [None] * 4
    assert "has not been run" in blocks(shown)["differences"]


def test_what_is_not_ranked_is_never_bold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    fill_results(chosen, tmp_path / "results")
    bound = (chosen.entry("oracle"),)
    shown = gather(chosen, bound, suites_of(chosen, {}), tmp_path / "results")
    assert "| *`oracle`* |" in summary_table(shown, "default")
    assert "**" not in summary_table(shown, "default")


def test_intervals_need_several_sweeps(tmp_path: Path) -> None:
    chosen = plan(tmp_path)
    with pytest.raises(BenchmarkError, match="at least 2 seeds"):
        gather(chosen, chosen.entries, suites_of(chosen, {"seeds": 1}), tmp_path / "results")


def test_sweeps_with_several_budgets_are_sweeps_of_one_place(tmp_path: Path) -> None:
    chosen = plan(tmp_path)
    overrides = {"seeds": 3, "budgets_s": [10, 300]}
    fill_results(chosen, tmp_path, **overrides)
    suites = suites_of(chosen, overrides)
    runs = [run for entry in chosen.entries for run in runs_of(entry, suites, tmp_path)]
    scores = scores_of(suites, [(run, found(run)) for run in runs])
    assert scores["default"].matrix("good", ("math", 10.0), "goodput").shape[1] == 6


def test_what_budgets_differ_by_is_no_chance(tmp_path: Path) -> None:
    scores = Scores(suites_of(plan(tmp_path), {})["default"])
    row = [
        {"goodput": level + 0.01 * sweep, "budget_s": budget_s}
        for budget_s, level in ((10.0, 0.1), (100.0, 0.5), (1000.0, 0.9))
        for sweep in range(3)
    ]
    scores.cells["one"] = {("math", 10.0): [row]}
    draws = scores.draws("one", ("math", 10.0), "goodput")
    low, high = draws.interval()
    assert draws.value == pytest.approx(0.51)
    assert 0.48 < low < 0.51 < high < 0.54  # resampled together: 0.2 to 0.8


def test_plans_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown entry 'goood'"):
        plan(tmp_path, agent="goood")
    with pytest.raises(BenchmarkError, match="--only"):
        plan(tmp_path).only(("nobody",))
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_plan(tmp_path / "nowhere.yaml")


def test_the_shipped_plan_its_suites_and_the_published_table_can_be_read() -> None:
    shipped = load_plan(PLAN)
    suites = suites_of(shipped, {})
    assert {protocol: s.protocol for protocol, s in suites.items()} == {
        "default": None,
        "sequential": "sequential",
    }
    for entry in shipped.entries:
        if entry.training is not None:
            assert len(entry.training_seeds) >= 5
            trained = "best" if "agents.train" in entry.training.command else "checkpoint"
            assert f":{{folder}}/{trained}" in entry.policy
    table = load_published()
    for system in table.systems.values():
        assert set(system) == set(suites["default"].workloads)
    cell = table.cell("masrouter", "mmlu_pro", 100.0)
    assert cell is not None
    assert (cell.value("accuracy"), cell.value("latency_mean_s")) == pytest.approx((0.577, 908.0))
    assert cell.value("goodput") is None
    cell = table.cell("inframind", "math", 50.0)
    assert cell is not None
    assert (cell.value("latency_mean_s"), cell.value("slo_100s")) == (102.0, None)


def test_revisions_tell_of_uncommitted_files_and_zero_has_no_sign() -> None:
    commit = "0123456789abcdef"
    assert revision({"commit": commit, "dirty": True}) == "0123456789ab (with uncommitted files)"
    assert revision({"commit": commit, "dirty": False}) == "0123456789ab"
    assert revision({}) == "unknown"
    assert [points(value) for value in (-0.0004, 0.007, -0.0123)] == ["0.0", "+0.7", "-1.2"]


def test_systems_that_were_measured_without_priorities_are_replayed_without(tmp_path: Path) -> None:
    shipped = load_plan(PLAN)
    suites = suites_of(shipped, {})
    played = {
        entry.name: {run.protocol: run.suite for run in runs_of(entry, suites, tmp_path)}
        for entry in shipped.entries
    }
    for name in ("static_mix", "masrouter", "gptswarm", "moa"):
        assert played[name]["sequential"].scheduler == "fcfs"
        assert played[name]["default"].scheduler is None
    assert played["moa"]["sequential"].protocol == "parallel"
    assert played["gptswarm"]["sequential"].protocol == "sequential"
    assert set(played[shipped.replayed]) == {"sequential"}
    assert set(played[shipped.paper]) == {"default", "sequential"}
    assert set(played["headway-fcfs"]) == {"default"}


def test_an_entry_may_be_limited_to_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    limits = {"worse": ("mbpp",), "rival": ("math",)}
    rival = chosen.entry("mas").model_copy(update={"name": "rival", "policy": "mas:9"})
    chosen = chosen.model_copy(
        update={
            "entries": tuple(
                entry.model_copy(update={"workloads": limits.get(entry.name)})
                for entry in (*chosen.entries, rival)
            )
        }
    )
    fill_results(chosen, tmp_path / "results")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    assert not shown.missing
    scores = shown.scores["default"]
    assert set(scores.cells["worse"]) == {("mbpp", 10.0), ("mbpp", 100.0)}
    names = blocks(shown)
    parts = [
        scores.draws("worse", ("mbpp", rate), "goodput").value
        - scores.draws("good", ("mbpp", rate), "goodput").value
        for rate in (10.0, 100.0)
    ]
    (row,) = [
        line for line in names["ablations"].splitlines() if line.startswith("| no EDF (MBPP)")
    ]
    assert f"{100 * np.mean(parts):+.1f} [" in row
    assert "| `rival` (MATH) |" in names["summary"]
    assert "| `rival` (MATH) |" in names["differences"]
    assert shown.targets[0].reached == "10 of 10 paired differences are above 0"
    pages = {path.name: path.read_text() for path in write(shown, tmp_path / "docs").more}
    assert "`rival`" in pages["math.md"]
    assert "`rival`" not in pages["mbpp.md"]


def test_workloads_that_are_files_go_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in a folder of their own, where nothing is written."""
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    mine = tmp_path / "my files"
    mine.mkdir()
    files = [mine / "math-v1.5.yaml", mine / "math-v1.6.yaml"]
    for file in files:
        shutil.copy("envs_configs/workloads/math.yaml", file)
    given = [str(file) for file in files]
    small = {"default": suite(tmp_path, "own", workloads=given)}
    chosen = plan(tmp_path, suites=small)
    training = {
        "command": "python -m t --set env.workload={workload} --out {folder}",
        "folder": f"{tmp_path}/runs/{{workload}}/{{seed}}",
        "seeds": 2,
    }
    good = chosen.entry("good").model_dump() | {"training": training}
    worse = chosen.entry("worse").model_dump() | {"workloads": given[:1]}
    same = [e.model_dump() for e in chosen.entries if e.name not in ("good", "worse")]
    chosen = plan(tmp_path, suites=small, entries=[good, worse, *same])
    suites, names = suites_of(chosen, {}), ["math-v1.5", "math-v1.6"]

    trainings = trainings_of([chosen.entry("good")], suites["default"].workloads)
    assert [str(one.folder.parent) for one in trainings[::2]] == [
        f"{tmp_path}/runs/{name}" for name in names
    ]
    assert f"env.workload={given[0]}" in shlex.split(trainings[0].command)
    runs = list(runs_of(chosen.entry("good"), suites, tmp_path / "results"))
    assert [run.folder for run in runs] == [tmp_path / "results/own/good" / name for name in names]
    assert [run.suite.workloads for run in runs] == [(one,) for one in given]
    (limited,) = runs_of(chosen.entry("worse"), suites, tmp_path / "results")
    assert limited.suite.workloads == (given[0],)

    fill_results(chosen, tmp_path / "results")
    shown = gather(chosen, chosen.entries, suites, tmp_path / "results")
    assert not shown.missing
    pages = write(shown, tmp_path / "docs").more
    assert [page.name for page in pages[-2:]] == [f"{name}.md" for name in names]
    assert sorted(mine.iterdir()) == files


def test_limits_are_checked(tmp_path: Path) -> None:
    chosen = plan(tmp_path)
    wrong = chosen.entry("worse").model_copy(update={"workloads": ("maths",)})
    for asked in (
        lambda: list(runs_of(wrong, suites_of(chosen, {}), tmp_path)),
        lambda: trainings_of([wrong], ("math", "mbpp")),
    ):
        with pytest.raises(BenchmarkError, match=r"entry worse: workloads: unknown .*'maths'"):
            asked()
    entries = [entry.model_dump() for entry in chosen.entries]
    entries[0]["workloads"] = ["math"]
    with pytest.raises(ValueError, match="good: the page speaks of it"):
        plan(tmp_path, entries=entries)


def test_ablations_under_the_published_protocol_have_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    change = {"of": "replay", "protocols": ("sequential",), "what": "another goal"}
    chosen = chosen.model_copy(
        update={
            "entries": tuple(
                e.model_copy(update=change) if e.name == "worse" else e for e in chosen.entries
            )
        }
    )
    fill_results(chosen, tmp_path / "results")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    table = blocks(shown)["ablations"].splitlines()
    assert table[0].startswith("| `replay`, published protocol |")
    assert table[2].startswith("| another goal |")
    assert len(table) == 3


def test_entries_of_one_training_are_paired_seed_by_seed(tmp_path: Path) -> None:
    scores = Scores(suites_of(plan(tmp_path), {})["default"])
    solved = np.array([[0.5, 0.6], [0.7, 0.9], [0.2, 0.3]])
    for name, less in (("one", 0.0), ("two", 0.05), ("other", 0.05)):
        scores.cells[name] = {
            ("math", 10.0): [
                [{"goodput": value - less, "budget_s": "tiers"} for value in row] for row in solved
            ]
        }
    scores.trained = {"one": "runs/{seed}", "two": "runs/{seed}", "other": "others/{seed}"}
    own, same, strange = (scores.draws(n, ("math", 10.0), "goodput") for n in scores.cells)
    assert (own - same).interval() == pytest.approx((0.05, 0.05))
    low, high = (own - strange).interval()
    assert low < -0.1 and high > 0.2


def test_one_command_trains_runs_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    made = "import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'model').write_text(sys.argv[2])"
    register_policy(
        PolicyEntry("faked", "tests.benchmark.policies_under_test:Trained", ("folder",), "faked")
    )
    training = {
        "command": f'python -c "{made}" {{folder}} {{seed}}',
        "folder": f"{tmp_path}/runs/{{seed}}",
        "seeds": 2,
    }
    small = {"workloads": ["math"], "rates_per_min": [20, 200], "seeds": 2, "num_queries": 10}
    content = {
        "agent": "faked",
        "paper": "faked",
        "replayed": "faked",
        "oblivious": "random",
        "bound": "random",
        "suites": {"default": suite(tmp_path, "d", **small)},
        "entries": [
            {"name": "faked", "kind": "agent", "policy": "faked:{folder}", "training": training},
            {"name": "random", "kind": "baseline", "policy": "random"},
            {
                "name": "fcfs",
                "kind": "ablation",
                "policy": "random",
                "changes": {"scheduler": "fcfs"},
            },
        ],
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    line = ["results", "--plan", f"{tmp_path}/plan.yaml", "--out", f"{tmp_path}/docs"]
    line += ["--folder", f"{tmp_path}/results", "--workers", "1", "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["missing"] == []
    assert set(summary["goodput"]["default"]) == {"faked", "random", "fcfs"}
    assert (tmp_path / "docs" / "results.md").exists()
    again = CliRunner().invoke(app, line)
    assert "training" not in again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["goodput"] == summary["goodput"]
    for model in (tmp_path / "runs").glob("*/model"):
        model.write_text("4")
    refused = CliRunner().invoke(app, line)
    assert refused.exit_code == 2
    assert "--redo" in refused.stderr
    assert CliRunner().invoke(app, [*line, "--redo"]).exit_code == 0
    # What has records needs neither trainings nor results any more, until they are asked for.
    shutil.rmtree(tmp_path / "results" / "d")
    shutil.rmtree(tmp_path / "runs")
    recorded = CliRunner().invoke(app, line)
    assert recorded.exit_code == 0, recorded.output
    assert "3 runs of 3 entries, 0 to go" in recorded.stderr
    assert "training" not in recorded.stderr
    assert not (tmp_path / "runs").exists()
    afresh = CliRunner().invoke(app, [*line, "--afresh"])
    assert afresh.exit_code == 0, afresh.output
    assert "3 runs of 3 entries, 3 to go" in afresh.stderr
    assert "2 to go, 0 finished before" in afresh.stderr
    assert json.loads(afresh.stdout.splitlines()[-1])["goodput"] == summary["goodput"]
