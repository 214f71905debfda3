"""Places for requests in flight."""

from __future__ import annotations

import asyncio

from inframind_gym.live.client import Gate


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_most_urgent_goes_first_across_servers() -> None:
    async def scene() -> None:
        gate = Gate(2, per_server=2, total=3)
        for server in (0, 0, 1):
            await gate.enter(server, 9.0)
        order: list[str] = []

        async def come(name: str, server: int, rank: float) -> None:
            await gate.enter(server, rank)
            order.append(name)

        tasks = [
            asyncio.ensure_future(come(*who))
            for who in (("a", 1, 5.0), ("b", 1, 3.0), ("c", 0, 1.0), ("d", 1, 3.0))
        ]
        await settle()
        gate.leave(1)  # server 0 is full: c must wait though it is the most urgent
        await settle()
        assert order == ["b"]
        gate.leave(0)
        await settle()
        assert order == ["b", "c"]
        gate.leave(1)
        gate.leave(0)
        await settle()
        assert order == ["b", "c", "d", "a"]
        await asyncio.gather(*tasks)

    asyncio.run(scene())


def test_whoever_gives_up_takes_no_place() -> None:
    async def scene() -> None:
        gate = Gate(1, per_server=1, total=1)
        await gate.enter(0, 0.0)
        first = asyncio.ensure_future(gate.enter(0, 1.0))
        second = asyncio.ensure_future(gate.enter(0, 2.0))
        await settle()
        first.cancel()
        await settle()
        gate.leave(0)
        await settle()
        assert second.done()
        third = asyncio.ensure_future(gate.enter(0, 3.0))
        await settle()
        gate.leave(0)
        third.cancel()  # in the moment in which it is given the place
        await settle()
        assert third.cancelled()
        await asyncio.wait_for(gate.enter(0, 4.0), 1.0)

    asyncio.run(scene())
