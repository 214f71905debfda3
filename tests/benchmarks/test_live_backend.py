"""`python -m benchmarks run --backend vllm`: the leaderboard of live servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.leaderboard import leaderboard
from benchmarks.results import load_results
from benchmarks.runner import resolve, run
from benchmarks.suite import SuiteConfig
from benchmarks.tables import leaderboard_sheets
from inframind_gym.errors import InfraMindError
from inframind_gym.serving.pool import load_pool
from tests.envs.test_live import pool_file

pytest.importorskip("aiohttp", reason="needs the extra `live`")

from tests.serving.vllm_server.fake import Answer, FakeServer


def suite(pool: str, *policies: str, **changes: Any) -> SuiteConfig:
    fields: dict[str, Any] = {
        "name": "tiny",
        "pool": pool,
        "policies": policies,
        "workloads": ("math",),
        "rates_per_min": (1200.0,),
        "budgets_s": ("tiers",),
        "seeds": 2,
        "num_queries": 5,
        "backend": "vllm",
        "live": {"health_s": 0.05},
    }
    return resolve(SuiteConfig(**(fields | changes)))


def test_live_sweeps_fill_the_same_leaderboard(tmp_path: Path) -> None:
    servers = [
        FakeServer(lambda request, number: Answer("\\boxed{0}"), model=m.name)
        for m in load_pool("b200-2gpu").models
    ]
    try:
        pool = pool_file(tmp_path, [server.port for server in servers])
        folder = tmp_path / "results"
        summary = run(suite(pool, "round_robin", "headway"), folder)
        assert summary.computed == 4
        asked = sum(len(server.requests) for server in servers)
    finally:
        for server in servers:
            server.__exit__(None, None, None)
    results = load_results(folder)
    board = leaderboard(results)
    assert board["backend"] == "vllm"
    assert {row["policy"] for row in board["ranking"]} == {"round_robin", "headway"}
    assert all(0 < row["latency_mean_s"] < 30 for row in board["ranking"])
    assert "live on pool" in leaderboard_sheets(board)[0].title
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == asked > 20
    assert {json.loads(line)["status"] for line in lines} == {"ok"}
    # Both met the same queries.
    tasks = {
        policy: [
            [episode["task"] for episode in block]
            for cell, block in sorted(_episodes(folder).items())
            if cell[0] == policy
        ]
        for policy in ("round_robin", "headway")
    }
    assert tasks["round_robin"] == tasks["headway"]
    # What is there is not played again.
    assert run(suite(pool, "round_robin", "headway"), folder).computed == 0


def _episodes(folder: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    from benchmarks.store import read_blocks, read_episodes

    found = read_episodes(folder, read_blocks(folder))
    return {(block.cell.policy, block.cell.seed): episodes for block, episodes in found}


def test_a_bound_cannot_be_played_live(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, [9] * 5)
    with pytest.raises(BenchmarkError, match="cannot be foreseen"):
        run(suite(pool, "clairvoyant"), tmp_path / "results")


def test_servers_that_are_not_there_are_told(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, [9] * 5)
    with pytest.raises(InfraMindError, match="inframind pool up"):
        run(suite(pool, "random"), tmp_path / "results")
