"""Measuring processes, and revisions of the package to run them in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.speed import sides
from inframind_gym.benchmark.speed.sides import Job, Side, SideError, checkout, costs_s

SLEEPY = "import time\nend = time.process_time() + {s}\nwhile time.process_time() < end: pass"


def repository(folder: Path) -> Path:
    """A repository of two revisions of a package that says which it is."""
    package = folder / "inframind_gym"
    package.mkdir(parents=True)
    for name, spent_s in (("slow", 0.2), ("fast", 0.05)):
        (package / "__init__.py").write_text(f"SPENT_S = {spent_s}\n")
        for command in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", name],
            ["tag", name],
        ):
            subprocess.run(["git", "-C", str(folder), *command], check=True)
    return package


def process_job(code: str, most: int = 2) -> Job:
    return Job("process", {"code": code}, most)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = repository(tmp_path / "repository")
    monkeypatch.setattr(sides, "PACKAGE", made)
    return made


def test_two_revisions_are_measured_in_turn(package: Path) -> None:
    commit, folder = checkout("slow")
    assert len(commit) == 40
    busy = "import inframind_gym\n" + SLEEPY.format(s="inframind_gym.SPENT_S") + "\ncount = 2.0"
    with Side(package.parent) as here, Side(folder, folder / ".kernels") as there:
        fast, slow = costs_s([here, there], process_job(busy), repeats=5)
    assert len(fast) == len(slow) == 2
    assert min(slow) >= 0.1  # a count of 2
    assert min(fast) >= 0.025
    assert max(fast) < min(slow)


def test_a_revision_is_written_once_and_keeps_its_files(package: Path) -> None:
    _, folder = checkout("slow")
    (folder / ".kernels").mkdir()
    written = (folder / "inframind_gym/__init__.py").stat()
    assert checkout("slow~0")[1] == folder
    assert (folder / ".kernels").is_dir()
    assert (folder / "inframind_gym/__init__.py").stat() == written
    assert checkout("fast")[1] != folder


def test_what_a_side_cannot_do_is_said_and_the_side_goes_on(package: Path) -> None:
    with Side(package.parent) as side:
        with pytest.raises(SideError, match="a fresh Python process failed"):
            side.prepare(process_job("raise SystemExit(3)"))
        with pytest.raises(SideError, match="KeyError: 'nothing'"):
            side.prepare(Job("nothing", {}))
        with pytest.raises(SideError, match="nothing was prepared"):
            side.cost_s()
        side.prepare(process_job("count = 1e9"))
        assert side.cost_s() < 1e-9


def test_a_process_that_dies_is_said(package: Path) -> None:
    with Side(package.parent) as side:
        side.prepare(process_job("count = 1.0"))
        side._process.kill()
        side._process.wait()
        with pytest.raises(BenchmarkError, match="ended with status -9"):
            side.cost_s()
    (package / "__init__.py").write_text("raise SystemExit(4)")
    with pytest.raises(BenchmarkError, match="ended with status 4"):
        Side(package.parent)


def test_another_package_than_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SideError, match="is imported"):
        Side(tmp_path)  # has none, so that an installed one would be measured


def test_what_cannot_be_compared(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchmarkError, match="has no revision 'nowhere'"):
        checkout("nowhere")
    with pytest.raises(BenchmarkError, match="has no revision '--all'"):
        checkout("--all")
    monkeypatch.setattr(sides, "PACKAGE", package.parent.parent / "site-packages/inframind_gym")
    with pytest.raises(BenchmarkError, match=r"is an installed\s+copy"):
        checkout("slow")
