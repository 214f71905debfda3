"""What a policy is told: actions, names, and the checks of a spec."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import ObservationLayout, models_up
from tests.policies.synthetic import make_contexts, make_spec


def test_action_is_model_times_strategies_plus_strategy() -> None:
    spec = make_spec()
    assert spec.num_actions == 15
    assert spec.action(2, 1) == 7
    assert isinstance(spec.action(2, 1), int)
    actions = spec.action(np.array([0, 4]), np.array([2, 0]))
    assert actions.tolist() == [2, 12]
    assert spec.model_of(actions).tolist() == [0, 4]
    assert spec.strategy_of(actions).tolist() == [2, 0]


def test_fields_are_read_only_and_converted() -> None:
    spec = make_spec()
    assert spec.expected_call_s.dtype == np.float64
    assert spec.max_num_seqs.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        spec.ability[0] = 3.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.workload = "mbpp"


def test_names() -> None:
    spec = make_spec()
    assert spec.model_index("qwen-14b") == 2
    assert spec.strategy_index("DeepThink") == 2
    with pytest.raises(ConfigError, match=r"unknown model 'qwen14b'.*'qwen-14b'"):
        spec.model_index("qwen14b")
    with pytest.raises(ConfigError, match=r"unknown strategy 'deepthink'.*'DeepThink'"):
        spec.strategy_index("deepthink")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ability": [1.0]}, r"ability has shape \(1,\)"),
        ({"expected_call_s": [1, 2, 3, 4, np.nan]}, "finite"),
        ({"model_share": [0.5, 0.5, 0.5, 0.0, 0.0]}, "sum to 1"),
        ({"strategy_share": [1.5, -0.5, 0.0]}, "sum to 1"),
        ({"layout": ObservationLayout(4)}, "layout for 4"),
    ],
)
def test_spec_is_checked(change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_spec(**change)


def test_models_up_reads_the_mask_and_opens_it_when_all_are_down() -> None:
    up = models_up(make_contexts(3, models_up=[0b10110, 0b00001, 0]), 5)
    assert up.tolist() == [
        [False, True, True, False, True],
        [True, False, False, False, False],
        [True] * 5,
    ]
