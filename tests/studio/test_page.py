"""The page in a browser: a run from start to end, reloads, a lost socket, hostile answers."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
from playwright.sync_api import expect

from inframind_gym.benchmark.runner import run
from inframind_gym.benchmark.suite import load_suite
from tests.studio.conftest import TOKEN, Studio

AXE = Path(__file__).parents[2] / "inframind_gym/studio/frontend/node_modules/axe-core/axe.min.js"
LONG_MS = 120_000


def start(page: Any, address: str, rest_s: str) -> str:
    """Start the scripted run of the token-budget team by the form; returns its name."""
    page.goto(f"{address}/#/token-budget")
    page.get_by_label("simulated as").select_option("seed-example")
    page.get_by_label("rest after a step").fill(rest_s)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile("#/run/"))
    return str(page.url.rpartition("/")[2])


def events(page: Any) -> Any:
    return page.locator("[data-events]")


def test_a_run_is_started_reloaded_in_the_middle_and_watched_to_its_end(
    studio: Studio, address: str, page: Any
) -> None:
    run_id = start(page, address, "1.5")
    trace = page.get_by_role("region", name="trace").locator("tbody tr")
    expect(trace.nth(1)).to_be_visible()
    expect(page.get_by_role("status").get_by_text("running")).to_be_visible()
    assert studio.store.get_run(run_id).status == "running"
    page.reload()
    expect(trace.nth(1)).to_be_visible()
    expect(page.get_by_role("status").get_by_text("complete")).to_be_visible(timeout=LONG_MS)
    written = studio.store.events(run_id)
    expect(events(page)).to_have_attribute("data-events", str(len(written)))
    assert trace.count() == sum(event.kind == "trace" for event in written)


def test_a_lost_socket_opens_again_behind_the_last_event(
    studio: Studio, address: str, page: Any
) -> None:
    asked: list[str] = []

    def lose(socket: Any) -> None:
        asked.append(socket.url)
        server = socket.connect_to_server()
        passed = 0

        def pass_on(message: str) -> None:
            nonlocal passed
            passed += 1
            socket.send(message)
            if len(asked) == 1 and passed == 2:
                socket.close(code=1012)

        server.on_message(pass_on)

    page.route_web_socket(re.compile("/events"), lose)
    run_id = start(page, address, "0.5")
    expect(page.get_by_role("status").get_by_text("complete")).to_be_visible(timeout=LONG_MS)
    written = studio.store.events(run_id)
    expect(events(page)).to_have_attribute("data-events", str(len(written)))
    expect(events(page)).to_have_attribute("data-last", str(written[-1].seq))
    assert len(asked) == 2
    assert int(asked[1].rpartition("after=")[2]) > 0


HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def scripted(studio: Studio, task: str, **settings: Any) -> str:
    """Play a run of the token-budget team to its end."""
    run_id = studio.launcher.start(
        "token-budget", {"task": task, "profile": "seed-example", **settings}
    )
    while run_id in studio.launcher.owned():
        time.sleep(0.01)
    return run_id


def hostile(studio: Studio) -> dict[str, str]:
    """Write runs whose models have answered with markup; returns their names by team."""
    store, runs = studio.store, {}
    for team in ("token-budget", "coordination", "pool", "assignment"):
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


def test_markup_in_answers_stays_text(studio: Studio, address: str, page: Any) -> None:
    for team, run_id in hostile(studio).items():
        page.goto(f"{address}/#/run/{run_id}")
        expect(page.locator("[data-events]")).to_be_visible()
        if team in ("token-budget", "coordination"):
            expect(page.get_by_text(HOSTILE).first).to_be_visible()
        page.goto(f"{address}/#/{team}")
        expect(page.get_by_role("region", name="runs")).to_be_visible()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0


def test_two_runs_are_compared(studio: Studio, address: str, page: Any) -> None:
    first = scripted(studio, "Write.")
    second = scripted(studio, "Write.", strategy="critique_heavy", profile="simulated")
    page.goto(f"{address}/#/token-budget")
    for run_id in (first, second):
        page.get_by_label(f"compare run {run_id}").check()
    page.get_by_role("link", name="Compare A and B").click()
    numbers = page.get_by_role("region", name="numbers")
    expect(numbers.get_by_role("row", name=re.compile("cost report: tokens"))).to_contain_text(
        "12,500"
    )
    cut = page.get_by_role("region", name="cut-offs").get_by_role("row", name=re.compile("A: cut"))
    expect(cut.first).to_contain_text("10,600")
    expect(page.get_by_role("img", name=re.compile("Quality over tokens"))).to_be_visible()


def faults(frame: Any) -> list[str]:
    """Return what axe finds in a page or in a frame of it."""
    frame.evaluate(AXE.read_text(encoding="utf-8"))
    found = frame.evaluate("axe.run({ iframes: false })")["violations"]
    return [f"{fault['id']}: {fault['nodes'][0]['html'][:120]}" for fault in found]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (`make studio`)")
def test_pages_have_no_faults_that_axe_finds(studio: Studio, address: str, page: Any) -> None:
    runs = [scripted(studio, "Write."), scripted(studio, "Write again.")]
    for team, settings in (("assignment", {"iterations": 6}), ("pool", {"num_queries": 6})):
        runs.append(studio.launcher.start(team, settings))
    while studio.launcher.owned():
        time.sleep(0.05)
    paths = ["pool", "token-budget", "boards", f"compare/{runs[0]}/{runs[1]}"]
    paths += [f"run/{run_id}" for run_id in (runs[0], *runs[2:], hostile(studio)["coordination"])]
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path in paths:
            page.goto(f"{address}/#/{path}")
            page.locator("main h1").wait_for()
            page.wait_for_timeout(500)
            found += [f"{scheme} {path} {fault}" for fault in faults(page)]
    assert not found, "\n".join(found)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (`make studio`)")
def test_the_frame_of_a_board_has_no_faults_that_axe_finds(board: str, page: Any) -> None:
    page.goto(board)
    page.get_by_role("button", name="Show episodes").click()
    episodes = page.frame_locator("iframe").get_by_role("heading", name="Episodes")
    expect(episodes).to_be_visible(timeout=LONG_MS)
    assert len(page.frames) == 2
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for part in page.frames:
                found += [f"{scheme} {width} {fault}" for fault in faults(part)]
    assert not found, "\n".join(found)


def test_pages_are_used_with_the_keyboard(studio: Studio, address: str, page: Any) -> None:
    page.goto(f"{address}/#/token-budget")
    page.locator("main h1").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("task", exact=True)).to_be_focused()
    page.get_by_role("button", name="Start").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/run/"))


@pytest.fixture
def board(tmp_path: Path, browser: Any, serve: Any) -> str:
    """Serve the results of a small run; returns the address of their board."""
    settings = {"policies": ("random", "least_loaded"), "num_queries": 20, "seeds": 1}
    run(load_suite("starter", settings).resolve(), tmp_path / "results/mine")
    return f"{serve(Studio(tmp_path, (tmp_path / 'results',)))}/#/boards/mine"


def test_a_board_opens_in_a_frame_of_its_own(board: str, page: Any) -> None:
    page.goto(board.rpartition("/")[0])
    page.get_by_role("link", name="mine").click()
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("region", name="Board")).to_be_visible()
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None


def test_a_token_is_asked_for_once(tmp_path: Path, serve: Any, page: Any) -> None:
    address = serve(Studio(tmp_path, token=TOKEN))
    page.goto(address)
    page.get_by_label("Token of this studio").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Pool")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
