"""constraints.txt pins everything that the extras pull in, at versions that they accept."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def read_pins() -> dict[str, str]:
    """Pinned versions by canonical name."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version
    return pins


def installed_requirements(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed distribution requires here, its chosen extras included."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in lines]
    return [
        r
        for r in requirements
        if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in {"", *extras})
    ]


def test_every_requirement_is_pinned_at_an_accepted_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra, required in project["optional-dependencies"].items():
        # moviepy excludes the pinned Pillow; vLLM has an environment and a torch of its own.
        lines += required if extra not in ("render", "vllm") else []
    todo = [r for r in map(Requirement, lines) if r.name != "inframind-gym"]
    pins = read_pins()
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
