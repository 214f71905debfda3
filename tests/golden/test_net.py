"""The frozen results of every area are those of today, under the versions that are declared."""

from __future__ import annotations

import pytest

from inframind_gym.policies.registry import POLICIES
from tests.golden import net

NAMES = [(area, name) for area in net.areas() for name in net.cases(area)]


@pytest.mark.parametrize(("area", "name"), NAMES, ids=[f"{a}: {n}" for a, n in NAMES])
def test_a_result_is_as_frozen(area: str, name: str) -> None:
    declared = net.versions(area)
    assert net.cases(area)[name]() == net.frozen(area)[0][name], (
        f"differs from the frozen result: if that is meant, raise SIMULATOR_VERSION or the "
        f"policy's `version` where the area declares them (it declares {len(declared)}), "
        f"say why in the commit, and write it again: python -m tests.golden.net {area} --write"
    )


@pytest.mark.parametrize("area", net.areas())
def test_every_frozen_result_has_a_case_and_the_declared_version(area: str) -> None:
    results, versions = net.frozen(area)
    assert list(results) == list(net.cases(area))
    assert versions == net.versions(area)


def test_a_changed_result_needs_a_new_version() -> None:
    results, declared = net.frozen("policies")
    static, moa, random = "routing: static_mix", "routing: moa", "routing: random"
    changed = {static: "0" * 16, moa: "1" * 16, random: results[random]}
    raised = declared | {moa: declared[moa] + 1}
    assert net.undeclared("policies", changed, declared) == [static, moa]
    assert net.undeclared("policies", changed, raised) == [static]
    later = declared | {"simulator": declared["simulator"] + 1}
    assert not net.undeclared("policies", changed, later)
    assert not net.undeclared("envs", {"stream: SameStep": "0" * 16}, {})  # declares none


def test_every_built_in_policy_has_a_frozen_result() -> None:
    cases = [name.replace(" ", "_").split(":_") for name in net.cases("policies")]
    for family, policies in POLICIES.items():
        played = {name.split(":")[0] for of, name in cases if of == family}
        assert set(policies) - played <= {"planned"}, family  # it is another policy, with a plan
