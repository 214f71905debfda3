"""Every baseline by name: the protocol, single against batch, seeds, models that are down."""

from __future__ import annotations

import json

import numpy as np
import pytest

import baselines
from inframind_gym.errors import ConfigError
from inframind_gym.policies import Policy, models_up, requires_of
from tests.policies.synthetic import (
    act_all,
    make_completed,
    make_spec,
    random_run,
)

# Those that play in any spec; the others have tests of their own: they need embeddings, or to plan.
PLAIN = tuple(
    name
    for name in baselines.names()
    if not name.startswith(("sb3_", "fixed_recipe"))
    and not {"level", "system_features"} & set(requires_of(baselines.resolve_policy(name)))
)
NAMES = (
    *PLAIN,
    "static:deepseek-32b:DeepThink",
    "round_robin:Flash",
    "least_loaded:DeepThink",
)
ROWS = 7
STEPS = 60


def finished_after(step: int, row: int):
    """Some queries that finish after a step, the same whenever it is asked."""
    rng = np.random.default_rng([step, row])
    queries = rng.choice(20, rng.integers(0, 3), replace=False)
    return make_completed(
        queries, solved=rng.integers(0, 2, len(queries)), latency_s=rng.uniform(1, 200)
    )


def roll(policy: Policy, run, rows, seeds) -> np.ndarray:
    """(steps, rows) actions of a policy that handles `rows` of the run in one batch."""
    policy.reset(make_spec(), seeds)
    observe_ = getattr(policy, "observe", None)
    actions = []
    for step, (observations, contexts) in enumerate(run):
        actions.append(act_all(policy, observations[rows], contexts[rows]))
        for i, row in enumerate(rows):
            if observe_ is not None:
                observe_(finished_after(step, row), i)
    return np.array(actions)


@pytest.fixture(scope="module")
def run():
    return random_run(make_spec(), ROWS, STEPS)


@pytest.fixture(scope="module")
def seeds():
    return [2**64 - 1, 0, 1, 2, 12345, 2**40, 7]


@pytest.mark.parametrize("name", NAMES)
def test_name_protocol_and_round_trip(name) -> None:
    policy = baselines.resolve_policy(name)
    assert isinstance(policy, Policy)
    assert baselines.resolve_policy(policy.name).name == policy.name
    assert policy.name.startswith(name.split(":")[0])
    json.dumps(requires_of(policy))


@pytest.mark.parametrize("name", NAMES)
def test_single_equals_batch_and_models_that_are_down_are_never_chosen(name, run, seeds) -> None:
    rows = np.arange(ROWS)
    policy = baselines.resolve_policy(name)
    together = roll(policy, run, rows, seeds)
    assert together.dtype == np.int64
    for actions, (_, contexts) in zip(together, run, strict=True):
        assert models_up(contexts, 5)[rows, make_spec().model_of(actions)].all()
    assert (roll(policy, run, rows, seeds) == together).all(), "reset starts anew"
    backwards = rows[::-1]
    reordered = roll(
        baselines.resolve_policy(name), run, backwards, [seeds[row] for row in backwards]
    )
    assert (reordered[:, ::-1] == together).all()
    for row in (0, 3, 6):
        alone = roll(baselines.resolve_policy(name), run, np.array([row]), [seeds[row]])
        assert (alone[:, 0] == together[:, row]).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_model_up_takes_all_and_none_up_is_no_error(name, run, seeds) -> None:
    spec = make_spec()
    policy = baselines.resolve_policy(name)
    policy.reset(spec, seeds)
    observations, contexts = run[3][0], run[3][1].copy()
    for model in range(5):
        contexts["models_up"] = 1 << model
        models = spec.model_of(np.array(act_all(policy, observations, contexts)))
        assert (models == model).all()
    contexts["models_up"] = 0
    models = spec.model_of(np.array(act_all(policy, observations, contexts)))
    assert ((models >= 0) & (models < 5)).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("static:qwen-14:Flash", r"unknown model 'qwen-14'\. Did you mean 'qwen-14b'"),
        ("static:qwen-14b:Flush", r"unknown strategy 'Flush'\. Did you mean 'Flash'"),
        ("round_robin:concise", r"Did you mean 'Concise'"),
    ],
)
def test_unknown_models_and_strategies(name, message) -> None:
    policy = baselines.resolve_policy(name)
    with pytest.raises(ConfigError, match=message):
        policy.reset(make_spec(), [0])
