"""Policies by name and by path in every family, and every way in which that can fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.policies import (
    POLICIES,
    BasePolicy,
    Policy,
    policy_names,
    requires_of,
    resolve_policy,
)
from tests.policies.synthetic import act_all, make_contexts, make_spec

LUCKY = """
import numpy as np

class Lucky:
    name = "lucky"
    requires = {"planner": {"topology": "Chain", "num_agents": 2}}
    def __init__(self, offset=0):
        self.offset = offset
    def reset(self, spec, seeds): ...
    def act_batch(self, observations, contexts, rows):
        return np.full(len(rows), self.offset)

class Idle:
    name = "idle"
    def reset(self, spec, seeds): ...
    def act_batch(self, observations, contexts, rows):
        return np.zeros(len(rows), np.int64)

class Nameless:
    def reset(self, spec, seeds): ...
    def act_batch(self, observations, contexts, rows): ...

class Still:
    name = "still"
    def reset(self, spec, seeds): ...

class Needy(Lucky):
    def __init__(self, offset): ...
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of the user's own; the process's path is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "routing.py").write_text(LUCKY)
    (tmp_path / "mine.py").write_text(LUCKY)
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "yaml.py").write_text("raise RuntimeError('hidden')\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_policy_without_a_base_class_is_made_with_its_arguments(directory: Path) -> None:
    policy = resolve_policy("package.routing:Lucky", offset=2)
    assert isinstance(policy, Policy) and not hasattr(policy, "fingerprint")
    assert requires_of(policy) == {"planner": {"topology": "Chain", "num_agents": 2}}
    assert act_all(policy, np.zeros((2, 13), np.float32), make_contexts(2)) == [2, 2]


@pytest.mark.parametrize("family", POLICIES)
def test_a_policy_of_the_working_directory_serves_every_family_and_hides_nothing(
    directory: Path, family: str
) -> None:
    assert resolve_policy("mine:Idle", family=family).name == "idle"
    assert sys.path[0] != str(directory) and sys.path[-1] == str(directory)
    assert yaml.safe_load("1") == 1
    with pytest.raises(ConfigError, match=r"lacks act_batch\("):
        resolve_policy("mine:Still", family=family)


class OnlyBatch(BasePolicy):
    name = "only_batch"

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        return self.seeds[rows].astype(np.int64) + contexts["node"]


class Neither(BasePolicy):
    name = "neither"


def test_one_row_is_asked_for_alone() -> None:
    policy = OnlyBatch()
    policy.reset(make_spec(), [3, 7])
    contexts, observations = make_contexts(2, node=[1, 2]), np.zeros((2, 13), np.float32)
    assert policy.act_batch(observations, contexts, np.array([1, 0])).tolist() == [8, 5]
    assert policy.act(observations[0], contexts[0]) == 4
    assert not hasattr(policy, "observe")


# What is asked for -> what its error names.
WRONG = {
    "mine:": "package.module:Class",
    "absent:Lucky": "no module named 'absent'",
    "broken:Lucky": "a_package_that_is_not_there",
    "mine:Luky": "Did you mean 'Lucky'",
    "mine:Nameless": "name",
    "mine:Still": "act",
    "mine:Needy": "'offset'",
    f"{__name__}:Neither": "act",
    "inframind_gym.policies.simple:Heuristic": "choose_models",
    "least_loadd": "Did you mean 'least_loaded'",
    "statik:qwen-14b": "Did you mean 'static'",
    "static:qwen-14b:Flash:now": "static:MODEL:STRATEGY",
    "lru": "unknown policy 'lru'",
}


@pytest.mark.parametrize("path", WRONG)
def test_what_cannot_be_found_or_cannot_serve(directory: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[path]):
        resolve_policy(path)


def test_bounds_are_registered_and_not_among_the_contestants() -> None:
    for family, entries in POLICIES.items():
        bounds = {name for name, entry in entries.items() if entry.bound}
        assert not bounds & set(policy_names(family))
        for name in bounds:
            assert resolve_policy(name, family=family).bound


def test_a_policy_cannot_choose_the_world() -> None:
    class Cheat(BasePolicy):
        name = "cheat"
        requires: ClassVar = {"arrival_rate_per_min": 1.0}

    with pytest.raises(ConfigError, match=r"cheat.*arrival_rate_per_min.*level"):
        requires_of(Cheat())


@pytest.mark.parametrize(
    ("family", "name", "bound"),
    [("routing", "lowest_expected_latency", False), ("assignment", "myopic", True)],
)
def test_a_built_in_class_has_its_name_and_is_a_bound_by_its_path_too(
    family: str, name: str, bound: bool
) -> None:
    by_path: Any = resolve_policy(POLICIES[family][name].path, family=family)
    assert (by_path.name, by_path.bound) == (name, bound)
