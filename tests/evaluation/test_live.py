"""`inframind bench run --set backend=vllm`: the leaderboard of live servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import read_cells

pytest.importorskip("aiohttp", reason="needs the extra `live`")

from tests.live.vllm_server.fake import Answer, each_call_once, records, until
from tests.live.vllm_server.live_play import five, pool_file


def suite(pool: str, *policies: str, **changes: Any) -> RoutingSuite:
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
    return RoutingSuite(**(fields | changes)).resolve()


@contextmanager
def servers_of(tmp_path: Path, answer: Answer | None = None) -> Iterator[tuple[str, list[Any]]]:
    """A pool of servers that all give one answer: the pool's file, and the servers."""
    with five(lambda *_: answer or Answer("\\boxed{0}")) as servers:
        yield pool_file(tmp_path, [server.url for server in servers]), servers


def test_live_episodes_fill_the_same_leaderboard(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with servers_of(tmp_path) as (pool, servers):
        assert run(suite(pool, "round_robin", "bid_price"), folder).computed == 4
        asked = sum(len(server.requests) for server in servers)
    board = leaderboard(load_results(folder))
    assert board["backend"] == "vllm"
    assert {row["policy"] for row in board["ranking"]} == {"round_robin", "bid_price"}
    assert all(0 < row["latency_mean_s"] < 30 for row in board["ranking"])
    assert "live on pool" in leaderboard_tables(board)[0].title
    lines = records(folder / "requests.jsonl")
    assert len(lines) == asked > 20
    assert {line["status"] for line in lines} == {"ok"}
    tasks = {
        (found.cell.policy, found.cell.seed): found.columns["task"].tolist()
        for found in read_cells(folder)
    }
    for seed in range(2):  # both met the same queries
        assert tasks["round_robin", seed] == tasks["bid_price", seed]
    # What is there is not played again.
    assert run(suite(pool, "round_robin", "bid_price"), folder).computed == 0


def test_a_run_whose_servers_are_all_killed_ends_and_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own = tmp_path / "results", RoutingSuite.env_kwargs
    monkeypatch.setattr(RoutingSuite, "env_kwargs", lambda *of: own(*of) | {"patience_s": 1.0})

    def kill() -> None:
        until(lambda: (folder / "requests.jsonl").exists())
        until(lambda: any(line["episode"] for line in records(folder / "requests.jsonl")))
        for server in servers:
            server.kill()

    with servers_of(tmp_path, Answer("\\boxed{0}", first_s=0.05)) as (pool, servers):
        killer = threading.Thread(target=kill)
        played = suite(pool, "round_robin", num_queries=20, workloads=("mmlu_pro",))
        killer.start()
        wanted = r"seed 1: no model of the pool has been up for 1 s.* cells are kept.* pool up"
        with pytest.raises(ConfigError, match=wanted):
            run(played, folder)
        killer.join()
        before = len(each_call_once(folder / "requests.jsonl"))
        assert len(list(read_cells(folder))) == 1
        for server in servers:
            server.start()
        assert run(played, folder).computed == 1
    assert len(list(read_cells(folder))) == 2
    again = records(folder / "requests.jsonl")[before:]
    assert {(line["status"], line["episode"]) for line in again} == {("ok", 0)}
