"""The report: numbers of the board, text that stays text, no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.cells import rounded
from inframind_gym.evaluation.report.page import render, report_data, write_report
from inframind_gym.evaluation.tables import to_markdown
from tests.golden.boards import SUITES, results_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A small run of every family, made when it is asked for."""
    return cache(lambda kind: results_of(kind, tmp_path_factory.mktemp("runs")))


class Page(HTMLParser):
    """Elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


@pytest.mark.parametrize("kind", SUITES)
def test_a_report_has_the_board_of_every_family(kind, folders, tmp_path):
    folder, out = folders(kind), tmp_path / "report.html"
    write_report([folder], out)
    (found,) = Page(out.read_text(encoding="utf-8")).data["runs"]
    board = leaderboard(load_results(folder))
    assert found["board"] == rounded(board, 6)
    for shown, sheet in zip(found["tables"], leaderboard_tables(board), strict=True):
        assert shown["rows"] == [list(row) for row in sheet.rows]
        assert shown["caption"] in to_markdown(sheet)
    assert [policy["name"] for policy in found["policies"]] == [
        row["policy"] for row in board["ranking"]
    ]
    headings = {found["metrics"][name]["label"] for name in found["metrics"]}
    assert headings <= found["terms"].keys(), "every metric is explained"


HOSTILE = "</script><script>alert(1)</script><!--\u2028<img src=x onerror=alert(2)>&amp;"


def test_text_stays_text(folders, tmp_path):
    data = report_data([load_results(folders("token budget"))])
    (found,) = data["runs"]
    found["name"] = found["policies"][0]["name"] = HOSTILE
    found["board"]["notes"] = [HOSTILE]
    text = render(data)
    page = Page(text)
    assert page.data["runs"][0]["board"]["notes"] == [HOSTILE]
    assert len(page.scripts) == 2
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text
    assert "document.write" not in text


def test_the_file_refers_to_nothing_outside(folders, tmp_path):
    data = report_data([load_results(folders("routing"))])
    page = Page(render(data))
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "href", "action", "data"} & attributes.keys(), tag
    style = re.search(r"<style>(.*?)</style>", render(data), re.S)
    assert style is not None and not re.search(r"url\(|@import", style[1])
    assert not re.search(r"https?:|//[a-z]|fetch\(|XMLHttp|WebSocket|import\(|\beval\b",
                         re.sub(r"^\s*//.*$", "", page.scripts[1], flags=re.M))  # fmt: skip
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def drawn(page: Path, profile: Path) -> str:
    """Return a page's elements after its scripts, which must not fail."""
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom"),
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Uncaught" not in done.stderr and "Content Security Policy" not in done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_the_page_without_errors(folders, tmp_path):
    out = tmp_path / "report.html"
    write_report([folders("routing"), folders("placement")], out)
    tags = Page(drawn(out, tmp_path / "profile")).elements
    sections = ["board", "load", "frontier", "paired", "shares", "cells", "made", "words"]
    assert [one.get("id") for tag, one in tags if tag == "section"] == sections
