"""The kernel stepped from outside, at instants that somebody else chooses: a clock, a client.

servers = OpenLoop(cards(pool), max_requests=1000)
request = servers.submit(0, priority=0.0, prompt_tokens=100, output_tokens=20)
ended = servers.advance(3.0)  # virtual s
next_s = servers.look()  # servers.tokens[request] are out
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.native import Bound
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    flush,
    next_end,
    release_request,
    reset_cluster,
    steps_begun,
    stretch_s,
    submit,
)
from inframind_gym.simulator.server.state import DIRTY, FAR_CLOCK, NEVER_S, Cluster, allocate
from inframind_gym.simulator.server.telemetry import kv_use
from inframind_gym.simulator.server.timeouts import ABORTED, abort

_CLOCK: Final = np.dtype([("now_s", "f8"), ("next_token_s", "f8")])
ENDED: Final = np.dtype(
    [
        ("submit_s", "f8"),
        ("admitted_s", "f8"),
        ("first_token_s", "f8"),
        ("request", "i8"),
        ("evictions", "i8"),
    ]
)


class OpenLoop:
    """Simulated servers in virtual time, which passes only in `advance`.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.cards(pool)`). Constants of their
            steps may be changed: they hold from the next stretch of steps on.
        max_requests: most requests that run and wait.

    Attributes:
        tokens: (R,) tokens that each request has emitted, as of the last `look`.
    """

    def __init__(self, card: NDArray[Any], max_requests: int) -> None:
        # What was aborted while it ran keeps its place until the step ends.
        self._cluster = allocate(card, 1, max_requests + int(card["max_num_seqs"].sum()))
        self._clock = np.zeros(1, _CLOCK)
        self._ended = np.zeros(int(card["max_num_seqs"].max()), ENDED)
        self.tokens = np.zeros(self._cluster.request.shape[1], np.int64)
        self._submit, self._abort = Bound(_submit), Bound(_abort)
        self._advance, self._look = Bound(_advance), Bound(_look)
        _reset(self._cluster)

    @property
    def now_s(self) -> float:
        """Virtual time, s."""
        return float(self._clock[0]["now_s"])

    def submit(self, server: int, priority: float, prompt_tokens: int, output_tokens: int) -> int:
        """Put a request into a server's queue, now, and return its id; ids are used again."""
        request = int(
            self._submit(self._cluster, self.now_s, server, priority, prompt_tokens, output_tokens)
        )
        self.tokens[request] = 0
        return request

    def abort(self, request: int) -> None:
        """Take out a request that has not ended; one that runs goes with the step under way."""
        self._abort(self._cluster, self.now_s, request)

    def advance(self, until_s: float) -> NDArray[Any]:
        """Let time run until requests end, or until a finite `until_s`.

        Returns:
            ENDED records of those that ended at `now_s`, to be read before the next call; none:
            it is `until_s`.
        """
        until_s = max(until_s, self.now_s)
        return self._ended[: self._advance(self._cluster, self._clock, until_s, self._ended)]

    def look(self) -> tuple[float, float]:
        """Count `tokens`, of all that run.

        Returns:
            Times of the next event (a server ends a stretch of steps, or the first of them, which
            may emit first tokens) and of the next token of any request; infinity where all idle.
        """
        event_s = self._look(self._cluster, self._clock, self.tokens)
        return float(event_s), float(self._clock[0]["next_token_s"])

    def evictions(self, requests: list[int]) -> int:
        """Return how often requests that have not ended were evicted, all together."""
        return int(self._cluster.request["evictions"][0, requests].sum())

    def began_s(self, request: int) -> tuple[float, float]:
        """Return when a request that has a token was admitted, and when its first token came."""
        state = self._cluster.request[0, request]
        return float(state["admitted_s"]), float(state["first_token_s"])

    def load(self, server: int) -> tuple[int, int, float]:
        """Return requests that run and that wait on a server, and the share of its KV cache."""
        state = self._cluster.server[0, server]
        share = kv_use(self._cluster, 0, server, self.now_s)
        return int(state["running"]), int(state["waiting"]), float(share)

    def use_all(self) -> None:
        """Serve a request and abort one: all that is compiled is compiled then."""
        for _ in range(2):
            request = self.submit(0, 0.0, 1, 2)
        self.look()
        self.abort(request)
        self.load(0)
        self.advance(1e9)


@jit
def _reset(cluster: Cluster) -> None:
    reset_cluster(cluster, 0)


@jit
def _submit(
    cluster: Cluster,
    now_s: float,
    server: int,
    priority: float,
    prompt_tokens: int,
    output_tokens: int,
) -> int:
    identity = submit(cluster, 0, server, now_s, priority, prompt_tokens, output_tokens)
    cluster.request[0, identity].query = 0
    return np.int64(identity)  # type: ignore[return-value]  # what compiled code returns


@jit
def _abort(cluster: Cluster, now_s: float, identity: int) -> None:
    abort(cluster, 0, identity, now_s)


@jit
def _advance(cluster: Cluster, clock: NDArray[Any], until_s: float, ended: NDArray[Any]) -> int:
    """Let time run until requests end, and write them into `ended`; 0 when `until_s` is reached."""
    time = clock[0]
    while True:
        end_s, m = next_end(cluster, 0)
        next_s = min(end_s, until_s)
        if cluster.counts[0, DIRTY] and next_s > time.now_s:
            flush(cluster, 0, time.now_s)
            continue
        time.now_s = next_s
        if end_s > next_s:
            return 0
        count = 0
        for i in range(finish_stretch(cluster, 0, m, next_s)):
            identity = int(cluster.done[i])
            request = cluster.request[0, identity]
            if request.query != ABORTED:
                record = ended[count]
                record.submit_s = request.submit_s
                record.admitted_s = request.admitted_s
                record.first_token_s = request.first_token_s
                record.request = identity
                record.evictions = request.evictions
                count += 1
            release_request(cluster, 0, identity)
        if count > 0:
            return count


@jit
def _look(cluster: Cluster, clock: NDArray[Any], tokens: NDArray[np.int64]) -> float:
    """Count the tokens of what runs; write the time of the next one, return that of an event."""
    time = clock[0]
    if cluster.counts[0, DIRTY]:
        flush(cluster, 0, time.now_s)
    time.next_token_s = NEVER_S
    event_s = NEVER_S
    for m in range(cluster.card.shape[0]):
        server = cluster.server[0, m]
        if server.running == 0 or server.steps == 0:
            continue
        steps = steps_begun(server, time.now_s)
        if server.start_s + stretch_s(server, steps) > time.now_s:
            steps -= 1
        if server.lead and steps == 0:
            event_s = min(event_s, server.start_s + server.lead_s)
        event_s = min(event_s, cluster.end_s[0, m])
        if steps < server.steps:
            boundary_s = server.start_s + stretch_s(server, steps + 1)
            time.next_token_s = min(time.next_token_s, boundary_s)
        reached = server.clock + steps
        for i in range(server.running):
            finish = int(cluster.finish_clock[0, m, i])
            if finish != FAR_CLOCK:
                identity = cluster.running[0, m, i]
                out = int(cluster.request[0, identity].output_tokens) - max(finish - reached, 0)
                tokens[identity] = max(tokens[identity], out)
    return float(event_s)
