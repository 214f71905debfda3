"""Every code block of every page runs, or says why it does not."""

from __future__ import annotations

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
    run_page(page, tmp_path)


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert len(block.not_run) >= 8 or not block.not_run, f"{page}:{block.line}"
