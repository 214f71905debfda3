"""Measured cells are read with care, re-run as they were run, and compared by honest figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fit import replay
from benchmarks.fit.measured_runs import read_runs
from benchmarks.fit.replay import Constants, load_constants, predict
from tests.calibration.synthetic import measured_cell, with_base_s


@pytest.fixture(scope="module")
def constants() -> Constants:
    return load_constants("b200-2gpu", ["math"])


def read_cell(tmp_path: Path, method: str = "mas", rate: float = 10.0, **changes: Any) -> Any:
    path, cell = tmp_path / "runs.json", measured_cell(rate, **changes)
    path.write_text(json.dumps({"metadata": {"note": "x"}, method: {"math": [cell]}}))
    return read_runs(path)[0]


def test_a_cell_is_read_as_it_stands(tmp_path: Path) -> None:
    cell = read_cell(tmp_path, cost_rate=10.0)
    assert (cell.method, cell.dataset, cell.source) == ("mas", "math", "runs.json: mas.math[0]")
    assert (cell.arrival_rate_per_min, cell.num_queries, cell.accuracy) == (10.0, 60, 0.7)
    assert (cell.cost_rate, cell.budget_s, cell.num_agents, cell.steps) == (10.0, None, 5.0, 5.5)
    assert cell.topology_share == {"IO": 0.5, "Debate": 0.1, "Chain": 0.4}
    assert cell.model_share["mistralai/Mistral-Small-24B-Instruct-2501"] == pytest.approx(0.3)
    assert cell.latency_s["p95"] == 60.0


def test_slower_servers_change_times_alone(tmp_path: Path, constants: Constants) -> None:
    cell = read_cell(tmp_path, rate=100.0)
    (first,) = predict([cell], constants, 2)
    slow = tuple(with_base_s(model, 2.0) for model in constants.pool.models)
    pool = constants.pool.model_copy(update={"models": slow})
    (slower,) = predict([cell], constants._replace(pool=pool), 2)
    assert slower.latency_s["mean"] > 1.5 * first.latency_s["mean"]
    assert slower.accuracy == first.accuracy
    assert predict([cell], constants, 2) == [first]


def test_moa_is_as_slow_as_its_slowest_proposal_and_the_aggregator(
    tmp_path: Path, constants: Constants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On empty servers: two calls of DeepSeek, one after the other."""
    monkeypatch.setattr(replay, "LENGTH_FACTORS", {})
    moa = read_cell(tmp_path, "moa", 0.01)
    one = {"topology_distribution": {"IO": 1.0}, "num_agents": 1}
    one["model_distribution"] = {constants.pool.models[0].name: 1.0}
    alone = read_cell(tmp_path, "mas", 0.01, **one)
    both, single = predict([moa, alone], constants, 4)
    assert both.calls == 6.0
    assert both.latency_s["mean"] == pytest.approx(2.0 * single.latency_s["mean"], rel=0.15)
