"""Counter-based random numbers: a value is a function of where it is used, not of what came before.

Every latent quantity of a run (an answer's length, whether a model can solve a query) is a hash of
the episode's key and of the place it belongs to. Two policies that act differently therefore meet
the same world (common random numbers), and nothing depends on the order of evaluation, on the
number of environments in a batch or on the number of workers.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); the normal
quantile is algorithm AS 241 (Wichura, 1988), accurate to about 1e-16.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inframind_gym.simulator.jit import inner

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_STEP_A: Final = np.uint64(0xD1342543DE82EF95)
_STEP_B: Final = np.uint64(0xA0761D6478BD642F)
_STEP_S: Final = np.uint64(0xE7037ED1A0B428DB)
_S30: Final = np.uint64(30)
_S27: Final = np.uint64(27)
_S31: Final = np.uint64(31)
_S11: Final = np.uint64(11)
_TO_UNIT: Final = 2.0**-53

# Coefficients of AS 241, numerator and denominator, of the highest power first.
# fmt: off
_MIDDLE: Final = (  # |q| <= 0.425
    (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
     13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665),
    (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
     5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0),
)
_SIDE: Final = (  # r <= 5
    (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
     3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835),
    (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
     0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0),
)
_TAIL: Final = (  # r > 5
    (2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
     0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103),
    (2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
     0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0),
)
# fmt: on

# Streams: what a number is for. Distinct streams never share a value. Those of workflows are here;
# the token-budget team has 40 and 41, coordination 60 and 61, placement 101 to 109, assignment 201
# to 221, where they are drawn. Numbers 1 and 11 were once taken and stay free.
STREAM_BUDGET: Final = 2
STREAM_TOPOLOGY: Final = 3
STREAM_AGENTS: Final = 4
STREAM_ROLE: Final = 5
STREAM_QUERY_LENGTH: Final = 6
STREAM_CALL_LENGTH: Final = 7
STREAM_MODEL_ABILITY: Final = 8
STREAM_CALL_ANSWER: Final = 9
STREAM_BACKGROUND: Final = 10
STREAM_POLICY: Final = 12
STREAM_TESTS: Final = 13


@inner
def _mix(x: Any) -> Any:
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@inner
def hash_u64(key: Any, stream: Any, a: Any, b: Any) -> Any:
    """Return 64 random bits, a function of (key, stream, a, b)."""
    x = key + np.uint64(stream) * _STEP_S + np.uint64(a) * _STEP_A
    x = _mix(x + _GOLDEN)
    return _mix(x + np.uint64(b) * _STEP_B + _GOLDEN)


@inner
def uniform(key: Any, stream: Any, a: Any, b: Any) -> float:
    """Return a uniform number in (0, 1), never 0 or 1."""
    return float((hash_u64(key, stream, a, b) >> _S11) + 0.5) * _TO_UNIT


@inner
def normal(key: Any, stream: Any, a: Any, b: Any) -> float:
    """Return a standard normal number."""
    return normal_quantile(uniform(key, stream, a, b))


@inner
def normal_quantile(p: float) -> float:
    """Return the standard normal quantile of p in (0, 1) (AS 241, PPND16)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return _ratio(q, _MIDDLE, 0.180625 - q * q)
    r = math.sqrt(-math.log(p if q < 0.0 else 1.0 - p))
    z = _ratio(1.0, _SIDE, r - 1.6) if r <= 5.0 else _ratio(1.0, _TAIL, r - 5.0)
    return -z if q < 0.0 else z


@inner
def _ratio(factor: float, coefficients: Any, r: float) -> float:
    """Return `factor` times one polynomial of r over another."""
    numerator, denominator = coefficients[0], coefficients[1]
    top, bottom = numerator[0], denominator[0]
    for i in range(1, 8):
        top = top * r + numerator[i]
        bottom = bottom * r + denominator[i]
    return float(factor * top / bottom)


@inner
def draw(cdf: Any, u: float) -> int:
    """Return the index of the first cumulative share above u."""
    for i in range(cdf.shape[0] - 1):
        if u < cdf[i]:
            return i
    return int(cdf.shape[0]) - 1


def cumulative(weights: ArrayLike) -> NDArray[np.float64]:
    """Return the cumulative shares of weights along the last axis, as `draw` takes them."""
    sums = np.cumsum(np.asarray(weights, np.float64), axis=-1)
    return np.asarray(sums / sums[..., -1:])


def uniform_array(
    keys: NDArray[np.uint64], stream: int, a: NDArray[np.int64], b: NDArray[np.int64] | int = 0
) -> NDArray[np.float64]:
    """Return uniform numbers for arrays, in NumPy, for policies and teams outside compiled code.

    Args:
        keys: (n,) one key for each row.
        stream: what the numbers are for (`STREAM_POLICY` for policies).
        a: (n,) first coordinate, for example how many decisions the row has made.
        b: (n,) or a number: second coordinate.

    Returns:
        (n,) numbers in (0, 1), equal to the compiled `uniform` bit for bit.
    """
    with np.errstate(over="ignore"):
        bits = hash_u64(np.asarray(keys, np.uint64), stream, np.asarray(a), np.asarray(b)) >> _S11
    return np.asarray((bits.astype(np.float64) + 0.5) * _TO_UNIT)
