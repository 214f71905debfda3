"""Clusters that tests of live placement share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.placement.live_toys import Stage


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Stage]:
    """A live cluster in which Qwen is awake on GPU 0, and nothing else anywhere."""
    from tests.placement.live_toys import on_gpu_0, stage  # needs the extra `live`

    with stage(tmp_path, initial="empty") as found:
        on_gpu_0(found, 0)
        yield found
