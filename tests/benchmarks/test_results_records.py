"""Records of results: they stand for runs as long as nothing has changed that these rest on."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.results_page.rests_on import rests_on

from benchmarks.results_page import evidence as evidence_module
from benchmarks.results_page import rests_on as rests_on_module
from benchmarks.results_page.evidence import gather
from benchmarks.results_page.page import write
from benchmarks.results_page.plan import PLAN, EntryConfig, EntryRun, load_plan, runs_of, suites_of
from benchmarks.results_page.produce import needed_by
from benchmarks.results_page.records import Record, find, path_of, read, record_of, save
from benchmarks.results_page.trainings import Training
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import meaning_hash
from inframind_gym.errors import ConfigError
from inframind_gym.policies import PolicyEntry, register_policy
from tests.benchmarks.synthetic_plan import fill_results, fluid, plan
from tests.benchmark.synthetic_results import drawn, write_folder


def made(run: EntryRun) -> Record:
    record = record_of(run)
    assert not isinstance(record, int)
    return record


def test_records_stand_for_runs_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen, folder, kept = plan(tmp_path), tmp_path / "results", tmp_path / "records"
    fill_results(chosen, folder)
    suites = suites_of(chosen, {})
    before = gather(chosen, chosen.entries, suites, folder)
    for entry in chosen.entries:
        for run in runs_of(entry, suites, folder):
            assert find(run, kept) is None
            record = made(run)
            save(record, path_of(run, kept))
            assert find(run, kept) == record
    shutil.rmtree(folder)
    after = gather(chosen, chosen.entries, suites, folder, kept)
    assert not after.missing
    pages = [write(one, tmp_path / name).page for one, name in ((before, "a"), (after, "b"))]
    assert pages[0].read_text() == pages[1].read_text()
    again = tmp_path / "again.json.gz"
    save(record, again)
    assert again.read_bytes() == path_of(run, kept).read_bytes()


def test_records_of_other_sweeps_policies_or_trainings_are_not_taken(tmp_path: Path) -> None:
    chosen, kept = plan(tmp_path), tmp_path / "records"
    fill_results(chosen, tmp_path / "results")

    def run_of(entry: EntryConfig, **overrides: Any) -> EntryRun:
        return next(runs_of(entry, suites_of(chosen, overrides), tmp_path / "results"))

    good = chosen.entry("good")
    run = run_of(good)
    save(made(run), path_of(run, kept))
    assert find(run, kept) is not None
    assert find(run_of(good, seeds=4), kept) is None
    assert find(run_of(good, num_queries=51), kept) is None
    assert good.training is not None
    for change in (
        {"changes": {"scheduler": "fcfs"}},
        {"training": good.training.model_copy(update={"command": "python -c other"})},
        {"training": good.training.model_copy(update={"seeds": 4})},
    ):
        assert find(run_of(good.model_copy(update=change)), kept) is None
    whole = json.loads(gzip.decompress(path_of(run, kept).read_bytes()))
    whole["places"][0]["values"][0][0].pop()
    for damaged in (b"broken", gzip.compress(json.dumps(whole).encode()), gzip.compress(b"[]")):
        path_of(run, kept).write_bytes(damaged)
        with pytest.raises(BenchmarkError, match=r"good\.json\.gz is no record of results"):
            find(run, kept)


def test_what_records_rest_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code and configuration of trainings count for what is trained by them, and only for it."""
    shipped = load_plan(PLAN)
    suites = suites_of(shipped, {})

    def rests() -> dict[str, Any]:
        names = ("headway", "inframind", "sb3_ppo", "static", "fixed_recipe")
        return {
            name: rests_on(next(runs_of(shipped.entry(name), suites, tmp_path))) for name in names
        }

    before = rests()
    assert before["static"]["training"] is None
    assert before["headway"]["training"]["config"][0]["algorithm"] == "headway"
    assert before["sb3_ppo"]["training"]["config"]["ppo"]["n_epochs"] == 6
    assert len({str(one["what the policy does"]) for one in before.values()}) == 4
    assert before["headway"]["world"]["execution"] is None

    def other(files: Any) -> str:
        names = sorted(path.name for path in files)
        return "other" if {"cmaes.py", "crew.py"} <= set(names) else str(names)

    for cached in (rests_on_module._training_code, rests_on_module._code):
        cached.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(rests_on_module, "meaning_hash", other)
        patched = rests()
    for cached in (rests_on_module._training_code, rests_on_module._code):
        cached.cache_clear()
    assert patched["headway"]["training"]["code"] == "other"  # the search and the fleet count
    assert patched["inframind"]["training"]["code"] != before["inframind"]["training"]["code"]
    changed = shipped.entry("static").model_copy(update={"workloads": ("nowhere.yaml",)})
    with pytest.raises((BenchmarkError, ConfigError), match=r"nowhere"):
        rests_on(next(runs_of(changed, suites, tmp_path)))


