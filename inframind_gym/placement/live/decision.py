"""A decision that is made on a thread while the cluster goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray


class Decision:
    """Made on a thread, taken on the caller's.

    Args:
        make: gives it, (G,).
        put: has something called on the caller's thread, soon (`Records.put`).
        take: called there with it. What `make` raises is raised there instead.

    Attributes:
        pending: it is waited for. Set to False, it is not taken any more.
    """

    def __init__(
        self,
        make: Callable[[], NDArray[np.int64]],
        put: Callable[[Callable[[], None]], None],
        take: Callable[[NDArray[np.int64]], None],
    ) -> None:
        self.pending = True

        def run() -> None:
            try:
                action = np.asarray(make(), np.int64)
            except BaseException as error:
                put(partial(self._failed, error))
            else:
                put(partial(self._made, action, take))

        threading.Thread(target=run, name="placement-decision", daemon=True).start()

    def _made(self, action: NDArray[np.int64], take: Callable[[NDArray[np.int64]], None]) -> None:
        if self.pending:
            self.pending = False
            take(action)

    def _failed(self, error: BaseException) -> None:
        if self.pending:
            self.pending = False
            raise error
