"""Pins of what workflows and images take from elsewhere; limits of what is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_actions_are_pinned_by_commit_and_base_images_by_digest() -> None:
    workflows = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    actions = re.findall(r"uses: (\S+)", "\n".join(workflows))
    images = [
        image
        for path in (ROOT / "docker").glob("*.Dockerfile")
        for image in re.findall(r"^FROM (\S+)", path.read_text(), re.M)
    ]
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
    flows = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
    runs = {name: set(re.findall(r"- run: (.+)", text)) for name, text in flows.items()}
    assert {"make lint", "make test"} <= runs["ci"] and "make wheel" in runs["release"]
    assert "pip install -c base/constraints.txt -e base" in flows["submissions"]
    for word in ("--trust", "--run", "requirements.txt", "secrets.", "pull_request_target"):
        assert word not in flows["submissions"]
