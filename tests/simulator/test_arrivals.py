"""Arrival processes and traces: the rates that they promise, with margins; what they refuse."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.arrivals import BurstArrivals, MmppArrivals, load_trace, make_arrivals

PROFILE = {"kind": "profile", "rates": [1, 3, 2, 2], "step_s": 10}
SPECS: list[Any] = ["poisson", "burst", "diurnal", "mmpp", PROFILE]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = "timestamp_ms,input_length,output_length\n"
PLAIN = "timestamp,input,output\n"


def times_of(spec: Any, rate_per_min: float, n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return make_arrivals(spec).sample(rate_per_min, n, np.random.default_rng(seed))


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_decides_and_specifications_survive_json(spec: Any) -> None:
    times = times_of(spec, 100.0, 500)
    assert np.array_equal(times, times_of(spec, 100.0, 500))
    assert not np.array_equal(times, times_of(spec, 100.0, 500, seed=1))
    process = make_arrivals(spec)
    again = make_arrivals(json.loads(json.dumps(process.to_json())))
    assert again == process and make_arrivals(process) is process


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
    # Common random numbers: at twice the rate the same arrivals come in half the time.
    slow, fast = times_of("poisson", 50.0, 100), times_of("poisson", 100.0, 100)
    assert slow == pytest.approx(2.0 * fast)


def test_bursts_have_ten_times_the_rate() -> None:
    process = BurstArrivals()
    times = process.sample(60.0, 60_000, np.random.default_rng(3))
    in_burst = times % 20.0 >= 17.0
    per_s_burst, per_s_quiet = in_burst.sum() / 3.0, (~in_burst).sum() / 17.0
    assert per_s_burst / per_s_quiet == pytest.approx(10.0, rel=0.04)
    assert per_s_quiet / (times[-1] / 20.0) == pytest.approx(1.0, rel=0.03)  # the base rate
    assert len(times) / times[-1] == pytest.approx(process.mean_rate_factor(), rel=0.02)
    assert process.mean_rate_factor() == pytest.approx(2.35)


def test_diurnal_rate_swings_around_the_base_rate() -> None:
    """Amplitude 0.8: over a sine's upper half the mean rate is 1 + 0.8·2/π = 1.509 of the base."""
    times = times_of({"kind": "diurnal", "amplitude": 0.8, "period_s": 100.0}, 600.0, 100_000)
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.02)
    upper = times % 100.0 < 50.0
    assert upper.mean() * 2.0 == pytest.approx(1.0 + 0.8 * 2.0 / math.pi, rel=0.01)


def test_a_profile_is_played_from_a_random_step_at_the_mean_rate() -> None:
    """Rates of 0.5, 1.5, 1 and 1 of the mean, each for 10 s."""
    firsts = [int(np.sum(times_of(PROFILE, 600.0, 200, seed) < 1.0)) for seed in range(200)]
    assert np.mean(firsts) == pytest.approx(10.0, rel=0.1)  # any step may be the first
    assert np.var(firsts) > 15.0  # Poisson arrivals of one rate: 10
    times = times_of(PROFILE, 600.0, 40_000)
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


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("poison", "unknown kind 'poison'. Did you mean 'poisson'? Known: poisson, burst"),
        ({"factor": 2}, "the key kind is required"),
        ({"kind": "burst", "facter": 2}, "facter: unknown key. Did you mean 'factor'?"),
        ({"kind": "burst", "duration_s": 20, "period_s": 20}, "duration_s (20) must be less than"),
        ("trace", "arrivals: path: this key is required"),
        ("no/such/trace.csv", "trace.csv: no such trace file"),
    ],
)
def test_wrong_specifications(spec: Any, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_arrivals(spec)
    assert part in str(caught.value)


# Traces


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        AZURE
        + "2023-11-16 23:59:59.5000000,100,10\n2023-11-17 00:00:00.7500001,5,6\n"
        + "2023-11-17 00:00:02.5000000,1,1\n",
        AZURE.lower()
        + "2024-05-10 00:00:00.5+00:00,100,10\n2024-05-10T00:00:01.7500001Z,5,6\n"
        + "2024-05-10 00:00:03.5,1,1\n",
        MOONCAKE + "1000,100,10\n2250.0001,5,6\n4000,1,1\n",
        "\ufeff id , output,timestamp,input\nx,10,7,100\n\ny,6,8.2500001,5\nz,1,10.0,1\n",
    ],
)
def test_layouts(tmp_path: Path, text: str) -> None:
    trace = load_trace(write(tmp_path, text))
    assert trace.times_s == pytest.approx([0.0, 1.2500001, 3.0], abs=1e-9)
    assert trace.input_tokens.tolist() == [100, 5, 1]
    assert trace.output_tokens.tolist() == [10, 6, 1]
    assert len(trace) == 3 and trace.rate_per_min == pytest.approx(40.0)


def test_rows_are_sorted_ties_are_spread_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "0,1,1\n0,2,1\n0,3,1\n10,5,1\n3,4,1\n10,6,1\n")
    trace = load_trace(path)
    assert trace.times_s.tolist() == [0, 1, 2, 3, 10, 11.5]
    assert trace.input_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert load_trace(path) is trace
    write(tmp_path, PLAIN + "0,1,1\n1,1,1\n2,1,1\n")
    assert len(load_trace(path)) == 3


def test_a_replay_keeps_the_gaps_and_wraps_or_has_the_rate(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "0,1,1\n1,1,1\n3,1,1\n6,1,1\n")
    process = make_arrivals({"kind": "trace", "path": str(path), "rescale": False})
    cycle, starts = [1.0, 2.0, 3.0, 2.0], set()  # the last joins end and beginning: the mean gap
    for seed in range(20):
        gaps = np.diff(process.sample(1.0, 11, np.random.default_rng(seed)), prepend=0.0)
        shifted = ([cycle[(k + i) % 4] for i in range(11)] for k in range(4))
        starts.add([np.allclose(gaps, each) for each in shifted].index(True))
    assert starts == {0, 1, 2, 3}
    for rate in (10.0, 600.0):
        times = make_arrivals(str(path)).sample(rate, 8, np.random.default_rng(0))
        assert times[-1] == pytest.approx(8 * 60.0 / rate)
        gaps = np.diff(times, prepend=0.0)
        assert gaps.max() / gaps.min() == pytest.approx(3.0)
