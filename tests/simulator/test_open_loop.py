"""The kernel stepped from outside is the kernel: bit for bit, however often it is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.simulator.server.open_loop import OpenLoop, replay_requests
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import cards


@pytest.mark.parametrize("looks", [0, 7])
@pytest.mark.parametrize("pool", ["b200-2gpu", "single-gpu"])
def test_it_serves_as_the_replay_does(pool: str, looks: int) -> None:
    card, rng, n = cards(load_pool(pool)), np.random.default_rng(0), 200
    submit_s = np.cumsum(rng.exponential(0.15, n))
    server, prompt = rng.integers(0, len(card), n), rng.integers(20, 3000, n)
    output, priority = rng.integers(1, 500, n), rng.integers(0, 1000, n).astype(float)
    expected = replay_requests(card, server, submit_s, prompt, output, priority)
    found, loop = np.zeros_like(expected), OpenLoop(card, n)
    flying: dict[int, int] = {}
    counted = np.zeros(n, np.int64)

    def advance(until_s: float) -> None:
        while len(ended := loop.advance(until_s)):
            for each in ended:
                i = flying.pop(int(each["request"]))
                found[i] = (
                    each["admitted_s"],
                    each["first_token_s"],
                    loop.now_s,
                    each["evictions"],
                )

    def look() -> None:
        event_s, token_s = loop.look()
        assert loop.now_s < token_s <= event_s or not flying
        for request, i in flying.items():
            tokens = loop.tokens[request]
            assert (tokens > 0) == (expected["first_token_s"][i] <= loop.now_s)
            assert counted[i] <= tokens < output[i]
            counted[i] = tokens

    for i in range(n):
        for between_s in np.linspace(loop.now_s, submit_s[i], looks + 2)[1:-1]:
            advance(between_s)
            look()
        advance(submit_s[i])
        arguments: list[Any] = [int(server[i]), float(priority[i]), int(prompt[i]), int(output[i])]
        flying[loop.submit(*arguments)] = i
    advance(1e6)
    np.testing.assert_array_equal(found, expected)
    assert flying == {} and loop.look() == (np.inf, np.inf)


def test_tokens_come_at_the_ends_of_steps() -> None:
    """One request alone: a step of the prompt, then one a token, each a little longer."""
    loop = OpenLoop(cards(load_pool("b200-2gpu")), 4)
    request = loop.submit(4, 0.0, 100, 20)
    times = []
    while True:
        _, token_s = loop.look()
        if loop.advance(token_s).size:
            break
        loop.look()
        times.append(loop.now_s)
        assert loop.tokens[request] == len(times)
    assert len(times) == 19
    steps_s = np.diff([*times, loop.now_s])
    step = load_pool("b200-2gpu").models[4].server.step
    np.testing.assert_allclose(np.diff(steps_s), step.per_kv_token_s, rtol=1e-6)


def test_what_is_aborted_leaves_at_once_or_with_the_step() -> None:
    loop = OpenLoop(cards(load_pool("b200-2gpu")), 40)
    requests = [loop.submit(4, 0.0, 100, 500) for _ in range(20)]
    loop.advance(1.0)
    loop.look()
    assert loop.load(4)[:2] == (16, 4)
    loop.abort(requests[0])
    loop.abort(requests[19])
    assert loop.load(4)[:2] == (16, 3)
    loop.advance(1.1)
    loop.look()
    assert loop.load(4)[:2] == (16, 2)  # one of those that waited has its place
    ended = 0
    while loop.look()[0] < np.inf:
        ended += len(loop.advance(loop.look()[0]))
    assert ended == 18 and loop.load(4) == (0, 0, 0.0)
