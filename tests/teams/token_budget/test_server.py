"""REST, WebSocket and server-sent events of the team, through a test client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from inframind_gym.teams.runs.store import RunStore
from inframind_gym.teams.token_budget.server import make_app
from tests.teams.token_budget.runs import AgentStep, Model

SEED_EXAMPLE = {"task": "Write.", "profile": "seed-example"}
LOCAL = "http://127.0.0.1:8400"
WS = "ws://127.0.0.1:8400"  # the test client gives other names to its sockets


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / "runs.sqlite") as opened:
        yield opened


@pytest.fixture
def client(store: RunStore) -> Iterator[TestClient]:
    with TestClient(make_app(store, lambda: None), base_url=LOCAL) as made:
        yield made


def start(client: TestClient, **order: Any) -> str:
    reply = client.post("/run", json={"task": "Write.", **order})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["run_id"])


def listen(client: TestClient, run_id: str, **query: Any) -> list[dict[str, Any]]:
    """All events of a run until the server closes."""
    asked = "&".join(f"{k}={v}" for k, v in query.items())
    events = []
    with client.websocket_connect(f"{WS}/ws/{run_id}?{asked}") as socket:
        try:
            while True:
                events.append(socket.receive_json())
        except WebSocketDisconnect as end:
            assert end.code == 1000
    return events


def wait(client: TestClient, run_id: str) -> dict[str, Any]:
    until = time.monotonic() + 20.0
    while (run := client.get(f"/run/{run_id}").json())["status"] == "running":
        assert time.monotonic() < until
        time.sleep(0.02)
    return dict(run)


def test_the_worked_example_over_the_wire(client: TestClient) -> None:
    run_id = start(client, **SEED_EXAMPLE)
    events = listen(client, run_id)
    assert events[0] == {
        "event": "agent_step",
        "data": {
            "run_id": run_id,
            "agent": "planner",
            "iteration": 1,
            "tokens_used": 2100,
            "tokens_remaining": 17900,
            "quality_score": 62.0,
            "quality_delta": 62.0,
            "roi": pytest.approx(0.0295, abs=5e-5),
            "cumulative_tokens": 2100,
            "status": "running",
            "output_preview": events[0]["data"]["output_preview"],
        },
    }
    assert all(AgentStep.model_validate(event) for event in events)
    assert all(len(event["data"]["output_preview"]) <= 200 for event in events)
    assert [event["data"]["status"] for event in events][-3:] == ["cutoff", "running", "complete"]
    run = wait(client, run_id)
    assert run["status"] == "complete"
    assert run["events"] == events
    assert run["summary"]["cost_report"]["tokens"] == 12_500
    assert [t["cutoff_reason"] for t in run["traces"]][-3:] == ["roi", "", "stop"]
    assert [listed["run_id"] for listed in client.get("/runs").json()] == [run_id]


def test_events_are_read_again_from_any_number(client: TestClient) -> None:
    run_id = start(client, **SEED_EXAMPLE)
    events = listen(client, run_id)
    assert listen(client, run_id) == events
    assert listen(client, run_id, after=5) == events[5:]
    assert listen(client, run_id, after=99) == []

    def sse(**arguments: Any) -> list[str]:
        reply = client.get(f"/events/{run_id}", **arguments)
        assert reply.headers["content-type"].startswith("text/event-stream")
        return reply.text.strip().split("\n\n")

    blocks = sse()
    assert len(blocks) == len(events) + 1
    assert blocks[0].startswith("id: 1\nevent: agent_step\ndata: ")
    assert json.loads(blocks[0].rpartition("data: ")[2]) == events[0]
    assert blocks[-1] == 'event: end\ndata: {"status": "complete"}'
    assert sse(params={"after": 6}) == sse(headers={"last-event-id": "6"}) == blocks[6:]


def test_a_client_that_leaves_changes_nothing(store: RunStore) -> None:
    model = Model(wait_s=0.03)
    with TestClient(make_app(store, lambda: model), base_url=LOCAL) as client:
        run_id = start(client, strategy="fixed_k:4")
        with client.websocket_connect(f"{WS}/ws/{run_id}") as socket:
            first = socket.receive_json()
        assert client.get(f"/run/{run_id}").json()["status"] == "running"
        run = wait(client, run_id)
        assert run["status"] == "complete"
        assert run["events"][0] == first
        assert listen(client, run_id, after=1) == run["events"][1:]
    agents = [request.context["agent"] for request in model.requests]
    assert [a for a in agents if a not in ("self_eval", "preflight")] == [
        "planner", "executor", "critic", "executor",
    ]  # fmt: skip


def test_a_server_that_stops_interrupts_its_runs(store: RunStore) -> None:
    with TestClient(make_app(store, lambda: Model(wait_s=0.2)), base_url=LOCAL) as client:
        run_id = start(client)
        with client.websocket_connect(f"{WS}/ws/{run_id}") as socket:
            socket.receive_json()
    run = store.get_run(run_id)
    assert run.status == "interrupted"
    assert run.summary is not None
    assert run.summary["cost_report"]["tokens"] > 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "task"),
        ({"task": ""}, "task"),
        ({"task": "x", "budget": 10}, "500"),
        ({"task": "x", "budgets": 1000}, "budgets"),
        ({"task": "x", "strategy": "os:system"}, "unknown strategy"),
        ({"task": "x", "strategy": "fixed_k:none"}, "fixed_k"),
        ({"task": "x", "strategy": "sb3_maskable_ppo:/etc"}, "takes no folder"),
        ({"task": "x", "strategy": "optimum"}, "unknown strategy"),
        ({"task": "x", "profile": "nothing"}, "unknown profile"),
    ],
    ids=str,
)
def test_wrong_orders_are_refused_and_leave_no_run(
    client: TestClient, body: dict[str, Any], problem: str
) -> None:
    reply = client.post("/run", json=body)
    assert reply.status_code == 422
    assert problem in reply.text
    assert client.get("/runs").json() == []


@pytest.mark.parametrize("named", ["adaptive", "a_module"])
def test_an_order_imports_no_module(
    client: TestClient, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of modes are no names of modules, whatever lies in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path(f"{named}.py").write_text("open('imported', 'w')\nclass Foo: ...\n")
    reply = client.post("/run", json={"task": "x", "strategy": f"{named}:Foo"})
    assert reply.status_code == 422
    assert "unknown strategy" in reply.text
    assert not Path("imported").exists()


def test_unknown_runs(client: TestClient) -> None:
    start(client)
    for path in ("/run/nothing", "/events/nothing"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()) == (404, {"detail": "no run of this name"})
    with client.websocket_connect(f"{WS}/ws/nothing") as socket:
        with pytest.raises(WebSocketDisconnect) as end:
            socket.receive_json()
        assert end.value.code == 4404


def test_other_origins_and_other_names_are_refused(store: RunStore) -> None:
    app = make_app(store, lambda: None)
    with TestClient(app, base_url=LOCAL) as client:
        foreign = {"origin": "http://evil.example"}
        assert client.get("/runs", headers=foreign).status_code == 403
        assert client.post("/run", json=SEED_EXAMPLE, headers=foreign).status_code == 403
        assert client.get("/runs", headers={"origin": LOCAL}).status_code == 200
        run_id = start(client)
        with client.websocket_connect(f"{WS}/ws/{run_id}", headers=foreign) as socket:
            with pytest.raises(WebSocketDisconnect) as end:
                socket.receive_json()
            assert end.value.code == 4403
    with TestClient(app, base_url="http://rebound.example") as client:
        assert client.get("/runs").status_code == 403


def test_a_token_is_needed_where_one_is_set(store: RunStore) -> None:
    app = make_app(store, lambda: None, token="secret")
    with TestClient(app, base_url="http://gpu-box:8400") as client:
        assert client.get("/runs").status_code == 401
        assert client.get("/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
        foreign = {"origin": "http://evil.example", "authorization": "Bearer secret"}
        assert client.get("/runs", headers=foreign).status_code == 403
        right = {"authorization": "Bearer secret"}
        run_id = client.post("/run", json=SEED_EXAMPLE, headers=right).json()["run_id"]
        assert len(listen(client, run_id, token="secret")) == 8
        with (
            client.websocket_connect(f"{WS}/ws/{run_id}") as socket,
            pytest.raises(WebSocketDisconnect),
        ):
            socket.receive_json()


def test_limits_of_bodies_and_of_runs_at_once(store: RunStore) -> None:
    app = make_app(store, lambda: Model(wait_s=0.2), most_runs=1)
    with TestClient(app, base_url=LOCAL) as client:
        assert client.post("/run", content=b"x" * 2**21).status_code == 413
        start(client)
        assert client.post("/run", json=SEED_EXAMPLE).status_code == 429
