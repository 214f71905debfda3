"""Arrival processes: the rates that they promise, with margins; and what they refuse."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.arrivals import (
    ArrivalProcess,
    BurstArrivals,
    MmppArrivals,
    PoissonArrivals,
    SustainedArrivals,
    make_arrivals,
)

PROFILE = {"kind": "profile", "rates": [1, 3, 2, 2], "step_s": 10}
SPECS: list[Any] = ["poisson", "burst", "diurnal", "sustained", "mmpp", PROFILE]


def times_of(spec: Any, rate_per_min: float, n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return make_arrivals(spec).sample(rate_per_min, n, np.random.default_rng(seed))


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_decides(spec: Any) -> None:
    times = times_of(spec, 100.0, 500)
    assert np.array_equal(times, times_of(spec, 100.0, 500))
    assert not np.array_equal(times, times_of(spec, 100.0, 500, seed=1))


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    rate=st.floats(1e-3, 1e9),
    n=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_times_are_strictly_sorted_at_any_rate(spec: Any, rate: float, n: int, seed: int) -> None:
    times = times_of(spec, rate, n, seed)
    assert times.shape == (n,) and times.dtype == np.float64 and np.isfinite(times).all()
    assert times[0] > 0.0 and np.all(np.diff(times) > 0.0)


def test_poisson_rate_and_gaps() -> None:
    n = 50_000
    gaps = np.diff(times_of("poisson", 120.0, n))
    assert gaps.mean() == pytest.approx(0.5, rel=5 / math.sqrt(n))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


def distance_to_exponential(unit_gaps: np.ndarray[Any, Any]) -> float:
    """Kolmogorov-Smirnov distance to the exponential distribution, in units of 1/sqrt(n)."""
    n = len(unit_gaps)
    uniform = np.sort(1.0 - np.exp(-unit_gaps))
    grid = np.arange(1, n + 1) / n
    return float(np.max(np.abs(uniform - grid)) * math.sqrt(n))


def test_bursts_have_ten_times_the_rate() -> None:
    process = BurstArrivals()
    times = process.sample(60.0, 60_000, np.random.default_rng(3))
    phase = times % 20.0
    in_burst = phase >= 17.0
    assert times[0] < 17.0 or not in_burst[0]  # a sweep begins quietly
    per_s_burst = in_burst.sum() / 3.0
    per_s_quiet = (~in_burst).sum() / 17.0
    assert per_s_burst / per_s_quiet == pytest.approx(10.0, rel=0.04)
    periods = times[-1] / 20.0
    assert per_s_quiet / periods == pytest.approx(1.0, rel=0.03)  # base rate outside of bursts
    assert len(times) / times[-1] == pytest.approx(process.mean_rate_factor(), rel=0.02)
    assert process.mean_rate_factor() == pytest.approx(2.35)


def test_bursts_are_a_poisson_process_in_rescaled_time() -> None:
    times = times_of({"kind": "burst", "factor": 4, "duration_s": 2, "period_s": 8}, 90.0, 20_000)
    periods, phase = np.divmod(times, 8.0)
    rate = 1.5
    expected = rate * (periods * (6 + 4 * 2) + np.minimum(phase, 6) + 4 * np.maximum(phase - 6, 0))
    assert distance_to_exponential(np.diff(expected)) < 1.95  # p < 0.001 beyond


def test_diurnal_rate_swings_around_the_base_rate() -> None:
    """Amplitude 0.8: over a sine's upper half the mean rate is 1 + 0.8·2/π = 1.509 of the base."""
    spec = {"kind": "diurnal", "amplitude": 0.8, "period_s": 100.0}
    times = times_of(spec, 600.0, 100_000)
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.02)
    upper = times % 100.0 < 50.0
    assert upper.mean() * 2.0 == pytest.approx(1.0 + 0.8 * 2.0 / math.pi, rel=0.01)


def test_a_profile_is_played_from_a_random_step_at_the_mean_rate() -> None:
    """Rates of 0.5, 1.5, 1 and 1 of the mean, each for 10 s."""
    n, firsts = 40_000, []
    for seed in range(200):
        firsts.append(int(np.sum(times_of(PROFILE, 600.0, 200, seed) < 1.0)))
    assert np.mean(firsts) == pytest.approx(10.0, rel=0.1)  # any step may be the first
    assert np.var(firsts) > 15.0  # Poisson arrivals of one rate: 10
    times = times_of(PROFILE, 600.0, n)
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.02)
    phases = np.histogram(times % 40.0, bins=40)[0] / (times[-1] / 40.0)
    assert phases.min() == pytest.approx(5.0, rel=0.15)
    assert phases.max() == pytest.approx(15.0, rel=0.1)


