"""The two-way bootstrap: right where it is known, wide enough where both factors are chance."""

import numpy as np
import pytest

from benchmarks.intervals import Units, draw, mean
from inframind_gym.benchmark.stats import interval, resample_counts

PLACE = ("math", 10.0, "tiers")


def matrix(rng: np.random.Generator, trained: int, episodes: int, spread: float) -> np.ndarray:
    of_seed = spread * rng.normal(size=(trained, 1)) if trained > 1 else np.zeros((1, 1))
    return of_seed + rng.normal(size=(1, episodes)) + 0.3 * rng.normal(size=(trained, episodes))


def test_without_training_it_is_the_interval_of_the_leaderboard() -> None:
    scores = np.array([[0.2, 0.5, 0.4, 0.9, 0.7]])
    drawn = draw(scores, "static", PLACE, num=20_000)
    counts = resample_counts(np.random.default_rng(0), 5, 20_000)
    expected = interval(counts @ scores[0] / 5, np.array([5]))
    assert drawn.value == pytest.approx(0.54)
    assert drawn.interval() == pytest.approx(tuple(expected), abs=0.02)


def test_what_does_not_vary_has_no_width() -> None:
    drawn = draw(np.full((5, 5), 0.7), "agent", PLACE)
    assert drawn.interval() == pytest.approx((0.7, 0.7))
    own = draw(matrix(np.random.default_rng(1), 5, 5, 1.0), "agent", PLACE)
    assert (own - own).interval() == (0.0, 0.0)
    assert (own / own).interval() == pytest.approx((1.0, 1.0))


def test_episodes_are_shared_between_entries_and_training_seeds_are_not() -> None:
    rng = np.random.default_rng(2)
    luck = 5.0 * rng.normal(size=(1, 5))  # of the episodes, shared by both
    one = draw(np.repeat(luck + 1.0, 5, axis=0), "one", PLACE)
    other = draw(np.repeat(luck, 5, axis=0), "other", PLACE)
    assert (one - other).interval() == pytest.approx((1.0, 1.0))
    seeds = rng.normal(size=(5, 1)) * np.ones((1, 5))
    unpaired = draw(seeds, "one", PLACE) - draw(seeds, "other", PLACE)
    low, high = unpaired.interval()
    assert low < -0.3 < 0.3 < high


def test_training_seeds_that_differ_widen_an_average_that_more_episodes_cannot_narrow() -> None:
    rng = np.random.default_rng(3)
    places = [("math", float(rate), "tiers") for rate in range(20)]
    of_seed = rng.normal(size=(5, 1))

    def width(spread: float) -> float:
        draws = [draw(spread * of_seed + rng.normal(size=(5, 5)), "a", p) for p in places]
        low, high = mean(draws).interval()
        return high - low

    assert width(1.0) > 2.5 * width(0.0)
    one = draw(of_seed + rng.normal(size=(5, 5)), "a", places[0])
    assert mean([one] * 4).num_episodes == Units(20, 16)


@pytest.mark.parametrize(("trained", "spread"), [(1, 0.0), (5, 0.1), (5, 1.0)])
def test_it_covers_the_truth(trained: int, spread: float) -> None:
    rng = np.random.default_rng(4)
    runs = 200
    inside = 0
    for run in range(runs):
        drawn = draw(matrix(rng, trained, 5, spread), "agent", PLACE, run, num=800)
        low, high = drawn.interval()
        inside += low <= 0.0 <= high
    assert inside / runs > 0.87  # five values alone cannot give more than 0.9375
