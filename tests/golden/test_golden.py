"""Episodes are those of the declared `SIMULATOR_VERSION` and policy versions, to the bit."""

from __future__ import annotations

import pytest

from tests.golden.episodes import committed, names, play

REMEDY = (
    "an episode is no longer that of the committed digest: if that is meant, raise "
    "SIMULATOR_VERSION (inframind_gym/simulator) or the policy's `version`, and write new digests: "
    "python -m tests.golden.episodes --write"
)


def test_every_golden_episode_has_a_digest() -> None:
    assert list(committed()) == names()


@pytest.mark.parametrize("name", names())
def test_an_episode_is_that_of_the_declared_version(name: str) -> None:
    assert play(name) == committed()[name], REMEDY
