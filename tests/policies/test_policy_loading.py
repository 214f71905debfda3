"""Policies by name and by path, and every way in which that can fail."""

from __future__ import annotations

import sys
import textwrap
from typing import ClassVar

import numpy as np
import pytest

import baselines
from inframind_gym.errors import ConfigError
from inframind_gym.policies import (
    BasePolicy,
    PerRowPolicy,
    Policy,
    PolicyEntry,
    check_policy,
    feedback_of,
    load_policy,
    register_policy,
    requires_of,
    resolve_policy,
)
from tests.policies.synthetic import act_all, make_completed, make_contexts, make_spec, random_run

TEN_LINES = """
import numpy as np

class Lucky:
    name = "lucky"
    def __init__(self, offset=0):
        self.offset = offset
    def reset(self, spec, seeds):
        self.spec, self.rng = spec, np.random.default_rng(seeds[0])
    def act(self, observation, context):
        return self.spec.action(int(self.rng.integers(5)), self.offset)
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A working directory for modules of the user's own; the path of the process is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(directory, module, text) -> None:
    (directory / f"{module}.py").write_text(textwrap.dedent(text))


def test_ten_line_policy_from_the_working_directory(directory) -> None:
    write(directory, "lucky_policy", TEN_LINES)
    spec = make_spec()
    policy = resolve_policy("lucky_policy:Lucky", offset=2)
    assert isinstance(policy, Policy)
    assert policy.name == "lucky"
    assert requires_of(policy) == {}
    seeds = [11, 12, 13]
    policy.reset(spec, seeds)
    run = random_run(spec, 3, 6)
    together = np.array([act_all(policy, *step) for step in run])
    assert (together % 3 == 2).all()
    for row, seed in enumerate(seeds):
        alone = load_policy("lucky_policy:Lucky", offset=2)
        alone.reset(spec, [seed])
        actions = [alone.act(obs[row], contexts[row]) for obs, contexts in run]
        assert actions == together[:, row].tolist()


def test_module_in_a_package_of_the_working_directory(directory) -> None:
    (directory / "my_package").mkdir()
    write(directory / "my_package", "routing", TEN_LINES)
    assert load_policy("my_package.routing:Lucky").name == "lucky"


def test_feedback_and_requirements_reach_the_row(directory) -> None:
    write(
        directory,
        "learning_policy",
        """
        class Learning:
            name, requires = "learning", {"planner": {"topology": "Chain", "num_agents": 2}}
            def reset(self, spec, seeds): self.seen = 0
            def act(self, observation, context): return self.seen
            def observe(self, completed, row): self.seen += len(completed)
        """,
    )
    policy = load_policy("learning_policy:Learning")
    assert requires_of(policy) == {"planner": {"topology": "Chain", "num_agents": 2}}
    assert not hasattr(policy, "fingerprint")
    policy.reset(make_spec(), [1, 2])
    observe = feedback_of(policy)
    assert observe is not None
    observe(make_completed([0, 1, 2]), 1)
    observations = np.zeros((2, 13), np.float32)
    assert act_all(policy, observations, make_contexts(2)) == [0, 3]


class OnlyBatch(BasePolicy):
    name = "only_batch"

    def act_batch(self, observations, contexts, rows):
        return self.seeds[rows].astype(np.int64) + contexts["node"]


class OnlySingle(BasePolicy):
    name = "only_single"

    def act(self, observation, context):
        return int(self.seeds[self.row]) + int(context["node"])


class Neither(BasePolicy):
    name = "neither"


@pytest.mark.parametrize("cls", [OnlyBatch, OnlySingle])
def test_base_policy_supplies_the_other_form(cls) -> None:
    policy = cls()
    check_policy(policy)
    policy.reset(make_spec(), [3, 7])
    contexts = make_contexts(2, node=[1, 2])
    observations = np.zeros((2, 13), np.float32)
    assert policy.act_batch(observations, contexts, np.array([1, 0])).tolist() == [8, 5]
    assert policy.act(observations[0], contexts[0]) == 4
    assert feedback_of(policy) is None


def test_loading_wraps_only_what_has_no_batch_of_its_own() -> None:
    assert isinstance(load_policy(f"{__name__}:OnlySingle"), PerRowPolicy)
    assert isinstance(load_policy(f"{__name__}:OnlyBatch"), OnlyBatch)


def test_a_class_with_neither_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"act\(observation, context\) or act_batch"):
        load_policy(f"{__name__}:Neither")
    policy = Neither()
    policy.reset(make_spec(), [0])
    with pytest.raises(TypeError, match="must define act or act_batch"):
        policy.act(np.zeros(13, np.float32), make_contexts()[0])
    with pytest.raises(TypeError, match="must define act or act_batch"):
        act_all(policy, np.zeros((1, 13), np.float32), make_contexts())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("name = 'x'", r"not a policy: it lacks reset\(spec, seeds\), act\(observation, context\)"),
        ("def act(self, o, c): return 0\n    def reset(self, s, k): ...", r"lacks name"),
        ("name = ''\n    def act(self, o, c): return 0", r"lacks reset.*, name"),
    ],
)
def test_incomplete_classes(directory, body, message) -> None:
    write(directory, "incomplete_policy", f"class Mine:\n    {body}\n")
    with pytest.raises(ConfigError, match=message):
        load_policy("incomplete_policy:Mine")


def test_errors_of_paths(directory) -> None:
    write(directory, "some_policy", TEN_LINES)
    write(directory, "broken_policy", "import a_package_that_is_not_there\n")
    write(directory, "typo_policy", "def f(:\n")
    for path, message in (
        ("some_policy.py:Lucky", "no module named 'some_policy.py'"),
        ("./some_policy:Lucky", "not of the form package.module:Class"),
        ("some_policy:", "not of the form"),
        (":Lucky", "not of the form"),
        ("absent_policy:Lucky", "no module named 'absent_policy', also not in"),
        ("broken_policy:Lucky", "importing broken_policy failed.*a_package_that_is_not_there"),
        ("typo_policy:Lucky", "importing typo_policy failed.*invalid syntax"),
        ("some_policy:Luky", "unknown class 'Luky'. Did you mean 'Lucky'"),
        ("some_policy:np", "not a class"),
        ("inframind_gym.policies.heuristic:Heuristic", "abstract: it must define choose_models"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_policy(path)
    assert str(directory) not in sys.path or load_policy("some_policy:Lucky").name == "lucky"


def test_errors_of_arguments(directory) -> None:
    write(directory, "some_policy", TEN_LINES)
    with pytest.raises(ConfigError, match=r"unknown argument 'ofset'. Did you mean 'offset'"):
        load_policy("some_policy:Lucky", ofset=1)
    with pytest.raises(ConfigError, match="plain JSON values"):
        load_policy("some_policy:Lucky", offset=object())
    write(directory, "needy_policy", TEN_LINES.replace("offset=0", "offset"))
    with pytest.raises(ConfigError, match="missing a required argument: 'offset'"):
        load_policy("needy_policy:Lucky")


@pytest.mark.parametrize("resolve", [resolve_policy, baselines.make])
@pytest.mark.parametrize(
    ("name", "nearest"),
    [("least_loadd", "least_loaded"), ("roundrobin", "round_robin"), ("MOA", "moa")],
)
def test_unknown_names_suggest_the_nearest_and_list_all(resolve, name, nearest) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(name)
    assert f"Did you mean '{nearest}'" in str(caught.value)
    for known in baselines.names():
        assert known in str(caught.value)


def test_an_argument_that_is_left_empty_has_its_default() -> None:
    assert resolve_policy("static::Flash").name == resolve_policy("static", strategy="Flash").name


def test_errors_of_names() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'static'"):
        resolve_policy("statik:qwen-14b")
    with pytest.raises(ConfigError, match="Did you mean 'static'"):
        resolve_policy("statik:qwen:Flash")
    with pytest.raises(ConfigError, match="too many arguments; write static:MODEL:STRATEGY"):
        resolve_policy("static:qwen-14b:Flash:now")
    with pytest.raises(ConfigError, match="model is given twice"):
        resolve_policy("static:qwen-14b", model="llama-3b")
    with pytest.raises(ConfigError, match=r"unknown argument 'stategy'. Did you mean 'strategy'"):
        baselines.make("static", stategy="Flash")


def test_registration_is_idempotent_and_names_are_unique() -> None:
    register_policy(baselines.BASELINES[0])
    with pytest.raises(ConfigError, match="already registered"):
        register_policy(PolicyEntry("random", "elsewhere:Random"))
    with pytest.raises(ConfigError, match="without a colon"):
        register_policy(PolicyEntry("a:b", "elsewhere:Random"))


def test_a_policy_cannot_choose_the_world(directory) -> None:
    class Cheat(BasePolicy):
        name = "cheat"
        requires: ClassVar = {"arrival_rate_per_min": 1.0}

    with pytest.raises(ConfigError, match=r"cheat.*arrival_rate_per_min.*level"):
        requires_of(Cheat())
