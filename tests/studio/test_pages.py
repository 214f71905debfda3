"""The pages, by a browser: `inframind studio` as a process, and chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui")
pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect, sync_playwright

from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.teams.runs import RunStore
from tests.live.vllm_server.fake import Answer, FakeServer, in_order
from tests.studio.conftest import TOKEN
from tests.studio.test_runs import gateway  # noqa: F401 (a fixture)

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt install chromium")
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
KNOWN: set[str] = set()  # faults of the framework that axe finds
TASK = "Write a migration plan from a monolith to three services."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Open a page that fails a test on an error of its scripts."""
    context = browser.new_context()
    made = context.new_page()
    made.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    yield made
    context.close()
    assert not errors


def test_the_form_of_the_gateway_watches_the_gateway(
    serve: Callable[..., str],
    page: Any,
    store: RunStore,
    gateway: str,  # noqa: F811
) -> None:
    page.goto(serve("--gateway", gateway) + "/gateway")
    page.get_by_label("watch, s").fill("600")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile("/show/"))
    expect(page.get_by_role("region", name="servers").get_by_text("big")).to_be_visible()
    (found,) = store.list_runs("gateway")
    assert (found.settings["provider"], found.settings["watch_s"]) == ("gateway", 600)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").get_by_text("interrupted")).to_be_visible()


def test_a_run_is_started_watched_to_its_end_and_reloaded(
    serve: Callable[..., str], page: Any, store: RunStore
) -> None:
    page.goto(f"{serve()}/token-budget")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile("/show/"))
    rows = page.get_by_role("region", name="trace").locator("tbody tr")
    expect(page.get_by_role("status").get_by_text("complete")).to_be_visible()
    page.reload()
    expect(rows.nth(1)).to_be_visible()
    (found,) = store.list_runs()
    written = store.events(found.run_id)
    assert (found.settings["task"], found.settings["provider"]) == (TASK, "simulated")
    expect(page.locator("[data-events]")).to_have_attribute("data-events", str(written[-1].seq))
    assert rows.count() == sum(event.kind == "trace" for event in written)


def test_who_stops_a_run_sees_that_its_call_is_awaited(
    serve: Callable[..., str], page: Any
) -> None:
    with FakeServer(in_order(Answer(hang=True))) as server:
        page.goto(serve("--provider", f"{server.url}/v1", "--model", "m") + "/token-budget")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url(re.compile("/show/"))
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Stopping")).to_be_disabled()


def write_hostile(store: RunStore) -> dict[str, str]:
    """Write runs whose models have answered with markup; returns their names by team."""
    runs = {}
    for team in ("token-budget", "coordination", "pool"):
        settings = {"task": HOSTILE, "question": HOSTILE, "strategy": HOSTILE, "budget": 1000}
        runs[team] = store.create_run(team, settings)
    trace = {"agent": "executor", "action": HOSTILE, "tokens": 10, "cumulative_tokens": 10}
    trace |= {"quality": 5.0, "quality_delta": 5.0, "roi": 0.5, "cutoff_reason": HOSTILE}
    store.append(runs["token-budget"], "trace", {**trace, "output": HOSTILE})
    document = {"doc_id": "d", "source": HOSTILE, "text": HOSTILE, "score": 1.0}
    issue = {"type": "inaccuracy", "severity": "high", "description": HOSTILE}
    verdict = {"valid": False, "confidence": 0.5, "issues": [issue], "suggested_action": "refine"}
    answer = {"content": HOSTILE, "ended_by": HOSTILE, "documents": [document]}
    answer |= {"validation": verdict, "validation_score": 0.5, "processing_time": 1.0}
    store.append(runs["coordination"], "answer", {**answer, "handoffs": []})
    store.append(runs["pool"], "servers", {"names": [HOSTILE], "clock": "wall"})
    sample = {"t": 1.0, "running": [1], "waiting": [0], "kv": [0.5], "up": [0]}
    store.append(runs["pool"], "sample", {**sample, "notes": [HOSTILE]})
    store.finish(runs["token-budget"], "failed", {"output": HOSTILE, "error": HOSTILE})
    return runs


def test_markup_in_answers_stays_text_and_axe_finds_no_fault(
    serve: Callable[..., str], page: Any, store: RunStore
) -> None:
    """On pages of teams, of runs and of boards; axe looks at them light and dark."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    runs, address, found = write_hostile(store), serve(), list[str]()
    for path in ("boards", *runs, *(f"show/{run_id}" for run_id in runs.values())):
        page.emulate_media(color_scheme="light")
        page.goto(f"{address}/{path}")
        page.add_style_tag(content="* {transition: none !important; animation: none !important}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        if path.startswith("show"):
            expect(page.get_by_text(HOSTILE).first).to_be_attached()
        elif path in runs:  # pages that list the team's runs
            expect(page.get_by_role("region").first).to_be_visible()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator(f"body.body--{scheme}")).to_have_count(1)
            expect(page.locator(".q-loading-bar")).to_have_css("opacity", "0")
            found += [
                f"{scheme} {path} {fault['id']}: {fault['nodes'][0]['html'][:160]}"
                for fault in axe.run(page).response["violations"]
                if fault["id"] not in KNOWN
            ]
        assert page.evaluate("window.hacked") is None
        assert page.locator("#content img, #content script").count() == 0
    assert not found, "\n".join(found)


def test_two_runs_are_compared(serve: Callable[..., str], page: Any) -> None:
    address = serve()
    for strategy in ("adaptive", "critique_heavy"):
        assert page.request.post(f"{address}/run", data={"task": "Write.", "strategy": strategy}).ok
    page.goto(f"{address}/token-budget")
    expect(page.get_by_role("region", name="runs").get_by_text("complete")).to_have_count(2)
    page.reload()
    page.get_by_role("button", name="Compare A and B").click()
    numbers = page.get_by_role("region", name="numbers")
    row = numbers.get_by_role("row", name=re.compile("cost report: tokens"))
    expect(row).to_contain_text(re.compile(r"\d,\d{3}"))
    traces = page.get_by_role("region", name="traces")
    expect(traces.locator("tbody tr").last.locator("td.number").last).to_have_text("")  # no call
    cut = page.get_by_role("region", name="cut-offs").get_by_role("row", name=re.compile("A: cut"))
    expect(cut.first).to_contain_text("critic")
    expect(page.get_by_role("img", name=re.compile("Quality over tokens"))).to_be_visible()


def test_a_board_opens_in_a_frame_of_its_own(
    serve: Callable[..., str], page: Any, tmp_path: Path
) -> None:
    settings = {"policies": ("random", "least_loaded"), "num_queries": 20, "seeds": 1}
    run(load_suite("starter", settings).resolve(), tmp_path / "results/mine")
    page.goto(f"{serve('--results', str(tmp_path / 'results'))}/boards")
    page.get_by_role("link", name="mine").click()
    expect(page.frame_locator("iframe").get_by_role("region", name="Board")).to_be_visible()
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None


def test_a_token_is_asked_for_once(serve: Callable[..., str], page: Any) -> None:
    page.goto(serve(token=TOKEN))
    page.get_by_label("Token of this studio").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
