"""The fidelity page shows the computed figures, and nothing of the machine or the tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import benchmarks.__main__  # noqa: F401  # registers the command
from benchmarks import fidelity
from benchmarks.fidelity import Log
from benchmarks.fit.measured_runs import ERRORS, read_runs
from inframind_gym.calibration import server_card
from inframind_gym.calibration.server_card import Limits
from inframind_gym.evaluation.cli import app
from inframind_gym.simulator.server.pool import load_pool
from tests.calibration import synthetic

PAGE = "# By hand\n\n" + "".join(
    f"<!-- table: {name} -->\n(stale)\n<!-- end -->\n" for name in ("targets", "failures")
)


def measured_cell(rate: float = 10.0, mean_s: float = 30.0, **changes: Any) -> dict[str, Any]:
    """A cell of `mas` on MATH, as it is published."""
    shape = {"p5": 0.3, "p25": 0.6, "median": 0.9, "p75": 1.3, "p95": 2.0}
    names = [model.name for model in load_pool("b200-2gpu").models]
    return {
        "arrival_rate": rate,
        "n_episodes": 60,
        "accuracy": 0.7,
        "latency": {"mean": mean_s, **{name: mean_s * of for name, of in shape.items()}},
        "tokens_per_episode": {"prompt": None, "completion": None, "steps_per_episode": 5.5},
        "model_distribution": dict(zip(names, (0.2, 0.3, 0.3, 0.1, 0.1), strict=True)),
        "topology_distribution": {"Math/IO": 0.5, "Math/Debate": 0.1, "Math/Chain": 0.4},
        "num_agents": {"mean": 5, "median": 5.0},
        **changes,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "vllm_traces").mkdir()
    synthetic.write(folder / "vllm_traces", synthetic.rows(synthetic.card(), 60))
    routes = {"Qwen/Qwen2.5-Coder-14B-Instruct|Flash": 1.0}
    runs = {
        "mas": {"math": [measured_cell(rate, 33.0, cost_rate=5.0) for rate in (10.0, 60.0)]},
        "inframind": {"math": [measured_cell(budget=50.0, model_strategy_joint=routes)]},
    }
    (folder / "measured_runs.json").write_text(json.dumps(runs), encoding="utf-8")
    return folder


def call(data: Path, out: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fidelity", str(data), "--out", str(out), "--seeds", "1"])
    return result.exit_code, result.stdout, result.stderr


def test_the_page_is_filled_and_stays_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log("A made-up server", Limits(16, 1024), "llama-3.1-8b", "RTX-4090", 1)
    monkeypatch.setattr(fidelity, "LOGS", {"log.jsonl": log})
    monkeypatch.setattr(fidelity, "LOG_LIMITS", (1.0, 1e-9, 5.0))
    page = tmp_path / "fidelity.md"
    page.write_text(PAGE, encoding="utf-8")
    off = {f"{error}_median": 4.0 for error in ERRORS}
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps({"left_out": {"50": {"mas": {"cells": 15, **off}}}}), "utf-8")
    monkeypatch.setattr(fidelity, "FIT", fit)
    monkeypatch.setattr(server_card, "_EVALUATIONS", 200)  # a rough fit has its page, too
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


def test_a_cell_is_read_as_it_stands(data: Path) -> None:
    cell = read_runs(data / "measured_runs.json")[0]
    source = "measured_runs.json: mas.math[0]"
    assert (cell.method, cell.dataset, cell.source) == ("mas", "math", source)
    assert (cell.arrival_rate_per_min, cell.num_queries, cell.accuracy) == (10.0, 60, 0.7)
    assert (cell.cost_rate, cell.budget_s, cell.num_agents, cell.steps) == (5.0, None, 5.0, 5.5)
    assert cell.topology_share == {"IO": 0.5, "Debate": 0.1, "Chain": 0.4}
    assert cell.model_share is not None
    assert cell.model_share["mistralai/Mistral-Small-24B-Instruct-2501"] == pytest.approx(0.3)
    assert cell.latency_s["p95"] == 66.0


def test_a_perfect_model_misses_by_chance_alone() -> None:
    found = fidelity.perfect_model_pct([{"episode_sd": 0.1}] * 101)
    assert found == pytest.approx(6.745, abs=0.05)  # 10 %: a normal's quartile
