"""Measured cells are read with care, re-run as they were run, and compared by honest figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fit import replay
from benchmarks.fit.measured_runs import read_runs
from benchmarks.fit.replay import Constants, load_constants, predict
from inframind_gym.simulator.workflow.topology import STRATEGIES
from tests.calibration.synthetic import with_base_s

NAMES = [
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    "mistralai/Mistral-Small-24B-Instruct-2501",
    "Qwen/Qwen2.5-Coder-14B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
]
QUERIES = 60


@pytest.fixture(scope="module")
def constants() -> Constants:
    return load_constants("b200-2gpu", ["math"])


def latencies(mean: float = 30.0) -> dict[str, float]:
    shape = {"p5": 0.3, "p25": 0.6, "median": 0.9, "p75": 1.3, "p95": 2.0}
    return {"mean": mean, "std": mean, **{key: mean * factor for key, factor in shape.items()}}


def raw_cell(**changes: Any) -> dict[str, Any]:
    """A cell of `mas` on MATH, as it is published."""
    cell: dict[str, Any] = {
        "arrival_rate": 10.0,
        "cost_rate": 10.0,
        "n_episodes": QUERIES,
        "accuracy": 0.7,
        "latency": latencies(),
        "tokens_per_episode": {"prompt": None, "completion": None, "steps_per_episode": 5.5},
        "model_distribution": dict(zip(NAMES, (0.2, 0.3, 0.3, 0.1, 0.1), strict=True)),
        "topology_distribution": {"Math/IO": 0.5, "Math/Debate": 0.1, "Math/Chain": 0.4},
        "num_agents": {"mean": 5, "median": 5.0},
    }
    return {k: v for k, v in {**cell, **changes}.items() if v is not ...}


def raw_agent_cell(**changes: Any) -> dict[str, Any]:
    """A cell of the adaptive agent."""
    joint = {f"{name}|{strategy}": 1 / 15 for name in NAMES for strategy in STRATEGIES}
    own = {"budget": 30.0, "cost_rate": ..., "num_agents": ..., "model_strategy_joint": joint}
    return raw_cell(**{**own, **changes})


def written(folder: Path, content: object) -> Path:
    path = folder / "runs.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def read_cell(tmp_path: Path, method: str = "mas", dataset: str = "math", **changes: Any) -> Any:
    raw = raw_agent_cell if method == "inframind" else raw_cell
    return read_runs(written(tmp_path, {method: {dataset: [raw(**changes)]}}))[0]


# Reading


def test_a_cell_is_read_as_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, {"metadata": {"note": "x"}, "mas": {"math": [raw_cell()]}})
    (cell,) = read_runs(path)
    assert (cell.method, cell.dataset, cell.source) == ("mas", "math", "runs.json: mas.math[0]")
    assert (cell.arrival_rate_per_min, cell.num_queries, cell.accuracy) == (10.0, QUERIES, 0.7)
    assert (cell.cost_rate, cell.budget_s, cell.num_agents, cell.steps) == (10.0, None, 5.0, 5.5)
    assert cell.topology_share == {"IO": 0.5, "Debate": 0.1, "Chain": 0.4}
    assert cell.model_share is not None and cell.model_share[NAMES[1]] == pytest.approx(0.3)
    assert cell.latency_s["p95"] == 60.0


# Runs


def test_slower_servers_change_times_alone(tmp_path: Path, constants: Constants) -> None:
    cell = read_cell(tmp_path, arrival_rate=100.0)
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
    moa = read_cell(tmp_path, "moa", arrival_rate=0.01)
    shares = dict.fromkeys(NAMES[:1], 1.0)
    alone = read_cell(
        tmp_path,
        arrival_rate=0.01,
        model_distribution=shares,
        topology_distribution={"IO": 1.0},
        num_agents=1,
    )
    both, one = predict([moa, alone], constants, 4)
    assert both.calls == 6.0
    assert both.latency_s["mean"] == pytest.approx(2.0 * one.latency_s["mean"], rel=0.15)
