"""Runs that the studio starts: simulated streams, live servers, a gateway, and what goes wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

from prometheus_client import generate_latest

from inframind_gym.envs.exporter import Metrics
from inframind_gym.live.gateway import gateway as gateways
from inframind_gym.studio.runs import BusyError, Launcher, Ways
from inframind_gym.teams.runs import Run, RunStore
from tests.live.vllm_server.fake import FakeServer
from tests.studio.conftest import TASK, until_over
from tests.teams.token_budget.runs import Model

GAUGES = (
    ("router_info", ("gateway", "a pool", "mixed", "least_loaded"), 1.0),
    ("queries_in_flight", (), 3.0),
    *(("server_up", (name,), 1.0) for name in ("big", "small")),
    ("requests_seen", ("big", "running"), 2.0),
    ("requests_seen", ("big", "waiting"), 5.0),
    ("requests_seen", ("small", "running"), 1.0),
    *(("kv_cache_seen", (name,), n) for name, n in (("big", 0.25), ("small", 0.0))),
)


@pytest.fixture
def gateway() -> Iterator[str]:
    with FakeServer() as server:
        shown = Metrics({}, {}, gateways.GAUGES, lambda: GAUGES)
        server.metrics = generate_latest(shown.registry).decode  # type: ignore[method-assign]
        yield server.url


def play(
    store: RunStore, team: str, settings: dict[str, Any], ways: Ways
) -> tuple[Run, dict[str, list[Any]]]:
    """Play a run to its end; returns it and the data of its events by kind."""
    launcher = Launcher(store, ways)
    run = until_over(launcher, launcher.start(team, settings))
    events: dict[str, list[Any]] = defaultdict(list)
    for event in store.events(run.run_id):
        events[event.kind].append(event.data)
    return run, events


def watch(store: RunStore, team: str, **ways: str) -> tuple[Run, dict[str, list[Any]]]:
    return play(store, team, {"watch_s": 1.0, "poll_s": 0.3}, Ways(**ways))


def test_a_stream_writes_its_servers_and_decisions(store: RunStore) -> None:
    settings = {"num_queries": 12, "speed": None, "policy": "least_loaded"}
    run, events = play(store, "pool", settings, Ways())
    assert run.status == "complete", run
    (servers,), last, summary = events["servers"], events["sample"][-1], run.summary or {}
    routes = {decision.get("server", 0) for decision in events["decision"]}
    assert routes <= set(range(len(servers["names"])))
    assert {decision["query"] for decision in events["decision"]} == set(range(12))
    assert (last["arrived"], last["done"], sum(last["running"])) == (12, 12, 0)
    assert (summary["queries"], summary["goodput"]) == (12, pytest.approx(last["good"] / 12))
    assert 0 < last["good"] <= min(last["solved"], last["in_time"]) <= 12


def test_a_gateway_is_watched_by_its_metrics(store: RunStore, gateway: str) -> None:
    run, events = watch(store, "gateway", gateway=gateway)
    assert run.status == "complete", run.summary
    (servers,), first = events["servers"], events["sample"][0]
    assert (servers["names"], servers["about"]["policy"]) == (["big", "small"], "least_loaded")
    assert (first["running"], first["waiting"], first["kv"]) == ([2, 1], [5, 0], [0.25, 0.0])
    assert (first["in_flight"], first["notes"]) == (3, [])


def test_an_older_gateway_is_noted(store: RunStore) -> None:
    metrics = 'inframind_router_info{pool="a"} 1\ninframind_server_up{model="big"} 1\n'
    with FakeServer() as server:
        server.metrics = lambda: metrics  # type: ignore[method-assign]
        _, events = watch(store, "gateway", gateway=server.url)
    assert "older" in events["sample"][0]["notes"][0]


def test_a_gateway_that_is_not_there_fails_with_the_remedy(store: RunStore) -> None:
    run, _ = watch(store, "gateway", gateway="http://127.0.0.1:9")
    assert run.status == "failed"
    assert "inframind serve" in (run.summary or {})["error"]


def test_servers_of_a_pool_that_are_down_are_shown_so(store: RunStore) -> None:
    run, events = watch(store, "servers", pool="cpu-tiny")
    assert run.status == "complete", run.summary
    first, names = events["sample"][0], events["servers"][0]["names"]
    assert set(first["up"]) == {0}
    assert all(note.startswith(name) for name, note in zip(names, first["notes"], strict=True))


def drawn(run: Run, events: dict[str, list[Any]], **figures: Any) -> str:
    """The page of a run whose summary has these figures."""
    views = pytest.importorskip("inframind_gym.studio.views")
    run = replace(run, summary={**(run.summary or {}), **figures})
    parts = views.VIEWS[run.team](run, events)
    return "".join(str(p.options() if isinstance(p, views.Lines) else p) for p in parts)


def test_pages_have_the_figures_of_the_summary(store: RunStore) -> None:
    run, events = play(store, "assignment", {"iterations": 8}, Ways())
    page = drawn(run, events, cost_usd=7.0, judge_unreadable=8)
    assert "7.0000 USD" in page and "8 of 8 answers of the judge could not be read" in page
    assert "No task was finished" in drawn(run, defaultdict(list))
    run, events = play(store, "token-budget", TASK, Ways())
    report = {"tokens": 19_876, "by_agent": {"planner": 1, "executor": 12_345, "critic": 2}}
    page = drawn(run, events, cost_report=report)
    assert all(said in page for said in ("19,876", "12,345 of", "agent calls"))


def test_an_answer_numbers_its_sources(store: RunStore) -> None:
    back = {"kind": "handoff_back", "sender": "planner", "receiver": "supervisor"}
    answer = {"content": "So [1].", "documents": [{"source": "a.md", "text": "So."}]}
    answer["handoffs"] = [back, *({**back, "content": said} for said in ("Plan", "timeout"))]
    run = store.get_run(store.create_run("coordination", {}))
    page = drawn(run, defaultdict(list, answer=[answer]))
    assert "[1] a.md" in page and "timeout" in page and "Plan<" not in page


def test_only_so_many_runs_are_under_way(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ways, "open", lambda _: Model(wait_s=0.2))
    launcher = Launcher(store, Ways(), most_runs=1)
    launcher.start("token-budget", TASK)
    with pytest.raises(BusyError):
        launcher.start("token-budget", TASK)
    launcher.close()
    assert [run.status for run in store.list_runs()] == ["interrupted"]
