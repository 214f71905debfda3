"""Every code block of every page runs, or says why not; links, commands and options exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import benchmarks.__main__  # noqa: F401  (adds its commands)
from inframind_gym import cli
from inframind_gym.evaluation.cli import app as benchmark_app
from inframind_gym.policies import policy_names
from tests.site.blocks import PAGES, ROOT, blocks, run_page

README = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert "`make bench`" in README and "`make test`" in README


def test_its_ten_lines_print_the_same_line_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(block.code for block in blocks(ROOT / "README.md") if block.language == "python")
    for _ in range(2):
        exec(code, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and " of its budget" in first


@pytest.mark.parametrize(
    ("pages", "most"),
    [
        ("howto/*.md", 900),
        ("concepts/*.md", 1500),
        ("results/*.md", 7500),  # tables of every claim: five thousand words and their bars
        ("*.md", 2000),
        ("[!r]*.md", 1500),  # results.md holds the boards' evidence
        ("compare.md", 600),
        ("documents.md", 1000),
    ],
)
def test_a_page_is_no_longer_than_its_kind(pages: str, most: int) -> None:
    found = {page.name: len(page.read_text().split()) for page in (ROOT / "docs").glob(pages)}
    assert found
    assert {name: count for name, count in found.items() if count > most} == {}


def test_all_pages_are_no_book() -> None:
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    words = [word for text in texts for word in text.split() if re.search(r"\w", word)]
    assert len(words) <= 25_000  # bars and rules of tables are none


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    quoted = "\n".join(part.replace("\n", " ") for part in re.findall(r"`([^`]+)`", text))
    to_copy = blocks.splitlines()
    for line in (*to_copy, *quoted.splitlines()):
        found = re.match(r"(?:\S*/)?(inframind|python -m (\S+))(?= |$)(.*)", line.split("  #")[0])
        if found is None or "…" in line:
            continue
        module = found[2]
        if module not in (None, "benchmarks"):
            assert importlib.util.find_spec(module), line
            continue
        command: Any = typer.main.get_command(benchmark_app if module else cli.app)
        words = found[3].split()
        for word in words:
            if hasattr(command, "list_commands") and not word.startswith("-"):
                assert word in command.list_commands(None), line
                command = command.get_command(None, word)
            elif re.match(r"--?[a-z]", word):
                options = {name for param in command.params for name in param.opts}
                assert word.split("=")[0] in options, f"{word} of: {line}"
        if line in to_copy:
            wanted = [param.opts for param in command.params if param.required]
            options = [opts for opts in wanted if opts[0].startswith("-")]
            assert all({*opts} & {*words} for opts in options), f"{options} of: {line}"


def test_every_routing_policy_is_explained() -> None:
    page = (ROOT / "docs/api/policies.md").read_text(encoding="utf-8")
    rows = "\n".join(re.findall(r"^\|([^|]*)\|", page, re.MULTILINE))
    assert [name for name in policy_names() if not re.search(rf"`{name}[`:]", rows)] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
