"""Real vLLM servers for all live tests: the pool `cpu-tiny`, started and stopped by `inframind`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.vllm_live.rig import LiveRig, reason_to_skip


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRig]:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    rig = LiveRig(tmp_path_factory.mktemp("live"))
    try:
        rig.up()
        yield rig
    finally:
        rig.down()
