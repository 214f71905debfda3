"""An asyncio loop in a thread of its own, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """A running loop on a daemon thread: a process that never stops it still ends.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(cancel_all(asyncio.all_tasks(self.loop)))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, from another thread; raises what it raises."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have a function called on the loop soon; False where the loop has been stopped."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """Cancel all tasks, and join the thread. May be called twice."""
        self.call(self.loop.stop)
        self._thread.join()
