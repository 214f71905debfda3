"""What a further copy of a model is worth: the convex arcs of `plus_network`.

A fluid look ahead. Of model m, n calls wait now and λ come in a second. With k copies, each of
which ends μ = slots / (work · step(slots)) calls a second at a full batch, the queue is
q(t) = max(0, n + (λ - k·μ)·t) within the next H seconds, and

    C(k) = ∫₀ᴴ q dt  +  T · q(H)  +  service(k)

are the request-seconds that it costs; what is left at H is charged T seconds more. A running call
takes S = work · (base + per_seq · b) in a batch of b = S · r / k, where r = min(λ + n / H, k·μ) of
them end in a second; solved for S, service(k) = r · H · S. The worth of copy k is C(k - 1) - C(k),
made not to increase in k (rounding aside C is convex).

Source: the waiting relief of `spec/gpu_placement.md`, which is the same for every copy, is the
term n·age of this with a relief that does not depend on k.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Load(NamedTuple):
    """What is asked of each of M models."""

    waiting: NDArray[np.float64]  # (M,) calls that wait now, n
    rate: NDArray[np.float64]  # (M,) calls that come in a second, λ
    work: NDArray[np.float64]  # (M,) engine steps of a call
    base_s: NDArray[np.float64]  # (M,) of an engine step
    per_seq_s: NDArray[np.float64]  # (M,)
    slots: NDArray[np.int64]  # (M,)


def request_seconds(load: Load, most: int, horizon_s: float, tail_s: float) -> NDArray[np.float64]:
    """C(k) for k = 0 to `most`.

    Args:
        load: the models' loads.
        most: largest number of copies K.
        horizon_s: H.
        tail_s: T.

    Returns:
        (M, K + 1) request-seconds.
    """
    copies = np.arange(most + 1)[None, :]
    n, rate, work = (x[:, None] for x in (load.waiting, load.rate, load.work))
    base, per_seq, slots = (x[:, None] for x in (load.base_s, load.per_seq_s, load.slots))
    full_s = work * (base + per_seq * slots)
    capacity = copies * slots / full_s
    growth = rate - capacity
    end = np.maximum(n + growth * horizon_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        empty_s = np.where(growth < 0.0, n / -growth, np.inf)
        within = 0.5 * n * np.minimum(empty_s, horizon_s)
    waits = np.where(empty_s < horizon_s, within, n * horizon_s + 0.5 * growth * horizon_s**2)
    served = np.minimum(rate + n / horizon_s, capacity)
    each = served / np.maximum(copies, 1)
    room = 1.0 - work * per_seq * each
    service_s = np.minimum(work * base / np.maximum(room, 1e-9), full_s)
    cost: NDArray[np.float64] = waits + tail_s * end + served * horizon_s * service_s
    return cost


def copy_gains(load: Load, most: int, horizon_s: float, tail_s: float) -> NDArray[np.float64]:
    """(M, K) request-seconds that the first, second, … copy saves; rows do not increase."""
    cost = request_seconds(load, most, horizon_s, tail_s)
    gains: NDArray[np.float64] = np.minimum.accumulate(np.maximum(-np.diff(cost, axis=1), 0.0), 1)
    return gains
