"""What a policy is given: positions in the observation, actions, names, checks of a spec."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import ObservationLayout, models_up
from tests.policies.synthetic import make_contexts, make_spec, observe


@pytest.mark.parametrize(
    ("embedding", "features", "size"),
    [
        ("full", ("queue", "e2e"), 779),
        ("full", ("queue", "e2e", "kv"), 784),
        ("index", ("queue", "e2e"), 13),
        ("index", (), 3),
    ],
)
def test_size(embedding, features, size) -> None:
    layout = ObservationLayout(5, embedding, features)
    assert layout.size == size
    covered = np.zeros(size, int)
    for part in (layout.query, layout.role, layout.budget, *map(layout.system, features)):
        covered[part] += 1
    assert (covered == 1).all()
    assert layout.resource == slice(layout.budget, size)


@pytest.mark.parametrize("embedding", ["full", "index"])
@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_inverse_of_the_normalisation(embedding, leading) -> None:
    spec = make_spec(embedding=embedding, system_features=("queue", "e2e", "kv"))
    depth = [0.0, 1.0, 16.0, 37.0, 256.0]
    e2e = [0.0, 0.5, 12.0, 299.0, 1000.0]
    one = observe(
        spec, remaining_s=73.0, depth_req=depth, e2e_s=e2e, kv_frac=[0.0, 0.1, 0.5, 0.9, 1.0]
    )[0]
    observation = np.broadcast_to(one, (*leading, spec.layout.size))
    assert spec.layout.remaining_budget_s(observation) == pytest.approx(73.0, rel=1e-5)
    for values, expected in (
        (spec.layout.queue_depth_req(observation), depth),
        (spec.layout.e2e_s(observation), e2e),
        (spec.layout.kv_frac(observation), [0.0, 0.1, 0.5, 0.9, 1.0]),
    ):
        assert values.shape == (*leading, 5)
        assert values.dtype == np.float64
        np.testing.assert_allclose(
            values, np.broadcast_to(expected, values.shape), rtol=1e-5, atol=1e-6
        )


def test_indices() -> None:
    layout = ObservationLayout(5, "index")
    observation = np.zeros((3, layout.size), np.float32)
    observation[:, 0] = [0, 1999, 7]
    assert layout.query_index(observation).tolist() == [0, 1999, 7]
    with pytest.raises(ConfigError, match="embeddings, not indices"):
        ObservationLayout(5).query_index(observation)


def test_action_is_model_times_strategies_plus_strategy() -> None:
    spec = make_spec()
    assert spec.num_actions == 15
    assert spec.action(2, 1) == 7
    assert isinstance(spec.action(2, 1), int)
    actions = spec.action(np.array([0, 4]), np.array([2, 0]))
    assert actions.tolist() == [2, 12]
    assert spec.model_of(actions).tolist() == [0, 4]
    assert spec.strategy_of(actions).tolist() == [2, 0]


def test_models_up_reads_the_mask_and_opens_it_when_all_are_down() -> None:
    assert models_up(make_contexts(3, models_up=[0b10110, 0b00001, 0]), 5).tolist() == [
        [False, True, True, False, True],
        [True, False, False, False, False],
        [True] * 5,
    ]
