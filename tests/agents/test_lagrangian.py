"""The multiplier against numbers worked out by hand."""

import pytest

from agents.lagrangian import Multiplier


def values(multiplier, costs):
    out = []
    for cost in costs:
        multiplier.update(cost)
        out.append(multiplier.value)
    return out


@pytest.mark.parametrize(
    ("multiplier", "costs", "expected"),
    [
        (Multiplier(), [3.0, 0.5], [0.202, 0.2015]),  # 0.2 + 0.001·(3 - 1); + 0.001·(0.5 - 1)
        (Multiplier(value=0.999), [4.0, 0.0], [1.0, 0.999]),
        (Multiplier(value=0.0005), [0.0, 2.0], [0.0, 0.001]),
        (Multiplier(0.9, 0.1, max_value=None), [4.0, 4.0, 0.0], [1.2, 1.5, 1.4]),
        (Multiplier(0.5, 0.1, limit=0.5), [0.5, 0.7], [0.5, 0.52]),
        (Multiplier(0.0, 0.0), [9.0, 0.0], [0.0, 0.0]),  # lagrangian: none
    ],
)
def test_dual_ascent_steps_by_eta_times_the_excess_within_its_bounds(multiplier, costs, expected):
    assert values(multiplier, costs) == pytest.approx(expected)
