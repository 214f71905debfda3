import math

import numpy as np
import pytest
from scipy.special import stdtrit

from inframind_gym.evaluation.stats import interval, pooled_quantile, resample_counts


def test_interval_of_a_mean_is_the_t_interval() -> None:
    """For a mean of many values the expanded percentile interval is Student's."""
    values = np.random.default_rng(3).normal(size=30)
    draws = resample_counts(np.random.default_rng(4), 30, 200_000) @ values / 30
    half = stdtrit(29, 0.975) * values.std(ddof=1) / math.sqrt(30)
    assert interval(draws, np.array([30])) == pytest.approx(
        [values.mean() - half, values.mean() + half], abs=0.06 * half
    )


@pytest.mark.parametrize(("trainings", "spread"), [(1, 0.0), (5, 0.1), (5, 1.0), (5, 10.0)])
def test_interval_over_trainings_and_episodes_covers_the_truth(
    trainings: int, spread: float
) -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        # (trainings, 5 episodes), whose true mean is 0.
        scores = spread * rng.normal(size=(trainings, 1)) if trainings > 1 else np.zeros((1, 1))
        scores = scores + rng.normal(size=(1, 5)) + 0.3 * rng.normal(size=(trainings, 5))
        episodes = resample_counts(rng, 5, 800) / 5
        of = resample_counts(rng, trainings, 800) / trainings
        draws = np.einsum("bt,ts,bs->b", of, scores, episodes)
        low, high = interval(draws, np.array([5]), by_training=[scores.mean(axis=1)])
        covered += bool(low <= 0 <= high)
    assert covered / 300 > 0.87  # five values alone cannot give more than 0.9375


def test_interval_of_equal_trainings_is_that_of_episodes_and_of_equal_values_has_no_width() -> None:
    rng = np.random.default_rng(8)
    draws = resample_counts(rng, 5, 2000) @ rng.normal(size=5) / 5
    alone = interval(draws, np.array([5]))
    equal = interval(draws, np.array([5]), by_training=[np.zeros(5), np.ones(1)])
    assert equal == pytest.approx(alone)
    nothing = interval(np.full(50, 0.7), np.array([5]), by_training=[np.full(5, 0.7)])
    assert nothing.tolist() == [0.7, 0.7]
    apart = interval(draws, np.array([5]), by_training=[3.0 * np.arange(5.0)])
    assert apart[1] - apart[0] > alone[1] - alone[0] - 1e-12


def test_pooled_quantile_equals_numpy_on_repeated_data() -> None:
    rng = np.random.default_rng(7)
    values, unit = rng.exponential(size=60).round(1), rng.integers(4, size=60)
    counts = resample_counts(rng, 4, 40)
    found = pooled_quantile(values, unit, counts, 0.95)
    expected = [np.quantile(np.repeat(values, row[unit]), 0.95) for row in counts]
    assert found == pytest.approx(expected)
