"""Blocks of GPUs: an instance of a model stands on `tp` neighbours, from a multiple of `tp` on."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner

Whole = TypeVar("Whole", int, NDArray[np.int64])


def first_gpu(g: Whole, tp: Whole) -> Whole:
    """The first GPU of the block that GPU `g` is in; the last block may be incomplete.

    Args:
        g: a GPU, or an array of them.
        tp: GPUs of an instance, one number or an array that goes with `g`.
    """
    return g // tp * tp


first_gpu_inner: Final = inner(first_gpu)  # the same for compiled code
