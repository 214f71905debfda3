"""The kernel from outside: servers that take requests, and time that somebody else lets run.

servers = OpenLoop(cards(pool), max_requests=1000)
request = servers.submit(0, priority=0.0, prompt_tokens=100, output_tokens=20)
ended = servers.advance(3.0)  # virtual s
next_s = servers.look()  # servers.tokens[request] are out

At one instant the ends of steps come first, then what is submitted, faults, time-outs and polls.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner, jit
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
from inframind_gym.simulator.server.faults import (
    ABORTED,
    NO_NEWS,
    abort,
    change_condition,
    empty_servers_down,
    forget_future,
    is_down,
    news_of,
    next_fault_s,
    next_timeout,
    read_metrics,
    reset_conditions,
    unwatch,
    watch,
)
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    NEVER_S,
    NO_REQUEST,
    OLDEST,
    Cluster,
    allocate,
)
from inframind_gym.simulator.server.telemetry import (
    E2E,
    KV,
    QUEUE,
    depth_req,
    kv_frac,
    kv_use,
    recent_e2e_s,
)

_LOOP: Final = np.dtype(
    [
        ("now_s", "f8"),
        ("next_token_s", "f8"),
        ("poll_s", "f8"),  # infinity: nobody polls
        ("timeout_s", "f8"),  # of requests; infinity: none
        ("polls", "i8"),
        ("planned", "i8"),  # planned requests that have been submitted
        ("gathers", "i8"),  # 1: go on when requests end, whose records stand at their places
        ("refused", "i8"),  # 1: a request was sent to a server that is down
    ]
)
PLANNED: Final = np.dtype(
    [
        ("submit_s", "f8"),
        ("priority", "f8"),
        ("server", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
    ],
    align=True,
)
ENDED: Final = np.dtype(
    [
        ("submit_s", "f8"),
        ("admitted_s", "f8"),  # NaN: never
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("request", "i4"),
        ("call", "i4"),  # the caller's number; of a planned request its place
        ("evictions", "i4"),
        ("failed", "i4"),  # 1: it timed out, or its server went down
    ]
)


class OpenLoop:
    """Simulated servers in virtual time, which passes only in `advance` and `serve`.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.state.cards(pool)`). Constants of
            their steps may be changed: they hold from the next stretch of steps on.
        max_requests: most requests that run and wait.
        poll_s: interval at which the metrics are polled; infinity: never.
        timeout_s: after which a request is aborted and has failed; infinity: never.
        faults: (F,) FAULT, changes of the servers' conditions, by time, the last at infinity;
            requests at a server that is down fail.
        late_polls: polls by which readings are late at most.

    Attributes:
        tokens: (R,) tokens that each request has emitted, as of the last `look`.
        metrics: (3, M) as they were polled last: QUEUE, E2E (NaN before there is any), KV.
        taken_s: (M,) when each server's were.
    """

    def __init__(
        self,
        card: NDArray[Any],
        max_requests: int,
        *,
        poll_s: float = NEVER_S,
        timeout_s: float = NEVER_S,
        faults: NDArray[Any] | None = None,
        late_polls: int = 0,
    ) -> None:
        changes = 0 if faults is None else len(faults)
        # What was aborted while it ran keeps its place until the step ends.
        places = max_requests + int(card["max_num_seqs"].sum())
        self._cluster = allocate(card, 1, places, changes, late_polls)
        if faults is not None:
            self._cluster.fault[0] = faults
        self._loop = np.zeros(1, _LOOP)
        self._loop["poll_s"], self._loop["timeout_s"] = poll_s, timeout_s
        self._ended = np.zeros(places, ENDED)
        self._planned = np.zeros(0, PLANNED)
        self.tokens = np.zeros(places, np.int64)
        self.metrics = np.zeros((3, len(card)))
        self.metrics[E2E] = np.nan
        self.taken_s = np.zeros(len(card))
        self._submit, self._abort = Bound(_submit), Bound(_abort)
        self._advance, self._look = Bound(_advance), Bound(_look)
        _reset(self._cluster)

    @property
    def now_s(self) -> float:
        """Virtual time, s."""
        return float(self._loop[0]["now_s"])

    @property
    def polls(self) -> int:
        """Number of polls of the metrics so far."""
        return int(self._loop[0]["polls"])

    @property
    def models_up(self) -> int:
        """Bit mask of the servers that no fault has taken down."""
        down = self._cluster.condition["down"].ravel()  # empty without faults
        return (1 << len(self.taken_s)) - 1 & ~sum(1 << m for m in np.flatnonzero(down).tolist())

    def submit(
        self, server: int, priority: float, prompt_tokens: int, output_tokens: int, call: int = 0
    ) -> int:
        """Put a request into a server's queue, now, and return its id; ids are used again."""
        order = (self._loop, server, priority, prompt_tokens, output_tokens, call)
        request = int(self._submit(self._cluster, *order))
        self.tokens[request] = 0
        return request

    def abort(self, request: int) -> None:
        """Take out a request that has not ended; one that runs goes with the step under way."""
        self._abort(self._cluster, self.now_s, request)

    def advance(self, until_s: float) -> NDArray[Any]:
        """Let time run until requests end or fail, or until `until_s`.

        Returns:
            ENDED records of those that ended at `now_s`, to be read before the next call; none:
            it is `until_s`, or nothing is under way, or a server is back before a finite `until_s`.
        """
        until_s = max(until_s, self.now_s)
        state = (self._cluster, self._loop, self._planned, self.metrics, self.taken_s)
        return self._ended[: self._advance(*state, until_s, self._ended)]

    def serve(self, planned: NDArray[Any]) -> NDArray[Any]:
        """Submit requests at their times, and let time run until all have ended or failed.

        Args:
            planned: (n,) PLANNED, by time; n is at most `max_requests`.

        Returns:
            (n,) ENDED records, to be read before the next call.
        """
        self._planned, self._loop["planned"], self._loop["gathers"] = planned, 0, 1
        self.advance(NEVER_S)
        self._planned, self._loop["gathers"] = planned[:0], 0
        return self._ended[: len(planned)]

    def look(self) -> tuple[float, float]:
        """Count `tokens`, of all that run.

        Returns:
            Times of the next event (a server ends a stretch of steps, or the first of them, which
            may emit first tokens) and of the next token of any request; infinity where all idle.
        """
        event_s = self._look(self._cluster, self._loop, self.tokens)
        return float(event_s), float(self._loop[0]["next_token_s"])

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
    reset_conditions(cluster, 0)


@inner
def _enter(
    cluster: Cluster,
    loop: Any,
    server: int,
    priority: float,
    prompt_tokens: int,
    output_tokens: int,
    call: int,
) -> int:
    """Submit a request, now; `loop` is the LOOP record."""
    identity = submit(cluster, 0, server, loop.now_s, priority, prompt_tokens, output_tokens)
    cluster.request[0, identity].query = call
    if loop.timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        watch(cluster, 0, identity, 1)
    if is_down(cluster, 0, server):
        loop.refused = 1
    return np.int64(identity)  # type: ignore[return-value]  # what compiled code returns


@jit
def _submit(
    cluster: Cluster,
    loop: NDArray[Any],
    server: int,
    priority: float,
    prompt_tokens: int,
    output_tokens: int,
    call: int,
) -> int:
    return _enter(cluster, loop[0], server, priority, prompt_tokens, output_tokens, call)


@jit
def _abort(cluster: Cluster, now_s: float, identity: int) -> None:
    unwatch(cluster, 0, identity)
    abort(cluster, 0, identity, now_s)


@inner
def _note_end(
    cluster: Cluster, time: Any, identity: int, failed: int, ended: NDArray[Any], count: int
) -> None:
    """Write what became of a request behind `count` others; nobody waits for it any more."""
    request = cluster.request[0, identity]
    record = ended[request.query if time.gathers else count]
    record.submit_s = request.submit_s
    record.admitted_s = request.admitted_s
    record.first_token_s = request.first_token_s
    record.finish_s = time.now_s
    record.request = identity
    record.call = request.query
    record.evictions = request.evictions
    record.failed = failed
    unwatch(cluster, 0, identity)


@inner
def _lose_requests(cluster: Cluster, time: Any, ended: NDArray[Any], count: int) -> int:
    """Write the requests at servers that are down behind `count` others; return the new count."""
    identity = int(cluster.counts[0, OLDEST])
    while identity != NO_REQUEST:
        following = int(cluster.timer[0, identity].newer)
        if is_down(cluster, 0, cluster.request[0, identity].server):
            forget_future(cluster, 0, identity, time.now_s)
            _note_end(cluster, time, identity, 1, ended, count)
            release_request(cluster, 0, identity)
            count += 1
        identity = following
    empty_servers_down(cluster, 0)
    return count


@inner
def _show(
    cluster: Cluster, m: int, polls: int, metrics: NDArray[Any], taken_s: NDArray[Any]
) -> None:
    """Write a server's reading into `metrics`, if one has arrived."""
    slot = news_of(cluster, 0, m, polls)
    if slot != NO_NEWS:
        taken_s[m] = cluster.condition[0, m].taken_s
        for value in range(metrics.shape[0]):
            metrics[value, m] = cluster.reading[0, slot, value, m]


@inner
def _poll(cluster: Cluster, time: Any, metrics: NDArray[Any], taken_s: NDArray[Any]) -> None:
    """Read the metrics, now; with faults they may arrive later."""
    time.polls += 1
    if cluster.fault.shape[1] > 0:
        read_metrics(cluster, 0, time.now_s, time.polls, True)
        for m in range(metrics.shape[1]):
            _show(cluster, m, time.polls, metrics, taken_s)
        return
    for m in range(metrics.shape[1]):
        taken_s[m] = time.now_s
        metrics[QUEUE, m] = depth_req(cluster, 0, m)
        e2e_s = recent_e2e_s(cluster, 0, m)
        if e2e_s == e2e_s:
            metrics[E2E, m] = e2e_s
        metrics[KV, m] = kv_frac(cluster, 0, m, time.now_s)


@jit
def _advance(
    cluster: Cluster,
    loop: NDArray[Any],
    planned: NDArray[Any],
    metrics: NDArray[np.float64],
    taken_s: NDArray[np.float64],
    until_s: float,
    ended: NDArray[Any],
) -> int:
    """Carry out `OpenLoop.advance`; returns how many requests ended."""
    time = loop[0]
    models, limit_s, gathers = metrics.shape[1], time.timeout_s, time.gathers
    count = 0
    while True:
        if time.refused:
            time.refused = 0
            count = _lose_requests(cluster, time, ended, count)
        if count > 0 and not gathers:
            return count
        end_s, m = next_end(cluster, 0)
        submit_s = NEVER_S
        if time.planned < planned.shape[0]:
            submit_s = planned[time.planned].submit_s
        timeout_s, late = NEVER_S, NO_REQUEST
        if limit_s < NEVER_S:
            timeout_s, late = next_timeout(cluster, 0, limit_s)
        fault_s = next_fault_s(cluster, 0)
        poll_s = time.poll_s * (time.polls + 1)
        next_s = min(min(min(end_s, fault_s), min(until_s, submit_s)), poll_s)
        if cluster.counts[0, DIRTY] and next_s > time.now_s:
            flush(cluster, 0, time.now_s)
            continue
        idle = min(min(end_s, timeout_s), min(until_s, submit_s)) == NEVER_S
        if idle and not cluster.counts[0, DIRTY]:
            return count
        next_s = min(next_s, timeout_s)
        time.now_s = next_s
        if end_s == next_s:
            for i in range(finish_stretch(cluster, 0, m, next_s)):
                identity = int(cluster.done[i])
                if cluster.request[0, identity].query != ABORTED:
                    _note_end(cluster, time, identity, 0, ended, count)
                    count += 1
                release_request(cluster, 0, identity)
        elif until_s == next_s:
            return count
        elif submit_s == next_s:
            request = planned[time.planned]
            _enter(
                cluster,
                time,
                request.server,
                request.priority,
                request.prompt_tokens,
                request.output_tokens,
                time.planned,
            )
            time.planned += 1
        elif fault_s == next_s:
            m = change_condition(cluster, 0, next_s, time.polls)
            if m >= models:
                _show(cluster, m - models, time.polls, metrics, taken_s)
                if until_s < NEVER_S:
                    return count
            elif is_down(cluster, 0, m):
                count = _lose_requests(cluster, time, ended, count)
        elif timeout_s == next_s:
            _note_end(cluster, time, late, 1, ended, count)
            abort(cluster, 0, late, next_s)
            count += 1
        else:
            _poll(cluster, time, metrics, taken_s)


@jit
def _look(cluster: Cluster, loop: NDArray[Any], tokens: NDArray[np.int64]) -> float:
    """Count the tokens of what runs; write the time of the next one, return that of an event."""
    time = loop[0]
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
