"""A decision that is made on a thread while the cluster goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any


class Decision:
    """Made on a thread, taken on the caller's.

    Args:
        make: gives it; it is not looked at here.
        put: has something called on the caller's thread, soon (`Records.put`).
        take: called there with it. What `make` raises is raised there instead.

    Attributes:
        pending: it is waited for. Set to False, it is not taken any more.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        put: Callable[[Callable[[], None]], None],
        take: Callable[[Any], None],
    ) -> None:
        self.pending = True

        def run() -> None:
            try:
                action = make()
            except BaseException as error:
                put(partial(self._failed, error))
            else:
                put(partial(self._made, action, take))

        threading.Thread(target=run, name="placement-decision", daemon=True).start()

    def _made(self, action: Any, take: Callable[[Any], None]) -> None:
        if self.pending:
            self.pending = False
            take(action)

    def _failed(self, error: BaseException) -> None:
        if self.pending:
            self.pending = False
            raise error
