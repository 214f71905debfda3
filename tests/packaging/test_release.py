"""Pins of what extras, workflows and images take from elsewhere; what a release check finds."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}


def installed_requirements(name: str, extras: set[str]) -> list[Requirement]:
    """Requirements of an installed distribution here, its chosen extras included."""
    try:
        found = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        return []
    ours = [{"extra": extra} for extra in ("", *extras)]
    return [r for r in found if r.marker is None or any(map(r.marker.evaluate, ours))]


def test_every_requirement_is_pinned_at_an_accepted_version() -> None:
    text = (ROOT / "constraints.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra, required in project["optional-dependencies"].items():
        # moviepy excludes the pinned Pillow; vLLM has an environment and a torch of its own.
        lines += required if extra not in ("render", "vllm") else []
    todo = [r for r in map(Requirement, lines) if r.name != "inframind-gym"]
    pinned = [line.split("==") for line in re.findall(r"^[^#\n].*", text, re.MULTILINE)]
    pins = {canonicalize_name(name): version for name, version in pinned}
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{requirement} is not pinned"
        assert requirement.specifier.contains(pins[name], prereleases=True), (
            f"{requirement} excludes the pin {pins[name]}"
        )
        key = (name, frozenset(requirement.extras))
        # What torch needs depends on its build: CUDA builds bring libraries of their own.
        if key not in seen and name != "torch":
            seen.add(key)
            todo += installed_requirements(name, set(requirement.extras))
    assert pins["torch"] == "2.13.0"


def test_actions_are_pinned_by_commit_and_base_images_by_digest() -> None:
    files = [path.read_text() for path in (ROOT / "docker").glob("*.Dockerfile")]
    actions = re.findall(r"uses: (\S+)", "\n".join(FLOWS.values()))
    images = re.findall(r"^FROM (\S+)", "\n".join(files), re.MULTILINE)
    assert actions and images
    assert [each for each in actions if not re.search(r"@[0-9a-f]{40}$", each)] == []
    assert [each for each in images if not re.search(r"@sha256:[0-9a-f]{64}$", each)] == []


@pytest.mark.parametrize(
    "path", [*(ROOT / "docker").glob("compose.*.yaml")], ids=lambda path: path.stem
)
def test_containers_of_compose_are_closed(path: Path) -> None:
    for service in yaml.safe_load(path.read_text())["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert set(service.get("cap_add", [])) <= {"DAC_OVERRIDE"}  # vLLM's root reads the cache
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_workflows_lint_test_and_build_wheels_and_play_no_code_of_strangers() -> None:
    runs = {name: set(re.findall(r"- run: (.+)", text)) for name, text in FLOWS.items()}
    assert {"make lint", "make test"} <= runs["ci"] and "make wheel" in runs["release"]
    assert "pip install -c base/constraints.txt -e base" in FLOWS["submissions"]
    for word in ("--trust", "--run", "requirements.txt", "secrets.", "pull_request_target"):
        assert word not in FLOWS["submissions"]


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
