"""The frozen results of every area are those of today."""

from __future__ import annotations

import pytest

from tests.golden import net

NAMES = [(area, name) for area in net.areas() for name in net.cases(area)]


@pytest.mark.parametrize(("area", "name"), NAMES, ids=[f"{a}: {n}" for a, n in NAMES])
def test_a_result_is_as_frozen(area: str, name: str) -> None:
    assert net.cases(area)[name]() == net.frozen(area)[name], (
        f"differs from the frozen result: if that is meant, say why in the commit and write it "
        f"again: python -m tests.golden.net {area} --write"
    )


def test_every_frozen_result_has_a_case() -> None:
    for area in net.areas():
        assert list(net.frozen(area)) == list(net.cases(area))
