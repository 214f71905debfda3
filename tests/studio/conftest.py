"""A studio on a file of runs: its parts, a client of its API, and a server with a browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import uvicorn
from fastapi.testclient import TestClient

from inframind_gym.studio.app import BUNDLE, Pages, make_app
from inframind_gym.studio.boards import Boards
from inframind_gym.studio.launch import Launcher, Ways
from inframind_gym.teams.runs.store import RunStore

TOKEN = "a token of sufficient length"
CHROMIUM = Path("/usr/bin/chromium")


class Studio:
    """A studio whose parts a test can reach.

    Args:
        folder: of its file of runs and of its bundle, unless the page is built.
        results: results folders.
        token: that it asks for.
    """

    def __init__(
        self, folder: Path, results: tuple[Path, ...] = (), token: str | None = None
    ) -> None:
        self.store = RunStore(folder / "runs.sqlite")
        self.launcher = Launcher(self.store, Ways())
        self.pages = Pages(self.store, Boards(results))
        bundle = folder / "bundle"
        if not (bundle / "index.html").exists():
            bundle.mkdir()
            (bundle / "index.html").write_text('<meta name="studio" content="live" />')
        self.bundle = BUNDLE if (BUNDLE / "index.html").is_file() else bundle
        self.app = make_app(self.pages, self.launcher, token=token, bundle=self.bundle)

    def close(self) -> None:
        self.launcher.close()
        self.pages.boards.close()
        self.store.close()


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    with TestClient(studio.app, base_url="http://127.0.0.1:8500") as made:
        yield made


def until_over(client: TestClient, run_id: str, longest_s: float = 120.0) -> dict[str, Any]:
    """Wait for the end of a run."""
    last_s = time.monotonic() + longest_s
    while (run := client.get(f"/api/runs/{run_id}").json())["status"] == "running":
        assert time.monotonic() < last_s
        time.sleep(0.02)
    return dict(run)


@pytest.fixture
def serve() -> Iterator[Callable[[Studio], str]]:
    """Serve studios to a browser; returns the address of each."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(studio: Studio) -> str:
        if studio.bundle != BUNDLE:
            pytest.skip("the page is not built (`make studio`)")
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(studio.app, log_level="error"))
        arguments = {"sockets": [listening]}
        thread = threading.Thread(target=server.run, kwargs=arguments, daemon=True)
        running.append((server, thread))
        thread.start()
        last_s = time.monotonic() + 60.0
        while not server.started:
            assert time.monotonic() < last_s
            time.sleep(0.05)
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(10.0)


@pytest.fixture
def address(studio: Studio, serve: Callable[[Studio], str]) -> str:
    return serve(studio)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Open a page that fails a test on an error of its scripts."""
    context = browser.new_context()
    made = context.new_page()
    made.set_default_timeout(60_000)
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on(
        "console",
        lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None,
    )
    yield made
    context.close()
    assert not errors
