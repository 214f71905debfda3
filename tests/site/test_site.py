"""The site builds without a warning, has a page for every environment, and loads nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inframind_gym import ENVIRONMENTS
from tests.site.blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_environment_has_its_page(site: Path) -> None:
    pages = " ".join(page.read_text("utf-8") for page in (site / "environments").rglob("*.html"))
    for name, entry in ENVIRONMENTS.items():
        assert name in pages
        assert f'id="{entry.single.replace(":", ".")}' in pages, name


def test_pages_of_the_api_explain_fields(site: Path) -> None:
    for page, texts in {
        "policies": (
            "whether it can route queries that",
            "the measured mix of strategies",
            "8 or 9",
        ),
        "benchmark": (
            "name of the metric that ranks",
            "cells that earlier runs had computed",
            "by_rate and by_budget",  # of one return value
        ),
    }.items():
        shown = re.sub(r"<[^>]+>", "", (site / "api" / page / "index.html").read_text("utf-8"))
        assert [text for text in texts if text not in shown.replace("\n", " ")] == []


def test_pages_have_titles_of_their_own(site: Path) -> None:
    pages = list(site.rglob("*/index.html"))
    titles = [re.findall(r"<title>(.*?)</title>", page.read_text("utf-8"))[0] for page in pages]
    assert sorted(set(titles)) == sorted(titles)


def test_a_page_loads_nothing_of_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*', text), page
        assert not re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//', text), page
