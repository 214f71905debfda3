"""The API: runs that are started, followed and stopped, admission, headers, boards, export."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from inframind_gym.errors import ConfigError
from inframind_gym.studio.app import require_bundle
from inframind_gym.studio.boards import script_hashes
from inframind_gym.studio.export import write_static
from inframind_gym.studio.security import COOKIE, require_token
from tests.studio.conftest import TOKEN, Studio, until_over

SCRIPTED = {"task": "Write.", "profile": "seed-example"}
WS = "ws://127.0.0.1:8500"


def start(client: TestClient, team: str, settings: dict[str, Any], delay_s: float = 0.0) -> str:
    order = {"team": team, "settings": settings, "delay_s": delay_s}
    reply = client.post("/api/runs", json=order)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["run_id"])


def follow(client: TestClient, run_id: str, after: int = 0) -> tuple[list[Any], Any]:
    """Read the events of a run until the server closes; returns them and the run."""
    events: list[Any] = []
    run = None
    with client.websocket_connect(f"{WS}/api/runs/{run_id}/events?after={after}") as socket:
        try:
            while True:
                message = socket.receive_json()
                events += message.get("events", [])
                run = message.get("run", run)
        except WebSocketDisconnect as end:
            assert end.code == 1000
    return events, run


def test_a_run_is_followed_from_any_number_on(studio: Studio, client: TestClient) -> None:
    run_id = start(client, "token-budget", SCRIPTED, delay_s=0.02)
    events, run = follow(client, run_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert run["status"] == "complete"
    assert run["summary"]["cost_report"]["tokens"] == 12_500
    assert run["settings"]["roi_threshold"] == 0.005
    later, again = follow(client, run_id, after=7)
    assert later == events[7:]
    assert again == run
    assert client.get(f"/api/runs/{run_id}/events?after=7").json() == later
    assert studio.launcher.owned() == []


def test_assignment_tells_the_table_that_it_learns(studio: Studio, client: TestClient) -> None:
    run_id = start(client, "assignment", {"iterations": 12})
    assert until_over(client, run_id)["status"] == "complete"
    steps = [event.data for event in studio.store.events(run_id) if event.kind == "iteration"]
    assert len(steps) == 12
    assert all(step["q"] > 0.0 for step in steps)
    run_id = start(client, "assignment", {"iterations": 2, "router": "random"})
    until_over(client, run_id)
    steps = [event.data for event in studio.store.events(run_id) if event.kind == "iteration"]
    assert [step["q"] for step in steps] == [None, None]


def test_a_stream_tells_its_servers_decisions_and_queries(
    studio: Studio, client: TestClient
) -> None:
    settings = {"num_queries": 12, "speed": None, "policy": "least_loaded"}
    run_id = start(client, "pool", settings)
    run = until_over(client, run_id)
    assert run["status"] == "complete", run
    events = studio.store.events(run_id)
    (servers,) = [event.data for event in events if event.kind == "servers"]
    queries = [event.data for event in events if event.kind == "query"]
    routes = [event.data for event in events if event.kind == "decision"]
    last = [event.data for event in events if event.kind == "sample"][-1]
    assert sorted(query["query"] for query in queries) == list(range(12))
    assert {route["server"] for route in routes} <= set(range(len(servers["names"])))
    assert (last["arrived"], last["done"], sum(last["running"])) == (12, 12, 0)
    good = sum(query["solved"] and query["latency_s"] <= query["budget_s"] for query in queries)
    assert run["summary"]["goodput"] == pytest.approx(good / 12)


def test_a_run_can_be_stopped(client: TestClient) -> None:
    run_id = start(client, "pool", {"num_queries": 500, "speed": 0.5})
    time.sleep(0.1)
    assert run_id in client.get("/api/runs").json()["owned"]
    assert client.post(f"/api/runs/{run_id}/stop", json={}).status_code == 200
    assert until_over(client, run_id)["status"] == "interrupted"
    assert client.post(f"/api/runs/{run_id}/stop", json={}).status_code == 404


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"team": "chess"}, "unknown team 'chess'"),
        ({"team": "token-budget", "settings": {}}, "task"),
        ({"team": "pool", "settings": {"pool": "/etc/passwd"}}, "unknown pool"),
        ({"team": "pool", "settings": {"policy": "os:system"}}, "unknown policy"),
        ({"team": "pool", "settings": {"source": "gateway"}}, "--gateway"),
        ({"team": "coordination", "settings": {"question": "?", "policy": "a:B"}}, "unknown"),
        ({"team": "coordination", "settings": {"question": "?", "fault": "x:y"}}, "unknown agent"),
        ({"team": "assignment", "settings": {"iterations": 0}}, "iterations"),
        ({"team": "assignment", "delay_s": 9.0}, "delay_s"),
    ],
)
def test_a_wrong_order_is_refused_in_words(
    studio: Studio, client: TestClient, order: dict[str, Any], words: str
) -> None:
    reply = client.post("/api/runs", json=order)
    assert reply.status_code == 422
    assert words in reply.json()["detail"]
    assert studio.store.list_runs() == []


def closing_code(socket: Any) -> int:
    """Return the code with which the server closes a WebSocket."""
    with pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_json()
    return closed.value.code


def test_a_number_that_no_event_has_is_refused(client: TestClient) -> None:
    run_id = client.post("/api/runs", json={"team": "pool"}).json()["run_id"]
    events = f"/api/runs/{run_id}/events"
    assert client.get(f"{events}?after={10**30}").status_code == 422
    assert client.get(f"{events}?after={2**53}").json() == []


def test_unknown_names_are_not_found(client: TestClient) -> None:
    assert client.get("/api/runs/nothing").status_code == 404
    assert client.get("/api/runs/nothing/events").status_code == 404
    assert client.get("/api/boards/..%2F..%2Fetc/report").status_code == 404
    with client.websocket_connect(f"{WS}/api/runs/nothing/events") as socket:
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 4404


def test_pages_of_others_are_refused(client: TestClient) -> None:
    elsewhere = {"origin": "http://evil.example"}
    assert client.get("/api/runs", headers=elsewhere).status_code == 403
    assert client.post("/api/runs", json={"team": "pool"}, headers=elsewhere).status_code == 403
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 403
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert client.get("/api/runs", headers={"sec-fetch-site": site}).status_code == status
    address = f"{WS}/api/runs/x/events"
    with client.websocket_connect(address, headers=elsewhere) as socket:
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 4403


def test_every_answer_has_its_headers(client: TestClient) -> None:
    for path in ("/", "/api/info", "/api/runs/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe-inline" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_a_token_is_asked_for_and_becomes_a_cookie(tmp_path: Path) -> None:
    studio, events = Studio(tmp_path, token=TOKEN), "/api/runs/x/events"
    with TestClient(studio.app, base_url="http://studio.example") as client:
        assert client.get("/").status_code == 200  # the page itself tells nothing
        assert client.get("/api/runs").status_code == 401
        assert client.post("/api/session", json={"token": "wrong"}).status_code == 401
        wrong = {"authorization": "Bearer wrong"}
        assert client.get("/api/runs", headers=wrong).status_code == 401
        right = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/runs", headers=right).status_code == 200
        reply = client.post("/api/session", json={"token": TOKEN})
        assert reply.status_code == 200
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in client.cookies[COOKIE]
        assert client.get("/api/runs").status_code == 200
        with client.websocket_connect(f"ws://studio.example{events}") as socket:
            assert closing_code(socket) == 4404  # admitted: there is no such run
        client.cookies.clear()
        forged = {"cookie": f"{COOKIE}={'0' * 64}"}
        assert client.get("/api/runs", headers=forged).status_code == 401
        for headers in ({}, forged, wrong):
            with client.websocket_connect(
                f"ws://studio.example{events}", headers=headers
            ) as socket:
                assert closing_code(socket) == 4403
    studio.close()


def test_other_addresses_need_a_good_token() -> None:
    assert require_token("127.0.0.1", None) is None
    assert require_token("0.0.0.0", TOKEN) == TOKEN
    with pytest.raises(ConfigError, match="INFRAMIND_STUDIO_TOKEN"):
        require_token("0.0.0.0", None)
    with pytest.raises(ConfigError, match="at least 16"):
        require_token("127.0.0.1", "short")


def test_a_page_that_is_not_built_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make studio"):
        require_bundle(tmp_path)


def test_folders_that_are_no_results_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "results" / "torn").mkdir(parents=True)
    (tmp_path / "results" / "torn" / "run.json").write_text("{")
    studio = Studio(tmp_path, (tmp_path / "results", tmp_path / "missing"))
    (row,) = studio.pages.boards.listed()
    assert row["name"] == "torn"
    assert "run.json" in row["error"]
    studio.close()


def test_scripts_of_a_report_are_admitted_by_their_hashes() -> None:
    page = '<script type="application/json">{}</script><script>\nlet a = 1;\n</script>'
    assert script_hashes(page).count("sha256-") == 1
    assert script_hashes(page) != script_hashes(page.replace("a = 1", "a = 2"))


def test_the_record_of_a_studio_is_files(
    studio: Studio, client: TestClient, tmp_path: Path
) -> None:
    ids = [start(client, "token-budget", {**SCRIPTED, "seed": seed}) for seed in (0, 1)]
    for run_id in ids:
        until_over(client, run_id)
    out = tmp_path / "record"
    assert write_static(studio.pages, out, studio.bundle) == "2 runs, 0 boards"
    index = (out / "index.html").read_text()
    assert 'content="static"' in index
    assert "script-src 'self'" in index and "frame-ancestors" not in index
    events = json.loads((out / "api" / "runs" / ids[0] / "events.json").read_text())
    assert events == client.get(f"/api/runs/{ids[0]}/events").json()
    compared = json.loads((out / "api" / "compare" / ids[0] / f"{ids[1]}.json").read_text())
    assert compared == client.get(f"/api/compare/{ids[0]}/{ids[1]}").json()
    write_static(studio.pages, out, studio.bundle)  # again, into its own folder
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="other files"):
        write_static(studio.pages, tmp_path / "mine", studio.bundle)
