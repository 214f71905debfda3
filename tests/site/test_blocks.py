"""Every code block of every page runs, or says why it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.site.blocks import PAGES, ROOT, blocks, run_page

SLOW = {"assignment", "coordination", "results_folder", "surrogate", "train"}
RUN = [
    pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in PAGES
    if any(not block.not_run for block in blocks(page))
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    run_page(page, tmp_path)
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert len(block.not_run) >= 8 or not block.not_run, f"{page}:{block.line}"
