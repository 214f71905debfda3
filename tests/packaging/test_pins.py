"""What a workflow or an image takes from elsewhere is named by its content."""

from __future__ import annotations

import re
from pathlib import Path

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