def test_a_record_does_not_outlive_the_weights_it_was_made_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is there: it counts. It is not: the record is taken."""
    register_policy(
        PolicyEntry("faked", "tests.benchmark.policies_under_test:Trained", ("folder",), "faked")
    )
    for seed in range(2):
        (tmp_path / f"runs/{seed}").mkdir(parents=True)
        (tmp_path / f"runs/{seed}/model").write_text("1")
    training = {"command": "true", "folder": f"{tmp_path}/runs/{{seed}}", "seeds": 2}
    content = {"name": "faked", "kind": "agent", "policy": "faked:{folder}", "training": training}
    entry = EntryConfig.model_validate(content)
    run = next(runs_of(entry, suites_of(plan(tmp_path), {}), tmp_path / "results"))
    write_folder(
        run.folder,
        grid(run.suite),
        lambda cell: drawn(cell, 0.5, 1.0),
        policies=dict.fromkeys(run.suite.policies, "1"),
        settings={"code of inframind_gym": "1"},
    )
    record = made(run)
    save(record, path_of(run, tmp_path))
    assert find(run, tmp_path) == record
    (tmp_path / "runs/1/model").write_text("2")
    assert find(run, tmp_path) is None
    assert f"of other weights than faked:{tmp_path}/runs/1" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs")
    assert find(run, tmp_path) == record


def test_trainings_that_others_start_from_are_needed_too(tmp_path: Path) -> None:
    def training(name: str, *after: str) -> Training:
        return Training(name, name, "true", tmp_path / name, after)

    all_of_them = [training("first"), training("second", "first"), training("other")]
    content = {"command": "true", "folder": f"{tmp_path}/second", "seeds": [0]}
    entry = EntryConfig.model_validate(
        {"name": "second", "kind": "agent", "policy": "static:{folder}", "training": content}
    )
    runs = list(runs_of(entry, suites_of(plan(tmp_path), {}), tmp_path))
    assert [one.entry for one in needed_by(runs, all_of_them)] == ["first", "second"]
    assert needed_by([], all_of_them) == []


def test_only_what_code_does_makes_records_stale(tmp_path: Path) -> None:
    def written(text: str) -> str:
        file = tmp_path / str(hash(text)) / "code.py"
        file.parent.mkdir()
        file.write_text(text)
        return meaning_hash([file])

    plain = written("def f(x):\n    return x + 1\n")
    assert written('"""Module."""\ndef f(x):\n    """Adds."""\n    return x+1  # one\n') == plain
    assert written("def f(x):\n    return x + 2\n") != plain
    assert written("def f(x):\n    return x + 1\nf(1)\n") != plain
    assert plain == "1fb09d9b0487b545"  # on every version of Python


def test_shipped_records_can_be_read_and_are_of_the_plan() -> None:
    """Whether they are still valid is another matter: `make results` sees to that."""
    shipped = load_plan(PLAN)
    folder = Path(__file__).resolve().parents[2] / "docs" / "results" / "records"
    files = set(folder.rglob("*.json.gz"))
    suites = suites_of(shipped, {})
    known = {
        path_of(run, folder): run
        for entry in shipped.entries
        for run in runs_of(entry, suites, Path("results"))
    }
    assert files <= set(known)
    for path in files:
        record = read(path)
        suite = known[path].suite
        places = {
            (w, float(rate)) for w in suite.names("workloads") for rate in suite.rates_per_min
        }
        assert set(record.cells) == places
        for rows in record.cells.values():
            assert len(rows) == len(known[path].entry.training_seeds)
            assert len({len(row) for row in rows}) == 1
