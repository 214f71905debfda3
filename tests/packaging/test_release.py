"""One version everywhere; what `make release-check` asks finds what it should."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci/release_check.py"), run_name="release_check")


def test_the_changelog_and_the_citation_have_the_version(check: dict[str, Any]) -> None:
    allowed = ("CHANGELOG.md: the first heading", "git: the tag")  # unreleased, or just released
    assert [problem for problem in check["versions"]() if not problem.startswith(allowed)] == []
    assert check["found"](r"^## (\S+)", "CHANGELOG.md") == check["found"](
        r"^version: (.*)", "CITATION.cff"
    )


def test_no_file_names_this_machine(check: dict[str, Any]) -> None:
    if not check["git"]("rev-parse", "--git-dir"):
        pytest.skip("no checkout")
    assert list(check["strangers"]()) == []


def test_versions_that_differ_are_found(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inframind_gym").mkdir()
    (tmp_path / "inframind_gym/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2030-01-31)\n")
    (tmp_path / "CITATION.cff").write_text("version: 1.2.2\ndate-released: 2030-01-31\n")
    monkeypatch.setitem(check["versions"].__globals__, "ROOT", tmp_path)
    assert list(check["versions"]()) == ["CITATION.cff: version 1.2.2, the package has 1.2.3"]
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2030-01-31\n")
    assert list(check["versions"]()) == []
