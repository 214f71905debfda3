"""Multipliers against numbers worked out by hand."""

import pytest

from agents.lagrangian import Multiplier, PIDMultiplier


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
        (Multiplier(1.0, 0.1, limit=0.5, max_value=None), [0.5, 0.7], [1.0, 1.02]),
        (Multiplier(0.0, 0.0), [9.0, 0.0], [0.0, 0.0]),  # lagrangian: none
    ],
)
def test_dual_ascent_steps_by_eta_times_the_excess_within_its_bounds(multiplier, costs, expected):
    assert values(multiplier, costs) == pytest.approx(expected)


def test_pid_by_hand():
    pid = PIDMultiplier(value=0.0, kp=0.5, ki=0.1, kd=2.0, smoothing=0.5)
    # C̄ = 2: Δ smoothed 0.5·1 = 0.5, I = 0.1·1, nothing rises yet: 0.5·0.5 + 0.1
    # C̄ = 4: smoothed cost 0.5·2 + 0.5·4 = 3 rises by 1; Δ smoothed 0.5·0.5 + 0.5·3 = 1.75;
    #        I = 0.1 + 0.3: 0.5·1.75 + 0.4 + 2·1
    # C̄ = 0: the cost falls; Δ smoothed 0.875 - 0.5 = 0.375; I = 0.3: 0.5·0.375 + 0.3
    assert values(pid, [2.0, 4.0, 0.0]) == pytest.approx([0.35, 3.275, 0.4875])


def test_pid_starts_at_lambda_and_does_not_wind_up_below_zero():
    assert values(PIDMultiplier(kp=0.0, ki=0.01, kd=0.0), [3.0]) == pytest.approx([0.22])
    pid = PIDMultiplier(value=0.0, kp=0.1, ki=0.1, kd=0.1, smoothing=0.0)
    values(pid, [0.0] * 50)
    assert pid.integral == 0.0 and pid.value == 0.0


def test_pid_does_not_wind_up_beyond_its_largest_value():
    pid = PIDMultiplier(0.0, 1.0, 0.2, 1.0, 0.1, 0.5, most=2.0)
    assert values(pid, [1.0] * 200)[-1] == 2.0
    assert 0.0 in values(pid, [0.0] * 120)  # 0.02 each; unbounded it would take 1,800
