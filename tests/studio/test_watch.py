"""Live servers and a gateway that are watched, and runs that go wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.metrics import Metrics
from inframind_gym.studio.launch import BusyError, Launcher, PacedLog, Ways
from inframind_gym.teams.runs.store import RunStore

GAUGES = (
    ("router_info", ("gateway", "a pool", "mixed", "least_loaded"), 1.0),
    ("queries_in_flight", (), 3.0),
    *(("server_up", (name,), 1.0) for name in ("big", "small")),
    *(("calls_in_flight", (name,), n) for name, n in (("big", 2.0), ("small", 1.0))),
    *(("queue_depth_seen_requests", (name,), n) for name, n in (("big", 5.0), ("small", 0.0))),
    *(("kv_cache_seen", (name,), n) for name, n in (("big", 0.25), ("small", 0.0))),
    *(("breaker_open", (name,), n) for name, n in (("big", 0.0), ("small", 1.0))),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / "runs.sqlite") as opened:
        yield opened


@pytest.fixture
def gateway() -> Iterator[str]:
    """Serve the metrics of a gateway."""
    metrics = Metrics()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(metrics.write(GAUGES))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def until_over(launcher: Launcher, run_id: str) -> None:
    last_s = time.monotonic() + 120.0
    while run_id in launcher.owned():
        assert time.monotonic() < last_s
        time.sleep(0.02)


def watch(store: RunStore, source: str, ways: Ways) -> tuple[Any, dict[str, list[Any]]]:
    """Watch for a second; returns the run and its events by kind."""
    launcher = Launcher(store, ways)
    run_id = launcher.start("pool", {"source": source, "watch_s": 1.0, "poll_s": 0.3})
    until_over(launcher, run_id)
    events: dict[str, list[Any]] = {}
    for event in store.events(run_id):
        events.setdefault(event.kind, []).append(event.data)
    return store.get_run(run_id), events


def test_a_gateway_is_watched_by_its_metrics(store: RunStore, gateway: str) -> None:
    run, events = watch(store, "gateway", Ways(gateway=gateway))
    assert run.status == "complete", run.summary
    (servers,) = events["servers"]
    assert servers["names"] == ["big", "small"]
    assert servers["about"]["policy"] == "least_loaded"
    first = events["sample"][0]
    assert (first["running"], first["waiting"], first["kv"]) == ([2, 1], [5, 0], [0.25, 0.0])
    assert (first["left_alone"], first["in_flight"]) == ([0, 1], 3)


def test_requests_of_a_gateway_come_from_its_access_log(
    store: RunStore, gateway: str, tmp_path: Path
) -> None:
    log = tmp_path / "access.jsonl"
    log.write_text('{"asked": "before the studio looked"}\n')
    launcher = Launcher(store, Ways(gateway=gateway, access_log=log))
    run_id = launcher.start("pool", {"source": "gateway", "watch_s": 60.0, "poll_s": 0.2})
    last_s = time.monotonic() + 60.0
    while len(store.events(run_id)) < 2:
        assert time.monotonic() < last_s
        time.sleep(0.02)
    with log.open("a") as file:
        file.write(json.dumps({"asked": "inframind/auto", "model": "big", "tenant": "x"}) + "\n")
        file.write('torn\n{"asked": "not yet whole')
    found: list[Any] = []
    while len(found) < 2:
        assert time.monotonic() < last_s
        found = [event.data for event in store.events(run_id) if event.kind == "request"]
    launcher.close()
    assert (found[0]["asked"], found[0]["model"]) == ("inframind/auto", "big")
    assert "tenant" not in found[0]
    assert "cannot be read" in found[1]["error"]
    assert store.get_run(run_id).status == "interrupted"


def test_a_gateway_that_is_not_there_fails_in_words(store: RunStore) -> None:
    run, _ = watch(store, "gateway", Ways(gateway="http://127.0.0.1:9"))
    assert run.status == "failed"
    assert "inframind serve" in run.summary["error"]


def test_servers_of_a_pool_that_are_down_are_shown_so(store: RunStore) -> None:
    run, events = watch(store, "pool", Ways(pool="cpu-tiny"))
    assert run.status == "complete", run.summary
    first = events["sample"][0]
    assert set(first["up"]) == {0}
    assert all(first["notes"])


def test_a_run_that_goes_wrong_is_failed_and_leaves_its_place(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(log: PacedLog) -> None:
        raise InfraMindError("the model is gone")

    monkeypatch.setattr("inframind_gym.studio.teams.player", lambda *_: (play, {}))
    launcher = Launcher(store, Ways(), most_runs=1)
    run_id = launcher.start("assignment", {})
    until_over(launcher, run_id)
    assert store.get_run(run_id).summary == {"error": "the model is gone"}


def test_only_so_many_runs_are_under_way(store: RunStore) -> None:
    launcher = Launcher(store, Ways(), most_runs=1)
    launcher.start("token-budget", {"task": "Write.", "profile": "seed-example"}, 5.0)
    with pytest.raises(BusyError, match="1 runs are under way"):
        launcher.start("token-budget", {"task": "Write."})
    with pytest.raises(ConfigError, match="budget"):
        launcher.start("token-budget", {"task": "Write.", "budget": 1})
    launcher.close()
    assert store.list_runs()[0].status == "interrupted"
