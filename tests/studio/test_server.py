"""REST and WebSocket of the studio: runs started, followed and stopped; who is admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import httpx
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from typer.testing import CliRunner

from inframind_gym.cli import app as commands
from inframind_gym.studio.runs import TEAMS, Launcher, Ways
from inframind_gym.studio.server import COOKIE, Boards, make_app
from inframind_gym.teams.runs import FORMS, RunStore
from tests.studio.conftest import TASK, TOKEN, until_over
from tests.teams.token_budget.runs import STEP, Model

LOCAL = "http://127.0.0.1:8500"
WS = "ws://127.0.0.1:8500"  # the test client gives other names to its sockets


@pytest.fixture
def client(launcher: Launcher) -> Iterator[TestClient]:
    with TestClient(make_app(launcher, Boards([])), base_url=LOCAL) as made:
        yield made


def start(client: TestClient, settings: dict[str, Any], **query: Any) -> str:
    reply = client.post("/run", json=settings, params=query)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["run_id"])


def listen(client: TestClient, run_id: str, after: int = 0) -> list[dict[str, Any]]:
    """Read the events of a run until the server closes."""
    events = []
    with client.websocket_connect(f"{WS}/ws/{run_id}?after={after}") as socket:
        try:
            while True:
                events.append(socket.receive_json())
        except WebSocketDisconnect as end:
            assert end.code == 1000
    return events


def test_a_run_over_the_wire(client: TestClient) -> None:
    run_id = start(client, TASK)
    events = listen(client, run_id)
    first = {"run_id": run_id, "agent": "planner", "iteration": 1, "status": "running"}
    assert events[0]["event"] == "agent_step"
    assert events[0]["data"].items() >= first.items()
    assert all(set(event["data"]) == STEP for event in events)
    statuses = [event["data"]["status"] for event in events]
    assert statuses[-1] == "complete" and "cutoff" in statuses
    run = client.get(f"/run/{run_id}").json()
    assert (run["status"], run["events"]) == ("complete", events)
    assert run["summary"]["cost_report"]["tokens"] == events[-1]["data"]["cumulative_tokens"]
    assert run["traces"][-1]["cutoff_reason"] == "stop"
    assert [listed["run_id"] for listed in client.get("/runs").json()] == [run_id]
    assert client.get("/runs?team=pool").json() == []
    assert client.get("/runs?team=chess").status_code == 422
    assert listen(client, run_id, after=5) == events[5:]
    assert listen(client, run_id, after=99) == []


def test_a_client_that_leaves_changes_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(wait_s=0.03)
    monkeypatch.setattr(Ways, "open", lambda _: model)
    launcher = Launcher(store, Ways())
    with TestClient(make_app(launcher, Boards([])), base_url=LOCAL) as client:
        run_id = start(client, {"task": "Write.", "strategy": "fixed_k:4"})
        with client.websocket_connect(f"{WS}/ws/{run_id}") as socket:
            first = socket.receive_json()
        assert until_over(launcher, run_id).status == "complete"
        assert listen(client, run_id)[0] == first
    agents = [request.context["agent"] for request in model.requests]
    team = [agent for agent in agents if agent not in ("self_eval", "preflight")]
    assert team == ["planner", "executor", "critic", "executor"]


def test_a_server_that_stops_interrupts_its_runs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ways, "open", lambda _: Model(wait_s=0.2))
    with TestClient(make_app(Launcher(store, Ways()), Boards([])), base_url=LOCAL) as client:
        run_id = start(client, {"task": "Write."})
        with client.websocket_connect(f"{WS}/ws/{run_id}") as socket:
            socket.receive_json()
    run = store.get_run(run_id)
    assert run.status == "interrupted"
    assert (run.summary or {})["cost_report"]["tokens"] > 0


def test_a_run_can_be_stopped(client: TestClient, launcher: Launcher) -> None:
    run_id = start(client, {"num_queries": 500, "speed": 0.5}, team="pool")
    assert launcher.stop(run_id)
    assert until_over(launcher, run_id).status == "interrupted"
    assert not launcher.stop(run_id)


@pytest.mark.parametrize(
    ("team", "settings", "named"),
    [
        ("chess", {}, "chess"),
        ("token-budget", {}, "task"),
        ("token-budget", {"task": "x", "budget": 10}, "500"),
        ("token-budget", {"task": "x", "strategy": "os:system"}, "strategy"),
        ("token-budget", {"task": "x", "strategy": "sb3_maskable_ppo:/etc"}, "folder"),
        ("pool", {"pool": "/etc/passwd"}, "pool"),
        ("gateway", {}, "--gateway"),
        ("servers", {}, "--pool"),
        ("coordination", {"question": "?", "policy": "os:system"}, "policy"),
        ("coordination", {"question": " \n"}, "question"),
        ("assignment", {"iterations": 0}, "iterations"),
    ],
    ids=str,
)
def test_wrong_settings_are_named_and_leave_no_run(
    client: TestClient, store: RunStore, team: str, settings: dict[str, Any], named: str
) -> None:
    reply = client.post(f"/run?team={team}", json=settings)
    assert (reply.status_code, named in reply.text) == (422, True), reply.text
    assert store.list_runs() == []


def test_unknown_names_are_not_found(client: TestClient) -> None:
    for path in ("/run/nothing", "/boards/nothing/report", "/boards/..%2F..%2Fetc/report"):
        assert client.get(path).status_code == 404
    with client.websocket_connect(f"{WS}/ws/nothing") as socket:
        with pytest.raises(WebSocketDisconnect) as end:
            socket.receive_json()
        assert end.value.code == 4404


def test_pages_are_there_or_say_so(serve: Callable[..., str], store: RunStore) -> None:
    pytest.importorskip("nicegui")
    address = serve()
    pairs = {team: [store.create_run(team, {}) for _ in "AB"] for team in FORMS}  # without steps
    for path, status in (
        *((f"/{name}", 200) for name in ("", *TEAMS, "boards")),
        *((f"/compare/{first}/{second}", 200) for first, second in pairs.values()),
        *((f"/{name}", 404) for name in ("docs", "openapi.json", ".env", "%00", "show/x")),
        *((f"/{name}", 404) for name in ("compare/a/b", "boards/x", "boards/x/report")),
    ):
        assert httpx.get(address + path).status_code == status, path


def test_pages_of_others_are_refused_and_answers_have_a_policy(client: TestClient) -> None:
    for headers, status in (
        ({"origin": LOCAL, "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ):
        reply = client.get("/runs", headers=headers)
        assert reply.status_code == status
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        if status == 403:
            with pytest.raises(WebSocketDisconnect):
                client.websocket_connect(f"{WS}/ws/x", headers=headers).__enter__()


def test_a_token_is_asked_for_and_becomes_a_cookie(launcher: Launcher) -> None:
    app = make_app(launcher, Boards([]), token=TOKEN)
    with TestClient(app, base_url="http://studio.example", follow_redirects=False) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/runs", headers=headers).status_code == 200
        headers["origin"] = "http://evil.example"
        assert client.get("/runs", headers=headers).status_code == 403
        page = client.get("/runs", headers={"accept": "text/html"})
        assert (page.status_code, 'action="/sign-in"' in page.text) == (401, True)
        page = client.post("/sign-in", data={"token": "wrong"})
        assert (page.status_code, "not the token" in page.text) == (401, True)
        reply = client.post("/sign-in", data={"token": TOKEN})
        assert reply.status_code == 303
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in client.cookies[COOKIE]
        assert client.get("/runs").status_code == 200
        client.cookies.clear()
        with pytest.raises(WebSocketDisconnect):
            client.websocket_connect("ws://studio.example/ws/x").__enter__()


@pytest.mark.parametrize(
    ("option", "token", "said"),
    [
        ("--host=0.0.0.0", "", "INFRAMIND_STUDIO_TOKEN"),  # other addresses need one
        ("--host=127.0.0.1", "short", "INFRAMIND_STUDIO_TOKEN"),
        ("--provider=opnai", "", "openai"),
        ("--provider=openai", "", "OPENAI_API_KEY"),
    ],
)
def test_what_is_wrong_or_missing_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, token: str, said: str
) -> None:
    pytest.importorskip("nicegui")
    monkeypatch.setenv("INFRAMIND_STUDIO_TOKEN", token)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    runs = tmp_path / "runs.sqlite"
    result = CliRunner().invoke(commands, ["studio", option, "--runs", str(runs)])
    assert (result.exit_code, said in result.output) == (2, True)
    assert not runs.exists()
