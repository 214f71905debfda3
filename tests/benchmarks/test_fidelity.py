"""The fidelity page shows what was computed, all of it, and nothing of the machine or the tasks."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.fidelity import evidence as evidence_module
from benchmarks.fidelity import sources
from benchmarks.fidelity.contradictions import (
    accuracies_that_differ_with_load,
    alike_but_apart,
    total_variation,
)
from benchmarks.fidelity.evidence import Evidence, at_rate, gather, wilson_interval
from benchmarks.fidelity.page import blocks, write
from benchmarks.fidelity.targets import targets
from benchmarks.pages.writing import Written, fill
from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.replay_runs import load_constants
from inframind_gym.tasks import load_tasks
from tests.calibration import synthetic

SERVER = synthetic.card()
LISTING = """\
logs:
  log.jsonl:
    title: A made-up server
    max_num_seqs: 16
    max_num_batched_tokens: 1024
    source: tests
    targets: {e2e_mean: 1, e2e_percentiles: 1.0e-9, ttft_mean: 5}
"""


def raw_cell(rate: float, **changes: Any) -> dict[str, Any]:
    """A measured cell of 40 queries on MATH."""
    shape = {"p5": 0.3, "p25": 0.6, "median": 0.9, "p75": 1.3, "p95": 2.0}
    return {
        "arrival_rate": rate,
        "n_episodes": 40,
        "accuracy": 0.7,
        "latency": {"mean": 33.0, **{key: 33.0 * factor for key, factor in shape.items()}},
        "num_agents": 3,
        "model_distribution": {"Qwen/Qwen2.5-Coder-14B-Instruct": 1.0},
        "topology_distribution": {"Math/IO": 0.5, "Math/Chain": 0.5},
        **changes,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "vllm_traces").mkdir()
    synthetic.write(folder / "vllm_traces", synthetic.rows(SERVER, 60))
    runs = {
        "mas": {"math": [raw_cell(rate, cost_rate=5.0) for rate in (10.0, 60.0)]},
        "inframind": {"math": [raw_cell(10.0, budget=50.0, strategy_distribution={"Flash": 1.0})]},
    }
    (folder / "measured_runs.json").write_text(json.dumps(runs), encoding="utf-8")
    (folder / "logs.yaml").write_text(LISTING, encoding="utf-8")
    values = sources.fitted_values(load_constants("b200-2gpu", ["math"]))
    summary = {
        "cells": 1,
        "latency_mean_abs_pct_median": 12.3,
        "latency_mean_abs_pct_p90": 45.6,
        "latency_p95_abs_pct_median": None,
        "latency_p95_abs_pct_p90": None,
        "accuracy_abs_points_median": 1.0,
        "accuracy_abs_points_p90": 2.0,
    }
    fit = {"parameters": len(values), "values": values, "left_out": {"60": {"mas": summary}}}
    (folder / "fit.json").write_text(json.dumps(fit), encoding="utf-8")
    outcomes = {"agreement": {"value": 0.35814, "what": "of two models", "used_for": "nothing"}}
    (folder / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")
    return folder


def gathered(data: Path, **changes: Any) -> Evidence:
    files = {name: data / f"{name}.json" for name in ("fit", "outcomes")}
    options = {"listing": data / "logs.yaml", **files, "seeds": 1, "repeats": 1, **changes}
    return gather(data, **options)


@pytest.fixture(scope="module")
def evidence(data: Path) -> Evidence:
    return gathered(data)


@pytest.fixture(scope="module")
def written(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(evidence, tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def page(written: Written) -> str:
    return written.page.read_text(encoding="utf-8")


def test_a_log_of_the_kernel_itself_is_predicted(evidence: Evidence) -> None:
    (log,) = evidence.logs
    assert log.calibration.fitted == 30
    assert abs(log.figures["unseen"]["e2e_s"]["mean"]["error_pct"]) < 1.0
    assert log.speed > 1000


def test_the_page_shows_what_was_computed(page: str, evidence: Evidence) -> None:
    (log,) = evidence.logs
    of = log.figures["unseen"]["ttft_s"]["p95"]
    assert f"{of['measured']:.2f} → {of['predicted']:.2f} (" in page
    for row in evidence.runs.rows[:2]:
        mean = row["latency_s"]["mean"]["predicted"]
        accuracy = 100 * row["accuracy"]["predicted"]
        line = rf"\| math \| 5 \| {row['arrival_rate_per_min']:g} \| 33 → {mean:,.0f} \(.*"
        assert re.search(line + rf"\| 70.0 → {accuracy:.1f} \(", page)
    assert "| 60/min | mas | 1 | 12.3 (45.6) | – | 1.0 (2.0) |" in page  # left out
    assert "| `agreement` | 0.3581 | of two models | nothing |" in page
    assert "{{" not in page


def test_targets_are_judged(page: str, evidence: Evidence) -> None:
    judged = [target for target in targets(evidence) if target.met is not None]
    met = {target.what: target.met for target in judged if "left out" not in target.of}
    assert met["unseen requests: mean e2e"] is True
    assert met["unseen requests: worst e2e percentile"] is False
    assert "**no**" in page
    count = sum(bool(target.met) for target in judged)
    assert f"{count} of {len(judged)} targets" in page.replace("\n", " ")


def test_a_rate_that_was_left_out_has_targets_of_its_own(evidence: Evidence) -> None:
    found = {t.what: t for t in targets(evidence) if t.of == "`mas`, 60/min left out"}
    assert [(t.reached, t.limit, t.met) for t in found.values()] == [
        (12.3, 15.0, True),
        (None, 25.0, None),
        (1.0, 2.5, True),
    ]


def test_figures_are_small_pictures_with_text(page: str, written: Written) -> None:
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    assert {written.page.parent / name for name in shown} == set(written.figures)
    for path in written.figures:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 150_000
        assert "<text" in text
        assert "dc:date" not in text


def test_the_same_evidence_gives_the_same_bytes(
    data: Path, tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {path.name: path.read_bytes() for path in (written.page, *written.figures)}
    monkeypatch.setattr(evidence_module, "replay_speed", lambda calibration, repeats: 5000.0)
    pages = [write(gathered(data), tmp_path / str(i)) for i in range(2)]
    for path in pages[0].figures:
        assert path.read_bytes() == once[path.name]
    first, second = (made.page.read_bytes() for made in pages)
    assert first == second != once["fidelity.md"]  # the speed differs


def test_nothing_of_the_machine_or_the_tasks_is_shown(data: Path, written: Written) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (written.page, *written.figures)]
    folders = (data, written.page.parent, Path.cwd(), Path.home(), Path(sys.prefix))
    questions = load_tasks("builtin", split="all").texts
    for text in texts:
        assert not any(str(folder) in text for folder in folders if folder != Path("/"))
        assert not any(question[:40] in text for question in questions)


def test_curves_pass_through_the_predicted_cells(evidence: Evidence) -> None:
    (curve,) = evidence.runs.curves
    at = dict(zip(curve.rate_per_min.tolist(), curve.latency_s.tolist(), strict=True))
    for cell, said in zip(evidence.runs.cells, evidence.runs.predictions, strict=True):
        if cell.method == "mas":
            assert at[cell.arrival_rate_per_min] == pytest.approx(said.latency_s["mean"])
    assert curve.latency_s[-1] > 2 * curve.latency_s[0]  # 200 and 5 queries a minute


def test_shares_between_the_measured_rates(evidence: Evidence) -> None:
    first = evidence.runs.cells[0]
    cells = [
        replace(first, arrival_rate_per_min=rate, model_share=share)
        for rate, share in ((10.0, {"a": 0.6, "b": 0.4}), (1000.0, {"a": 0.2, "c": 0.8}))
    ]
    middle = at_rate(cells, 100.0)
    assert middle.arrival_rate_per_min == 100.0
    assert middle.model_share == pytest.approx({"a": 0.4, "b": 0.2, "c": 0.4})
    for rate, cell in ((1.0, cells[0]), (10.0, cells[0]), (1000.0, cells[1]), (9e3, cells[1])):
        share = {k: v for k, v in (at_rate(cells, rate).model_share or {}).items() if v}
        assert share == pytest.approx(cell.model_share)


def test_what_is_missing_says_how_to_make_it(evidence: Evidence) -> None:
    names = blocks(replace(evidence, fit=None, outcomes=None))
    assert "benchmarks.fit.measured" in names["left_out_table"]
    assert "benchmarks.fit.measured" in names["constants_tables"]
    assert "benchmarks.fit.outcomes" in names["outcomes_table"]


def test_a_log_without_an_entry(data: Path, tmp_path: Path) -> None:
    listing = tmp_path / "logs.yaml"
    listing.write_text(LISTING.replace("log.jsonl", "logs.jsonl"), encoding="utf-8")
    with pytest.raises(
        BenchmarkError, match=r"log.jsonl: logs.yaml has no entry.*max_num_seqs"
    ) as e:
        gathered(data, listing=listing)
    assert "Did you mean 'logs.jsonl'?" in str(e.value)
    listing.write_text(LISTING.replace("source", "sauce"), encoding="utf-8")
    with pytest.raises(ValueError, match="Did you mean 'source'"):
        gathered(data, listing=listing)


def test_a_fit_of_other_constants(data: Path, tmp_path: Path) -> None:
    fit = json.loads((data / "fit.json").read_text(encoding="utf-8"))
    fit["values"]["math: qwen-14b: ability"] += 0.1
    other = tmp_path / "other.json"
    other.write_text(json.dumps(fit), encoding="utf-8")
    with pytest.raises(BenchmarkError, match=r"differ in 1 of .*math: qwen-14b: ability"):
        gathered(data, fit=other)


def test_unknown_names_in_the_template() -> None:
    assert fill("{{cells}} cells", {"cells": "3"}) == "3 cells"
    with pytest.raises(BenchmarkError, match="Did you mean 'cells'"):
        fill("{{cell}} cells", {"cells": "3"})


def test_shipped_listings_are_valid() -> None:
    peers = sources.read_peers()
    listing = sources.load_yaml_model(sources.LOGS, sources.LogListing)
    assert {name for peer in peers for name in peer.logs} <= set(listing.logs)
    assert all(peer.error_pct[0] <= peer.error_pct[1] for peer in peers)


def test_wilson_interval() -> None:
    assert wilson_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0.3, 0) == (0.0, 1.0)


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fidelity", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command(data: Path, tmp_path: Path) -> None:
    files = ("--logs", data / "logs.yaml", "--fit", data / "fit.json", "--out", tmp_path)
    code, out, err = call(data, *files, "--seeds", 1, "--repeats", 1, "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert Path(figures["page"]) == tmp_path / "fidelity.md"
    assert (tmp_path / "fidelity.md").is_file()
    assert figures["runs"]["mas"]["cells"] == 2
    assert figures["logs"]["log.jsonl"]["times_real_time"] > 1000


def test_errors_are_one_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in (
        ((tmp_path,), "vllm_traces does not exist"),
        ((data,), "logs.yaml has no entry for this log"),
    ):
        code, out, err = call(*arguments, "--out", tmp_path)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call(data, "--out", tmp_path)
    assert code == 2
    assert ".[plot]" in err


def pair_of_runs(evidence: Evidence, **changes: Any) -> Any:
    """The first oblivious cell, and the same with changes."""
    runs = evidence.runs
    index = next(i for i, cell in enumerate(runs.cells) if cell.method == "mas")
    cell, said = runs.cells[index], runs.predictions[index]
    return replace(runs, cells=(cell, replace(cell, **changes)), predictions=(said, said))


def test_cells_that_contradict_each_other_are_found(evidence: Evidence) -> None:
    mean_s = evidence.runs.cells[0].latency_s["mean"]
    slower = {"latency_s": {"mean": 1.4 * mean_s}}
    (found,) = alike_but_apart(pair_of_runs(evidence, **slower))
    assert found.differ == 0.0
    assert not alike_but_apart(pair_of_runs(evidence, latency_s={"mean": 1.2 * mean_s}))
    others = {"model_share": {"deepseek-32b": 1.0}}
    assert not alike_but_apart(pair_of_runs(evidence, **slower, **others))
    assert not alike_but_apart(pair_of_runs(evidence, **slower, arrival_rate_per_min=1.0))


def test_accuracies_that_differ_by_chance_do_not_count(evidence: Evidence) -> None:
    accuracy, rate = evidence.runs.cells[0].accuracy, {"arrival_rate_per_min": 1.0}
    for less, count in ((0.02, 0), (0.3, 1)):
        runs = pair_of_runs(evidence, accuracy=accuracy - less, num_queries=500, **rate)
        one = replace(runs.cells[0], num_queries=500)
        runs = replace(runs, cells=(one, runs.cells[1]))
        assert accuracies_that_differ_with_load(runs) == (count, 1)


def test_total_variation() -> None:
    assert total_variation({"a": 0.5, "b": 0.5}, {"b": 0.25, "c": 0.75}) == pytest.approx(0.75)
    assert total_variation(None, None) == 0.0
    assert total_variation(None, {"a": 1.0}) == 1.0
