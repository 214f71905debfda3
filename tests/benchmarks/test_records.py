"""The table of records: round trip, validity, and the commands for what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks import recording
from benchmarks.plan import PlanConfig, load_plan
from benchmarks.record_table import (
    KEYS,
    RECORDS,
    read_index,
    read_rows,
    read_scores,
    table_path,
    write_rows,
)
from benchmarks.recording import add, all_runs, missing, missing_commands
from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.suite import RoutingCell
from inframind_gym.benchmark.store import read_cells
from inframind_gym.benchmark.suite import load_suite
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.policies import PolicyEntry, register_policy
from tests.benchmark.synthetic_results import drawn, header, write_folder

SUITE = {
    "name": "small",
    "policies": ["random"],
    "workloads": ["math", "mbpp"],
    "rates_per_min": [10, 100],
    "budgets_s": [30, 100],
    "seeds": 3,
}


def make_plan(folder: Path) -> PlanConfig:
    suite = folder / "small.yaml"
    suite.write_text(yaml.safe_dump(SUITE))
    trained = {
        "command": "train {workload} --seed {seed} --out {folder}",
        "folder": f"{folder}/runs/{{workload}}/{{seed}}",
        "seeds": 2,
    }
    entries: list[dict[str, Any]] = [
        {"name": "ours", "kind": "agent", "policy": "faked:{folder}", "training": trained},
        {"name": "plain", "kind": "baseline", "policy": "random"},
    ]
    entries = [{"what": entry["name"], **entry} for entry in entries]
    return PlanConfig.model_validate({"suites": {"parallel": str(suite)}, "entries": entries})


@pytest.fixture
def plan(tmp_path: Path) -> PlanConfig:
    path = "tests.benchmark.policies_under_test:Trained"
    register_policy(PolicyEntry("faked", path, ("folder",), "faked"))
    for place in ("math/0", "math/1", "mbpp/0", "mbpp/1"):
        (tmp_path / "runs" / place).mkdir(parents=True)
        (tmp_path / "runs" / place / "model").write_text(place)
    return make_plan(tmp_path)


def run_all(plan: PlanConfig, folder: Path) -> list[Path]:
    """Results of every run, with known scores."""

    def make(cell: RoutingCell) -> np.ndarray:
        return drawn(cell, 0.9 if "runs" in cell.policy else 0.4, 0.5)

    folders = []
    for run in (run for runs in all_runs(plan) for run in runs):
        policies = dict.fromkeys(run.suite.policies, "1")
        suite = {**header()["suite"], "name": run.suite.name}
        folders.append(folder / run.suite.name)
        more = {"policies": policies, "suite": suite, "git": None}
        write_folder(folders[-1], grid(run.suite), make, **more)
    return folders


def test_what_is_recorded_is_what_was_run(plan: PlanConfig, tmp_path: Path) -> None:
    records = tmp_path / "records"
    assert [reason for _, reason in missing(plan, records)] == ["no record", "no record"]
    folders = run_all(plan, tmp_path / "results")
    names = ["parallel/ours/math", "parallel/ours/mbpp", "parallel/plain"]
    assert add(folders, plan, records) == names
    assert not missing(plan, records)
    scores = read_scores(table_path("parallel", "ours", records))
    assert list(scores) == [(w, r) for w in ("math", "mbpp") for r in (10.0, 100.0)]
    own = scores["math", 100.0]
    assert own.budgets_s == (30.0,) * 3 + (100.0,) * 3
    lines = {block.cell: block.line for block in read_cells(folders[0])}
    for seed, row in enumerate(own.columns["latency_mean_s"]):
        policy = f"faked:{tmp_path}/runs/math/{seed}"
        cells = [RoutingCell(policy, "math", 100.0, b, e) for b in (30.0, 100.0) for e in range(3)]
        assert row == pytest.approx([lines[c]["latency_mean_s"] for c in cells], rel=1e-5), seed
    assert own.columns["model_share.big"] == pytest.approx(1.0)
    record = read_index(records)["parallel"]["ours"]
    assert record["machines"] == ["a processor, 2 cores"]
    assert sorted(record["weights"]) == ["math/0", "math/1", "mbpp/0", "mbpp/1"]
    late, queries = {}, 0
    for row in read_rows(records / "decisions.csv"):
        if row["entry"] == "ours":
            late[row["late"]] = row["decisions"]
            queries += int(row["queries"])
    assert queries == 2 * 2 * 2 * 2 * 3 * 50  # workloads, seeds, rates, budgets, episodes, queries
    assert set(late) == {"0", "1"}
    assert late["0"].startswith("big=")
    before = {p: p.read_bytes() for p in records.rglob("*.*") if p.suffix != ".yaml"}
    add(folders, plan, records)  # again: the same bytes
    assert {path: path.read_bytes() for path in before} == before


def test_a_record_is_valid_for_its_versions_and_settings(
    plan: PlanConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records"
    add(run_all(plan, tmp_path / "results"), plan, records)

    def reasons(chosen: PlanConfig = plan) -> list[str]:
        return [f"{runs[0].entry.name}: {why}" for runs, why in missing(chosen, records)]

    assert reasons() == []
    ours, plain = plan.entries
    edf = plain.model_copy(update={"changes": {"scheduler": "fcfs"}})
    changed = plan.model_copy(update={"entries": (ours, edf)})
    assert reasons(changed) == ["plain: recorded with another settings"]
    with monkeypatch.context() as patch:
        patch.setattr(recording, "SIMULATOR_VERSION", 0)
        assert len(reasons()) == 2
        assert reasons()[0] == "ours: recorded with another simulator_version"
    with monkeypatch.context() as patch:
        patch.setattr("tests.benchmark.policies_under_test.Trained.version", 7, raising=False)
        assert reasons() == ["ours: recorded with another policy_version"]


def test_the_commands_for_what_is_missing(plan: PlanConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = missing_commands(plan, out, tmp_path / "records")
    assert lines[0] == "# ours, parallel: no record"
    assert lines[1] == f"train math --seed 0 --out {tmp_path}/runs/math/0"
    assert sum(line.startswith("train ") for line in lines) == 4
    runs = [line for line in lines if " run --suite " in line]
    assert runs[1].endswith(f"--out {out}/parallel/ours/mbpp")
    suite = yaml.safe_load((out / "suites" / "parallel-ours-mbpp.yaml").read_text())
    assert suite["workloads"] == ["mbpp"]
    assert suite["policies"] == [f"faked:{tmp_path}/runs/mbpp/{seed}" for seed in range(2)]
    assert lines[-1] == f"python -m benchmarks record {out}/parallel/plain"
    add(run_all(plan, out), plan, tmp_path / "records")
    assert missing_commands(plan, out, tmp_path / "records") == []


def test_the_suites_of_the_shipped_plan_can_be_read(tmp_path: Path) -> None:
    missing_commands(load_plan(), tmp_path, tmp_path / "records")
    runs = {run.suite.name: run.suite for runs in all_runs(load_plan()) for run in runs}
    suites = [load_suite(str(path)) for path in (tmp_path / "suites").iterdir()]
    assert {suite.name: suite for suite in suites} == runs


def test_what_is_refused(plan: PlanConfig, tmp_path: Path) -> None:
    folders = run_all(plan, tmp_path / "results")
    with pytest.raises(BenchmarkError, match="give the folders of parallel/ours/mbpp too"):
        add(folders[:1], plan, tmp_path / "records")
    other = plan.model_copy(update={"entries": plan.entries[:1]})
    with pytest.raises(BenchmarkError, match=r"plain: unknown run of the plan 'parallel/plain'"):
        add(folders[2:], other, tmp_path / "records")
    cells = folders[2] / "cells.jsonl"
    cells.write_text("".join(cells.read_text().splitlines(keepends=True)[:-5]))
    with pytest.raises(BenchmarkError, match="5 of 24 cells have not been run"):
        add(folders[2:], plan, tmp_path / "records")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(b"nothing")
    with pytest.raises(BenchmarkError, match=r"damaged\.csv\.gz is no table of records"):
        read_rows(damaged)
    row = dict(zip(KEYS, ("math", 10, 30, 0, 0), strict=True)) | {"accuracy": 0.5}
    write_rows(damaged, [row, row | {"training_seed": 1, "episode": 1}])
    with pytest.raises(BenchmarkError, match="training seeds differ in their episodes"):
        read_scores(damaged)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "a", "policy": "a:{folder}"}, "must contain {folder} if and only if"),
        ({"name": "a", "kind": "ablation", "policy": "a"}, "give `of` for an ablation"),
        ({"name": "a", "kind": "ablation", "policy": "a", "of": "plane"}, "plain"),
        ({"name": "plain", "policy": "a"}, "named twice: plain"),
    ],
)
def test_errors_in_a_plan(entry: dict[str, str], message: str, tmp_path: Path) -> None:
    plain = {"name": "plain", "kind": "baseline", "policy": "random", "what": "plain"}
    file = tmp_path / "plan.yaml"
    entries = [plain, {"kind": "baseline", "what": "a", **entry}]
    file.write_text(yaml.safe_dump({"suites": {"parallel": "starter"}, "entries": entries}))
    with pytest.raises(ConfigError, match=message):
        load_plan(file)


def test_every_committed_record_is_of_the_plan_and_valid() -> None:
    plan = load_plan()
    known = {(runs[0].execution, runs[0].entry.name) for runs in all_runs(plan)}
    index = read_index()
    assert {(execution, name) for execution in index for name in index[execution]} == known
    files = {path.relative_to(RECORDS) for path in RECORDS.rglob("*.csv.gz")}
    assert files == {Path(execution, f"{name}.csv.gz") for execution, name in known}
    try:
        reasons = {f"{runs[0].entry.name}: {why}" for runs, why in missing(plan)}
    except InfraMindError as error:
        reasons = {str(error)}
    page = (RECORDS.parents[1] / "docs/results.md").read_text(encoding="utf-8")
    if "All figures are records of simulator version 1." in page:  # and are made again later
        reasons = {why for why in reasons if "another simulator_version" not in why}
    assert not reasons, "run `python -m benchmarks results --missing`"
