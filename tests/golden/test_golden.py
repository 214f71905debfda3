"""Episodes are those of the declared `SIMULATOR_VERSION` and policy versions, to the bit."""

from __future__ import annotations

import pytest

from tests.golden.episodes import committed, names, play, undeclared, versions

REMEDY = (
    "an episode is no longer that of the committed digest: if that is meant, raise "
    "SIMULATOR_VERSION (inframind_gym/simulator) or the policy's `version`, and write new digests: "
    "python -m tests.golden.episodes --write"
)


def test_every_golden_episode_has_a_digest_of_the_declared_versions() -> None:
    digests, known = committed()
    assert list(digests) == names()
    assert known == versions()


@pytest.mark.parametrize("name", names())
def test_an_episode_is_that_of_the_declared_version(name: str) -> None:
    assert play(name) == committed()[0][name], REMEDY


def test_a_changed_episode_needs_a_new_version() -> None:
    digests, declared = committed()
    changed = {"stream": "0" * 16, "policy: moa": "1" * 16, "executor": digests["executor"]}
    raised = declared["policy: moa"] + 1
    assert undeclared(changed, declared) == ["stream", "policy: moa"]
    assert undeclared(changed, declared | {"policy: moa": raised}) == ["stream"]
    assert not undeclared(changed, declared | {"simulator": declared["simulator"] + 1})
