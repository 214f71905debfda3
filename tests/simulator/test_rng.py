"""Counter-based random numbers: the compiled form, the array form, and the quality of both."""

from __future__ import annotations

import math
import re
from statistics import NormalDist
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inframind_gym.simulator import rng
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.rng import normal_quantile, uniform
from tests.test_layers import sources

U64 = st.integers(0, 2**64 - 1)
PLACE = st.integers(0, 2**40)


@jit
def write_uniforms(key: Any, stream: int, a: NDArray[np.int64], b: int, out: Any) -> None:
    for i in range(a.shape[0]):
        out[i] = uniform(key, stream, a[i], b)


@jit
def write_quantiles(p: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in range(p.shape[0]):
        out[i] = normal_quantile(p[i])


def uniforms(key: np.uint64, stream: int, a: NDArray[np.int64], b: int) -> NDArray[np.float64]:
    out = np.empty(len(a))
    write_uniforms(key, stream, a, b, out)
    return out


def quantiles(p: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.empty(len(p))
    write_quantiles(p, out)
    return out


def splitmix64(key: int, stream: int, a: int, b: int) -> int:
    """The documented mixing, in Python's unbounded integers."""
    mask = 2**64 - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    x = key + stream * 0xE7037ED1A0B428DB + a * 0xD1342543DE82EF95
    x = mix(x + golden & mask)
    return mix(x + b * 0xA0761D6478BD642F + golden & mask)


@settings(deadline=None)
@given(U64, st.integers(0, 20), PLACE, st.integers(0, 2**20))
def test_compiled_and_array_forms_are_the_same_bits(key: int, stream: int, a: int, b: int) -> None:
    places = a + np.arange(4)
    ours = uniforms(np.uint64(key), stream, places, b)
    arrays = rng.uniform_array(np.full(4, key, np.uint64), stream, places, b)
    assert ours.tobytes() == arrays.tobytes()
    expected = [((splitmix64(key, stream, int(i), b) >> 11) + 0.5) * 2.0**-53 for i in places]
    assert ours.tolist() == expected


def test_streams_keys_and_places_do_not_share_numbers() -> None:
    named = re.compile(r"^((?:_?STREAM_\w+(?:: Final|, )?)+) = (\d+|range\(\d+, \d+\))$", re.M)
    streams = []
    for path in sources().values():
        for _, numbers in named.findall(path.read_text(encoding="utf-8")):
            ends = [int(end) for end in re.findall(r"\d+", numbers)]
            streams += range(*ends) if len(ends) > 1 else ends
    assert len(streams) == len(set(streams)) >= 30
    places = np.arange(500)
    keys = np.arange(1, 3, dtype=np.uint64)
    drawn = [uniforms(key, s, places, b) for key in keys for s in streams for b in (0, 1)]
    assert len(np.unique(np.concatenate(drawn))) == len(drawn) * len(places)


def test_normal_quantile_inverts_the_distribution_function() -> None:
    p = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 2001), 10.0 ** -np.arange(2, 300, 7)])
    z = quantiles(p)
    back = np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in z])
    np.testing.assert_allclose(back, p, rtol=1e-12)
    np.testing.assert_allclose(z, [NormalDist().inv_cdf(x) for x in p], rtol=1e-14, atol=1e-15)
    assert quantiles(np.array([0.5]))[0] == 0.0
    half = p[p < 0.5]
    half = half[1.0 - (1.0 - half) == half]  # whose mirror image is exact
    assert quantiles(1.0 - half).tolist() == (-quantiles(half)).tolist()
