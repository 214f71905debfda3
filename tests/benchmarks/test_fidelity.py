"""The fidelity page shows the computed figures, and nothing of the machine or the tasks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import benchmarks.__main__  # noqa: F401  # registers the command
from benchmarks import fidelity
from benchmarks.fidelity import Log, wilson_interval
from inframind_gym.benchmark.cli import app
from inframind_gym.calibration.server_card import Limits
from inframind_gym.tasks import load_tasks
from tests.calibration import synthetic

TABLES = ("targets", "logs", "cards", "runs", "left_out", "cells", "bias")
PAGE = "# By hand\n\n" + "".join(f"<!-- table: {name} -->\nold\n<!-- end -->\n" for name in TABLES)


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
    synthetic.write(folder / "vllm_traces", synthetic.rows(synthetic.card(), 60))
    runs = {
        "mas": {"math": [raw_cell(rate, cost_rate=5.0) for rate in (10.0, 60.0)]},
        "inframind": {"math": [raw_cell(10.0, budget=50.0, strategy_distribution={"Flash": 1.0})]},
    }
    (folder / "measured_runs.json").write_text(json.dumps(runs), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def made_up_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("A made-up server", Limits(16, 1024), 1.0, 1e-9, 5.0)
    monkeypatch.setattr(fidelity, "LOGS", {"log.jsonl": log})


def call(data: Path, out: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fidelity", str(data), "--out", str(out), "--seeds", "1"])
    return result.exit_code, result.stdout, result.stderr


def test_the_page_is_filled_and_stays_the_same(data: Path, tmp_path: Path) -> None:
    page = tmp_path / "fidelity.md"
    page.write_text(PAGE, encoding="utf-8")
    code, out, err = call(data, tmp_path)
    assert code == 0, err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# By hand") and "old" not in text
    assert re.search(r"mean e2e \| A made-up server \| ≤ 1 % \| 0\.\d+ % \| yes \|", out)
    assert re.search(r"worst e2e percentile \| .* \| \*\*no\*\* \|", text)
    assert "| `mas`, 2 cells, fitted | ≤ 10 % |" in text
    assert re.search(r"\| math \| 5 \| 60 \| 33 → [\d,]+ \(.*\) \| .* \| 70\.0 → ", text)
    assert re.search(r"\| A made-up server \| not fitted \| time to first token, s \| \d", text)
    plots = {path.name: path.read_bytes() for path in (tmp_path / "fidelity").iterdir()}
    assert set(plots) == {"logs.svg", "runs-latency.svg", "runs-accuracy.svg"}
    assert all(len(plot) < 150_000 and b"<text" in plot for plot in plots.values())

    shown = [text, *(plot.decode() for plot in plots.values())]
    folders = (data, tmp_path, Path.cwd(), Path.home(), Path(sys.prefix))
    questions = load_tasks("builtin", split="all").texts
    for content in shown:
        assert not any(str(folder) in content for folder in folders if folder != Path("/"))
        assert not any(question[:40] in content for question in questions)

    assert call(data, tmp_path)[0] == 0
    assert page.read_text(encoding="utf-8") == text
    for name, plot in plots.items():
        assert (tmp_path / "fidelity" / name).read_bytes() == plot


def test_the_shipped_page_has_every_table_filled() -> None:
    page = (Path(fidelity.__file__).parents[1] / "docs" / "fidelity.md").read_text("utf-8")
    regions = re.findall(r"(?s)<!-- table: (\S+) -->(.*?)<!-- end -->", page)
    assert {name for name, _ in regions} == set(TABLES)
    assert all("| --- |" in table for _, table in regions)
    assert page.count("<!-- table:") == len(regions)


def test_errors_are_one_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(folder: Path) -> str:
        code, out, err = call(folder, tmp_path)
        assert (code, out) == (2, "")
        return err.splitlines()[-1]

    assert "fidelity.md does not exist" in error(data)
    (tmp_path / "fidelity.md").write_text(PAGE, encoding="utf-8")
    assert "log.jsonl: cannot be read" in error(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "the extra `plot`" in error(data)


def test_wilson_interval() -> None:
    assert wilson_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0.3, 0) == (0.0, 1.0)
