"""A warning when simulated servers leave the load that their cards were fitted to.

A fitted card says which numbers of sequences and of new tokens its request log had
(`ServerCard.evidence`). Beyond them its times are an extrapolation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.server.pool import PoolConfig

_QUANTITIES: Final = {"sequences": "sequences at once", "new_tokens": "new tokens a step"}
_SLACK: Final = 1.1  # the range of a fit leaves the extreme hundredths of its time out


class EvidenceWarning(UserWarning):
    """A simulation left the load that a server card was fitted to.

    Args:
        text: Card, quantity, range of the fit, value that was reached, and remedy.
        subject: Pool, card and quantity.
    """

    def __init__(self, text: str, subject: tuple[str, str, str]) -> None:
        super().__init__(text, subject)
        self.subject = subject

    def __str__(self) -> str:
        return str(self.args[0])


_given: set[tuple[str, str, str]] = set()  # in this process
_handlers: list[Callable[[EvidenceWarning], None]] = []


def hand_on(handler: Callable[[EvidenceWarning], None]) -> None:
    """Hand the warnings of this process, a worker, to a function that sends them to its parent."""
    _handlers[:] = [handler]


def give(warning: EvidenceWarning) -> None:
    """Give a warning, unless this process has given one on the same card and quantity."""
    if warning.subject not in _given:
        _given.add(warning.subject)
        if _handlers:
            _handlers[0](warning)
        else:
            warnings.warn(warning, stacklevel=2)


def has_evidence(pool: PoolConfig) -> bool:
    """Return True if a card of a pool says what it was fitted to."""
    return any(model.server.evidence is not None for model in pool.models)


def warn_outside(pool: PoolConfig, reached: NDArray[Any], *, over: bool) -> None:
    """Warn of cards whose servers left the range of the fit.

    Args:
        pool: The servers; cards without evidence are passed over.
        reached: (E, M, 2) most sequences at once and most new tokens a step so far (`Cluster`).
        over: A stream is over: servers that have never come up to the range are named, too.
    """
    most = np.max(reached, axis=0)
    for model, numbers in zip(pool.models, most.tolist(), strict=True):
        evidence = model.server.evidence
        for (field, what), value in zip(_QUANTITIES.items(), numbers, strict=True):
            low, high = getattr(evidence, field, (0, np.inf))
            if value > _SLACK * high or (over and 0 < _SLACK * value < low):
                text = (
                    f"pool {pool.name}: the server card of {model.alias} was fitted to {low} to "
                    f"{high} {what}, and this simulation reached {value}. There its times are "
                    "extrapolated: `inframind calibrate` fits a card to a request log of such a "
                    "load"
                )
                give(EvidenceWarning(text, (pool.name, model.alias, field)))
