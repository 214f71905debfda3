"""`inframind bench run --set backend=vllm`: the leaderboard of live servers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.errors import InfraMindError
from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cli import app
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.live import LivePlayer
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import read_cells
from inframind_gym.live.processes import free_ports
from inframind_gym.live.simulation import LiveSimulation
from tests.envs.test_live import pool_file

pytest.importorskip("aiohttp", reason="needs the extra `live`")

from tests.envs.test_exporter import Samples, of, scrape
from tests.live.vllm_server.fake import Answer, each_call_once, records, until
from tests.live.vllm_server.live_play import five


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
        yield pool_file(tmp_path, [server.port for server in servers]), servers


def test_live_episodes_fill_the_same_leaderboard(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with servers_of(tmp_path) as (pool, servers):
        summary = run(suite(pool, "round_robin", "bid_price"), folder)
        assert summary.computed == 4
        asked = sum(len(server.requests) for server in servers)
    results = load_results(folder)
    board = leaderboard(results)
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


def test_answers_that_could_not_be_graded_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(*_: object) -> bool:
        raise RuntimeError("cannot be")

    monkeypatch.setattr(LiveSimulation, "_judge", bug)
    with servers_of(tmp_path) as (pool, _):
        run(suite(pool, "round_robin", seeds=1), tmp_path / "results")
    warning = "round_robin on math, 1200/min, tiers, seed 0: 5 answers could not be graded"
    assert warning in capsys.readouterr().err


SCRIPT = """
import sys
from pathlib import Path
from inframind_gym.evaluation.runner import run
from tests.evaluation.test_live import suite
print("ready", flush=True)
summary = run(suite(sys.argv[1], "round_robin", seeds=1), Path(sys.argv[2]))
assert summary.stopped and not summary.computed
print("stopped", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_does_not_wait_for_an_answer(how: signal.Signals, tmp_path: Path) -> None:
    """The servers answer nothing: the next decision, or the end of the sweep, never comes."""
    folder = tmp_path / "results"
    with servers_of(tmp_path, Answer(hang=True)) as (pool, servers):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, pool, str(folder)], stdout=subprocess.PIPE, text=True
        )
        try:
            until(lambda: sum(len(server.requests) for server in servers) >= 5, 120.0)
            time.sleep(0.5)
            began_s = time.monotonic()
            process.send_signal(how)
            said, _ = process.communicate(timeout=60.0)
            took_s = time.monotonic() - began_s
        finally:
            process.kill()
    assert process.returncode == 0 and said.endswith("stopped\n")
    assert took_s < 20.0
    found = {line["status"] for line in records(folder / "requests.jsonl")}
    assert found == {"cancelled"}  # none is lost


def test_a_server_that_is_killed_in_the_middle_costs_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, victim = tmp_path / "results", 2

    def failures() -> list[dict[str, Any]]:
        return [line for line in records(folder / "requests.jsonl") if line["status"] != "ok"]

    def kill_and_start() -> None:
        until(lambda: servers[victim].open and len(servers[victim].requests) > 3)
        servers[victim].kill()
        until(failures)
        servers[victim].start()

    with servers_of(tmp_path, Answer("\\boxed{0}", first_s=0.2)) as (pool, servers):
        killer = threading.Thread(target=kill_and_start)
        killer.start()
        played = suite(pool, "round_robin", num_queries=12, workloads=("mmlu_pro",))
        assert run(played, folder).computed == 2
        killer.join()
    lines, failed = each_call_once(folder / "requests.jsonl"), failures()
    assert {line["model"] for line in failed} == {"qwen-14b"}
    found = [cell.columns for cell in read_cells(folder) if cell]
    assert [list(columns["query"]) for columns in found] == [list(range(12))] * 2
    # What was asked is what the records say.
    assert sum(columns["calls"].sum() for columns in found) == len(lines)
    assert f"calls that failed: {len(failed)}; they were sent again" in capsys.readouterr().err
    assert "qwen-14b is up again" in caplog.text


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
        with pytest.raises(BenchmarkError, match=wanted):
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


def test_a_bound_cannot_be_played_live(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, [9] * 5)
    with pytest.raises(BenchmarkError, match="cannot be foreseen"):
        run(suite(pool, "clairvoyant"), tmp_path / "results")


def test_servers_that_are_not_there_are_told(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, [9] * 5)
    with pytest.raises(InfraMindError, match="inframind pool up"):
        run(suite(pool, "random"), tmp_path / "results")


def test_a_run_shows_its_metrics_while_it_goes_on(tmp_path: Path) -> None:
    seen: list[Samples] = []
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with servers_of(tmp_path) as (pool, _):
        live = LivePlayer(
            suite(pool, "round_robin", "bid_price", seeds=1),
            progress=lambda count: seen.append(scrape(url)),
            export_port=port,
        )
        with closing(live):
            played = {cell.policy: records for cell, records, _ in live.run(live.suite.cells())}
            last = scrape(url)  # of both policies: they share the servers that are watched
    with pytest.raises(OSError, match="refused"):
        scrape(url)
    shown = [labels[1] for s in seen for name, labels in s if name == "inframind_router_info"]
    assert shown[0] == "round_robin" and shown[-1] == "bid_price"
    nodes = sum(int(records["num_nodes"].sum()) for records in played.values())
    assert sum(of(last, "inframind_decisions_total").values()) == nodes
    assert sum(of(last, "inframind_plans_total").values()) == 5  # bid_price plans
    assert sum(of(last, "inframind_queries_total").values()) == 10
    calls = sum(int(records["calls"].sum()) for records in played.values())
    assert sum(of(last, "inframind_calls_total").values()) == calls
    assert last["inframind_episodes_total", ()] == 2


def test_simulated_runs_have_no_metrics_to_show(tmp_path: Path) -> None:
    arguments = ["--set", "export_port=0", "--policies", "random", "--out", str(tmp_path / "r")]
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 2
    assert "--set backend=vllm" in result.stderr
    assert not (tmp_path / "r").exists()


def test_the_metrics_port_reaches_the_servers_run(tmp_path: Path) -> None:
    pool = pool_file(tmp_path, [9] * 5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = [
            "--set",
            "backend=vllm",
            "--pool",
            pool,
            "--policies",
            "random",
            "--seeds",
            "1",
        ]
        arguments += ["--set", f"export_port={port}", "--out", str(tmp_path / "r")]
        result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: Address already in use" in result.stderr
