"""The fidelity page shows the computed figures, and nothing of the machine or the tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import benchmarks.__main__  # noqa: F401  # registers the command
from benchmarks import fidelity
from benchmarks.fidelity import Log
from benchmarks.fit.measured_runs import ERRORS
from inframind_gym.calibration.server_card import Limits
from inframind_gym.evaluation.cli import app
from tests.calibration import synthetic

TABLES = ("targets", "failures")
PAGE = "# By hand\n\n" + "".join(
    f"<!-- table: {name} -->\n(stale)\n<!-- end -->\n" for name in TABLES
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "vllm_traces").mkdir()
    synthetic.write(folder / "vllm_traces", synthetic.rows(synthetic.card(), 60))
    cell = synthetic.measured_cell
    routes = {"Qwen/Qwen2.5-Coder-14B-Instruct|Flash": 1.0}
    runs = {
        "mas": {"math": [cell(rate, 33.0, cost_rate=5.0) for rate in (10.0, 60.0)]},
        "inframind": {"math": [cell(budget=50.0, model_strategy_joint=routes)]},
    }
    (folder / "measured_runs.json").write_text(json.dumps(runs), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def made_up_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("A made-up server", Limits(16, 1024), "llama-3.1-8b", "RTX-4090", 1)
    monkeypatch.setattr(fidelity, "LOGS", {"log.jsonl": log})
    monkeypatch.setattr(fidelity, "LOG_LIMITS", (1.0, 1e-9, 5.0))


def call(data: Path, out: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fidelity", str(data), "--out", str(out), "--seeds", "1"])
    return result.exit_code, result.stdout, result.stderr


def test_the_page_is_filled_and_stays_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "fidelity.md"
    page.write_text(PAGE, encoding="utf-8")
    off = {f"{error}_median": 4.0 for error in ERRORS}
    fit = tmp_path / "fit.json"
    left_out = {"50": {"mas": {"cells": 15, **off}}}
    fit.write_text(json.dumps({"left_out": left_out}), "utf-8")
    monkeypatch.setattr(fidelity, "FIT", fit)
    code, out, err = call(data, tmp_path)
    assert code == 0, err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# By hand") and "(stale)" not in text
    rows = re.findall(r"(?m)^\| (.*) \|$", out)
    assert rows[2].startswith("A made-up server | unseen half; ")
    assert re.search(
        r"\d\.\d\d % \(≤ 1\) \| \*\*\d.* % *\*\* \(≤ 1e-09\) \| .* \| \*\*no\*\*$", rows[2]
    )
    assert re.match(r"A made-up server \| cold, .* \| .*\d %.* \(≤ 15\) \| – \| – \| ", rows[3])
    assert "| `mas`, median of 2 cells | rates of the fit | " in out
    assert (
        "| `moa` | a rate left out of the fit | – (≤ 12) | – (≤ 18) | – (≤ 3) | not tested |" in out
    )
    assert "| `mas`, median of 15 cells | 50/min left out of the fit | 4.0 % (≤ 5) | " in out
    assert re.search(r"\| `mas` math, 60/min, cost rate 5 \| 33 → [\d,]+ \|", text)
    plots = {path.name: path.read_bytes() for path in (tmp_path / "fidelity").glob("*.svg")}
    assert set(plots) == {"logs.svg", "runs.svg"}
    assert all(len(plot) < 150_000 and b"<text" in plot for plot in plots.values())
    tables = {path.stem: path.read_text("utf-8") for path in (tmp_path / "fidelity").glob("*.csv")}
    lengths = {name: len(content.splitlines()) for name, content in tables.items()}
    assert lengths["logs"] == 1 + 2 * 3 * 5 and lengths["cells"] == 1 + 3
    assert "A made-up server,base_s," in tables["constants"]
    assert call(data, tmp_path)[0] == 0
    assert page.read_text(encoding="utf-8") == text
    for name, plot in plots.items():
        assert (tmp_path / "fidelity" / name).read_bytes() == plot


def test_a_perfect_model_misses_by_chance_alone() -> None:
    found = fidelity.perfect_model_pct([{"episode_sd": 0.1}] * 101)
    assert found == pytest.approx(6.745, abs=0.05)  # 10 %: a normal's quartile