def test_a_markov_modulated_process_has_its_states_in_their_shares() -> None:
    """Over-dispersion of counts in a short window: 1 + w·m·p(1-p)(f-1)²/(1+p(f-1))² for p of f."""
    process = MmppArrivals(factor=9.0, burst_s=5.0, quiet_s=15.0)
    assert process.mean_rate_factor() == pytest.approx(3.0)
    times = process.sample(60.0, 300_000, np.random.default_rng(5))
    assert len(times) / times[-1] == pytest.approx(3.0, rel=0.02)
    counts = np.bincount((times / 0.1).astype(int))
    over = (counts.var() / counts.mean() - 1.0) / counts.mean()
    assert over == pytest.approx(0.25 * 0.75 * 8.0**2 / 3.0**2, rel=0.05)
    starts = [process.sample(60.0, 1, np.random.default_rng(seed))[0] for seed in range(2000)]
    assert np.mean(starts) < 0.9  # a quarter of the streams begins in a burst


def test_sustained_stretch_has_three_times_the_rate() -> None:
    process = SustainedArrivals(start_frac=0.2, end_frac=0.6)
    n, rate_per_s = 60_000, 2.0
    times = process.sample(60.0 * rate_per_s, n, np.random.default_rng(4))
    duration_s = process.duration_s(rate_per_s, n)
    assert duration_s == pytest.approx(n / (rate_per_s * (0.6 + 3 * 0.4)))
    assert times[-1] == pytest.approx(duration_s, rel=0.03)
    edges = duration_s * np.array([0.0, 0.2, 0.6])
    counts = np.histogram(times, bins=[*edges, times[-1]])[0]
    seconds = np.diff([*edges, times[-1]])
    per_s = counts / seconds
    assert per_s == pytest.approx([2.0, 6.0, 2.0], rel=0.04)


def test_a_stretch_to_the_end_and_a_lull_are_valid() -> None:
    spec = {"kind": "sustained", "factor": 0.5, "start_frac": 0.0, "end_frac": 1.0}
    times = times_of(spec, 60.0, 20_000)
    assert len(times) / times[-1] == pytest.approx(0.5, rel=0.04)


def test_rates_scale_time() -> None:
    """Common random numbers: at twice the rate the same arrivals come in half the time."""
    slow, fast = times_of("poisson", 50.0, 100), times_of("poisson", 100.0, 100)
    assert slow == pytest.approx(2.0 * fast)


@pytest.mark.parametrize("spec", SPECS)
def test_specifications_survive_json(spec: Any) -> None:
    process = make_arrivals(spec)
    again = make_arrivals(json.loads(json.dumps(process.to_json())))
    assert again == process and make_arrivals(process) is process
    assert isinstance(again, ArrivalProcess)


def test_the_shorthand_is_the_specification() -> None:
    assert make_arrivals("poisson") == make_arrivals({"kind": "poisson"}) == PoissonArrivals()
    spec = {"kind": "burst", "factor": 10, "duration_s": 3, "period_s": 20}
    assert make_arrivals("burst") == make_arrivals(spec)


@pytest.mark.parametrize("rate", [0.0, -5.0, math.nan, math.inf, "100", None, True])
def test_wrong_rates(rate: Any) -> None:
    with pytest.raises(ConfigError, match="arrival_rate_per_min must be a number from"):
        times_of("poisson", rate, 10)


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_wrong_counts(n: Any) -> None:
    with pytest.raises(ConfigError, match="num_queries must be an integer of at least 1"):
        times_of("poisson", 100.0, n)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("poison", "unknown kind 'poison'. Did you mean 'poisson'? Known: poisson, burst"),
        ({"kind": "bursts"}, "Did you mean 'burst'?"),
        ({"kind": 3}, "unknown kind '3'"),
        ({"factor": 2}, "the key kind is required"),
        (7, "must be a name or a mapping"),
        ({"kind": "burst", "facter": 2}, "facter: unknown key. Did you mean 'factor'?"),
        ({"kind": "burst", "factor": 0}, "arrivals: factor: "),
        ({"kind": "burst", "factor": math.nan}, "arrivals: factor: "),
        ({"kind": "burst", "duration_s": 20, "period_s": 20}, "duration_s (20) must be less than"),
        ({"kind": "sustained", "start_frac": 0.8, "end_frac": 0.2}, "start_frac (0.8) must be"),
        ({"kind": "sustained", "end_frac": 1.2}, "arrivals: end_frac: "),
        ({"kind": "trace"}, "arrivals: path: this key is required"),
        ({"kind": "trace", "path": ""}, "arrivals: path: "),
        ("trace", "arrivals: path: this key is required"),
        ("no/such/trace.csv", "trace.csv: no such trace file"),
        ({"kind": "poisson", "rate": 3}, "rate: unknown key"),
    ],
)
def test_wrong_specifications(spec: Any, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_arrivals(spec)
    assert part in str(caught.value)
