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

# Streams: what a number is for. Distinct streams never share a value. Numbers 1 and 11 were once
# taken and stay free.
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
    """64 random bits that belong to (key, stream, a, b)."""
    x = key + np.uint64(stream) * _STEP_S + np.uint64(a) * _STEP_A
    x = _mix(x + _GOLDEN)
    return _mix(x + np.uint64(b) * _STEP_B + _GOLDEN)


@inner
def uniform(key: Any, stream: Any, a: Any, b: Any) -> float:
    """A uniform number in (0, 1), never 0 or 1."""
    return float((hash_u64(key, stream, a, b) >> _S11) + 0.5) * _TO_UNIT


@inner
def normal(key: Any, stream: Any, a: Any, b: Any) -> float:
    """A standard normal number."""
    return normal_quantile(uniform(key, stream, a, b))


@inner
def normal_quantile(p: float) -> float:
    """Inverse of the standard normal distribution function for p in (0, 1) (AS 241, PPND16)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        num = 2.5090809287301226727e3
        num = num * r + 3.3430575583588128105e4
        num = num * r + 6.7265770927008700853e4
        num = num * r + 4.5921953931549871457e4
        num = num * r + 1.3731693765509461125e4
        num = num * r + 1.9715909503065514427e3
        num = num * r + 1.3314166789178437745e2
        num = num * r + 3.3871328727963666080e0
        den = 5.2264952788528545610e3
        den = den * r + 2.8729085735721942674e4
        den = den * r + 3.9307895800092710610e4
        den = den * r + 2.1213794301586595867e4
        den = den * r + 5.3941960214247511077e3
        den = den * r + 6.8718700749205790830e2
        den = den * r + 4.2313330701600911252e1
        den = den * r + 1.0
        return q * num / den
    r = p if q < 0.0 else 1.0 - p
    r = math.sqrt(-math.log(r))
    if r <= 5.0:
        r -= 1.6
        num = 7.74545014278341407640e-4
        num = num * r + 2.27238449892691845833e-2
        num = num * r + 2.41780725177450611770e-1
        num = num * r + 1.27045825245236838258e0
        num = num * r + 3.64784832476320460504e0
        num = num * r + 5.76949722146069140550e0
        num = num * r + 4.63033784615654529590e0
        num = num * r + 1.42343711074968357734e0
        den = 1.05075007164441684324e-9
        den = den * r + 5.47593808499534494600e-4
        den = den * r + 1.51986665636164571966e-2
        den = den * r + 1.48103976427480074590e-1
        den = den * r + 6.89767334985100004550e-1
        den = den * r + 1.67638483018380384940e0
        den = den * r + 2.05319162663775882187e0
        den = den * r + 1.0
    else:
        r -= 5.0
        num = 2.01033439929228813265e-7
        num = num * r + 2.71155556874348757815e-5
        num = num * r + 1.24266094738807843860e-3
        num = num * r + 2.65321895265761230930e-2
        num = num * r + 2.96560571828504891230e-1
        num = num * r + 1.78482653991729133580e0
        num = num * r + 5.46378491116411436990e0
        num = num * r + 6.65790464350110377720e0
        den = 2.04426310338993978564e-15
        den = den * r + 1.42151175831644588870e-7
        den = den * r + 1.84631831751005468180e-5
        den = den * r + 7.86869131145613259100e-4
        den = den * r + 1.48753612908506148525e-2
        den = den * r + 1.36929880922735805310e-1
        den = den * r + 5.99832206555887937690e-1
        den = den * r + 1.0
    z = num / den
    return -z if q < 0.0 else z


@inner
def draw(cdf: Any, u: float) -> int:
    """Index of the first cumulative share above u."""
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
    """`uniform` for arrays, in NumPy: the form in which policies outside the kernel draw.

    Args:
        keys: (n,) one key a row.
        stream: which use the numbers are for (`STREAM_POLICY` for policies).
        a: (n,) first coordinate, for example how many decisions the row has made.
        b: (n,) or a number: second coordinate.

    Returns:
        (n,) numbers in (0, 1), equal to the compiled `uniform` bit for bit.
    """
    with np.errstate(over="ignore"):
        bits = hash_u64(np.asarray(keys, np.uint64), stream, np.asarray(a), np.asarray(b)) >> _S11
    return np.asarray((bits.astype(np.float64) + 0.5) * _TO_UNIT)
