"""The page in a browser: a run from start to end, reloads, a lost socket, hostile answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")

from tests.studio.conftest import Studio

expect = playwright.expect
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
