"""Requests to real vLLM: in the order of their priorities, in hundreds, and given up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from inframind_gym.live.client import ChatRequest, ChatResult
from inframind_gym.simulator.workflow.backend import Completion
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_server.fake import until
from tests.live.vllm_server.live_play import Prompts, call
from tests.live.vllm_server.test_many import at_work, interrupt, resident_mb, sockets

pytestmark = pytest.mark.live
SLOW = 0  # the server whose tokens take longest
QUESTION = [{"role": "user", "content": "What is the answer?"}]


@pytest.mark.parametrize("send", [True, False])
def test_the_waiting_queue_is_in_the_order_of_priorities(rig: LiveRig, send: bool) -> None:
    """All slots are taken, 40 requests wait, the slots are freed: who comes first?

    Without priorities the same requests are served in the order in which they came.
    """
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
            return await pool.client.chat(
                ChatRequest(SLOW, QUESTION, max_tokens, 120.0, priority=priority if send else None)
            )

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
    # A slot's worth at a time, and the times come back a little blurred; without priorities those
    # that are sent together may overtake one another.
    wanted = np.array(order) if send else np.arange(len(order))
    assert np.corrcoef(places, wanted)[0, 1] > 0.95
    assert np.abs(places - wanted).max() < (2 * slots if send else 2 * slots + 8)
    other = np.arange(len(order)) if send else np.array(order)
    assert abs(np.corrcoef(places, other)[0, 1]) < 0.6  # it is the one, and not the other


def test_five_hundred_requests_in_flight(rig: LiveRig) -> None:
    settings = {"max_in_flight": 600}
    with rig.pool(sampling={"ignore_eos": True}, **settings) as pool:
        backend = pool.open(Prompts())
        before, before_mb, most, waiting = sockets(), resident_mb(), 0, 0
        finished = [rig.finished(m) for m in range(3)]
        for number in range(500):
            backend.submit(call(number, query=number, model=number % 3, max_tokens=8))
        done: list[Completion] = []
        while len(done) < 500:
            done += backend.wait(backend.now_s() + 0.05)
            most = max(most, sockets() - before)
            if len(done) < 250:
                waiting = max(waiting, sum(sum(rig.load(m)) for m in range(3)))
        assert not any(completion.failed for completion in done)
        assert [completion.output_tokens for completion in done] == [8] * 500
        assert 250 <= most <= 520  # some for the metrics
        slots = sum(model.server.max_num_seqs for model in rig.config.models)
        assert waiting > slots  # in the servers' own queues
        assert resident_mb() - before_mb < 60.0
        assert [rig.finished(m) - finished[m] for m in range(3)] == [167, 167, 166]
        print(f"{most} sockets at most, {waiting} requests in the servers at once")
        pool.close()
        until(lambda: sockets() <= before)


def test_ctrl_c_leaves_no_request_and_loses_no_record(rig: LiveRig, tmp_path: Path) -> None:
    with at_work(rig.path, tmp_path / "log.jsonl") as process:
        until(lambda: sum(rig.load(0)) > 10)  # long answers are under way, and wait
        ended = Counter(interrupt(process, tmp_path / "log.jsonl"))
    assert sum(ended.values()) == 60 and ended["cancelled"] >= 20
    assert set(ended) <= {"ok", "truncated", "cancelled"}
    until(lambda: rig.load(0) == (0, 0))  # the server was told: it works for nobody
