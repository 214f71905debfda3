"""The connections to one server: who watches it, and who sends to it.

Made when the server is up, closed before it is stopped. In between it may sleep: it is held then,
and nothing is sent to it whatever it says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from inframind_gym.live.placement.config import LiveLimits
from inframind_gym.live.vllm.client import ChatRequest, ChatResult, Client
from inframind_gym.live.vllm.loop import LoopThread
from inframind_gym.live.vllm.settings import LiveSettings, ServerAddress
from inframind_gym.live.vllm.watcher import MetricsWatcher

# Told, on the loop, that a server is seen to be up or down: whether it is up, asleep, and why.
OnChange = Callable[[bool, bool, str], None]


class Link:
    """Watcher and client of one server.

    Args:
        loop: on which both live.
        address: of the server.
        limits: how often it is looked at.
        settings: of the client; its retries are not used, calls are sent again by the cluster.
        poll_s: interval at which metrics are read.
        on_change: told of what is seen.
        api_key: sent as a bearer token.
    """

    def __init__(
        self,
        loop: LoopThread,
        address: ServerAddress,
        limits: LiveLimits,
        settings: LiveSettings,
        *,
        poll_s: float,
        on_change: OnChange,
        api_key: str | None,
    ) -> None:
        self.address = address
        self._loop = loop
        self._on_change = on_change
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = Client(
            (address,),
            settings.model_copy(update={"retries": 0}),
            is_up=lambda _: self.is_up,
            suspect=lambda _: self._watcher.suspect(0),
            api_key=api_key,
        )
        loop.run(self._client.open())
        self._watcher = MetricsWatcher(
            (address,),
            poll_s=poll_s,
            health_s=limits.health_s,
            answer_s=limits.answer_s,
            misses=limits.misses,
            on_change=self._changed,
            api_key=api_key,
            loop=loop,
        )

    @property
    def is_up(self) -> bool:
        """Whether it can be sent to."""
        return self._watcher.is_up(0)

    @property
    def is_asleep(self) -> bool:
        """Whether it was asleep when it was looked at last."""
        return self._watcher.status()[0].asleep

    def wait_up(self, limit_s: float) -> None:
        """Wait until it can be sent to.

        Raises:
            InfraMindError: it can't, in time.
        """
        self._watcher.wait_up(limit_s)

    def hold(self, why: str) -> None:
        """Send nothing more. What is in flight goes on."""
        self._watcher.hold(0, why)

    def release(self) -> None:
        """Send again, once it was seen to be up; that is looked at now."""
        self._watcher.release(0)

    def look(self) -> None:
        """Look at it soon."""
        self._watcher.suspect(0)

    def send(self, request: ChatRequest, on_result: Callable[[ChatResult], None]) -> None:
        """Send a call; `on_result` is called on the loop, or never, once the link is closed."""
        self._loop.call(self._start, request, on_result)

    def give_up(self, why: str) -> None:
        """End what is in flight: vLLM gives up a call whose client is gone."""
        self._loop.call(lambda: self._client.server_down(0, why, give_up=True))

    def close(self) -> None:
        """Stop watching, end what is in flight. May be called twice, from any thread."""
        if self._closed:
            return
        self._closed = True
        self._watcher.close()
        with contextlib.suppress(RuntimeError):
            self._loop.run(self._close())

    # On the loop

    def _start(self, request: ChatRequest, on_result: Callable[[ChatResult], None]) -> None:
        async def chat() -> None:
            on_result(await self._client.chat(request))

        task = asyncio.ensure_future(chat())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def _changed(self, server: int, up: bool, asleep: bool, why: str) -> None:
        self._on_change(up, asleep, why)
