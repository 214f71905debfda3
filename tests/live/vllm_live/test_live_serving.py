"""Requests to real vLLM, in the order of their priorities."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from inframind_gym.live.chat import ChatResult
from tests.live.vllm_live.rig import LiveRig

pytestmark = pytest.mark.live
SLOW = 0  # the server whose tokens take longest
QUESTION = [{"role": "user", "content": "What is the answer?"}]


def test_the_waiting_queue_is_in_the_order_of_priorities(rig: LiveRig) -> None:
    """All slots are taken, 40 requests wait, the slots are freed: who comes first?"""
    slots = rig.config.models[SLOW].server.max_num_seqs
    order = list(range(40))
    random.Random(5).shuffle(order)  # order[i]: priority of the i-th that comes

    with rig.pool(sampling={"ignore_eos": True}) as pool:

        async def experiment() -> list[ChatResult]:
            blockers = [asyncio.ensure_future(ask(4000, 0)) for _ in range(slots)]
            await until_load((slots, 0))
            waiting = []
            for position, priority in enumerate(order):
                waiting.append(asyncio.ensure_future(ask(24, 1000 + priority)))
                if position % 8 == 7 or position == len(order) - 1:
                    await until_load((slots, position + 1))
            assert not any(blocker.done() for blocker in blockers), "slots were freed too early"
            for blocker in blockers:
                blocker.cancel()
            return [await each for each in waiting]

        async def ask(max_tokens: int, priority: int) -> ChatResult:
            return await pool.chat(SLOW, QUESTION, max_tokens, 120.0, priority=priority)

        async def until_load(wanted: tuple[int, int]) -> None:
            for _ in range(600):
                if await asyncio.to_thread(rig.load, SLOW) == wanted:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(f"never {wanted} running and waiting")

        results = pool.loop.run(asyncio.wait_for(experiment(), 180.0))
    assert all(result.answered for result in results)
    scheduled_s = np.array([result.scheduled_s for result in results])
    places = np.empty(len(order), int)
    places[np.argsort(scheduled_s)] = np.arange(len(order))
    # A slot's worth at a time, and the times come back a little blurred.
    assert np.corrcoef(places, order)[0, 1] > 0.95
    assert np.abs(places - np.array(order)).max() < 2 * slots
