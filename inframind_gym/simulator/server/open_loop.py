"""`OpenLoop`: simulated servers that take requests from a caller, which also lets time run.

    servers = OpenLoop(cards(pool), max_requests=1000)
    request = servers.submit(0, priority=0.0, prompt_tokens=100, output_tokens=20)
    ended = servers.advance(3.0)  # virtual s
    event_s, token_s = servers.look()  # servers.tokens[request] are out

`replay_requests` serves requests whose times are known. Calibration fits it to request logs, tests
compare it with the step-by-step reference, and `python -m benchmarks speed` times it. At one
instant the ends of steps come first, then submissions, faults, time-outs and polls.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.jit import Bound, inner, jit, record
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
    CHANGES,
    OUTSIDE,
    POLL,
    STRETCH_ENDS,
    TIMES_OUT,
    abort,
    change_condition,
    empty_servers_down,
    forget_future,
    is_down,
    next_event,
    unwatch,
    watch,
)
from inframind_gym.simulator.server.state import (
    DIRTY,
    E2E,
    FAR_CLOCK,
    NEVER_S,
    NO_REQUEST,
    OLDEST,
    Cluster,
    allocate,
)
from inframind_gym.simulator.server.telemetry import NO_NEWS, kv_use, news_of, read_metrics

_LOOP: Final = record(
    "f8: now_s next_token_s",
    "f8: poll_s",  # between two polls; infinity: none
    "f8: timeout_s",  # of requests; infinity: none
    "i8: polls",
    "i8: planned",  # planned requests that have been submitted
    "i8: gathers",  # 1: go on when requests end; records are written in the order planned
    "i8: refused",  # 1: a request was sent to a server that is down
)
PLANNED: Final = record(
    "f8: submit_s priority",
    "i4: server prompt_tokens output_tokens",
)
ENDED: Final = record(
    "f8: submit_s",
    "f8: admitted_s",  # NaN: never
    "f8: first_token_s finish_s",
    "i4: request",
    "i4: call",  # the caller's number; of a planned request its index
    "i4: evictions",
    "i4: failed",  # 1: it timed out, or its server went down
)


class OpenLoop:
    """Simulated servers in virtual time, which passes only in `advance` and `serve`.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.state.cards(pool)`). The constants
            of their steps may be changed; changes hold from the next stretch of steps on.
        max_requests: largest number of requests that run or wait at a time.
        poll_s: interval at which the metrics are polled; infinity: never.
        timeout_s: seconds after which a request is aborted and has failed; infinity: never.
        faults: (F,) FAULT, changes of the servers' conditions, by time, the last at infinity;
            requests at a server that is down fail.
        late_polls: polls by which readings are late at most.

    Attributes:
        tokens: (R,) tokens that each request has emitted, as of the last `look`.
        metrics: (3, M) as they were polled last: QUEUE, E2E (NaN before there is any), KV.
        taken_s: (M,) time of each server's metrics.
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
        # A request that is aborted while it runs keeps its place until the step ends.
        places = max_requests + int(card["max_num_seqs"].sum())
        self._cluster = allocate(card, 1, places, changes, late_polls)
        if faults is not None:
            self._cluster.fault[0] = faults
        self._loop = np.zeros(1, _LOOP)
        self._loop["poll_s"], self._loop["timeout_s"] = poll_s, timeout_s
        self._ended = np.zeros(places, ENDED)
        self._planned, self._order = np.zeros(0, PLANNED), np.zeros(1, PLANNED)
        self.tokens = np.zeros(places, np.int64)
        self.metrics = np.zeros((3, len(card)))
        self.metrics[E2E] = np.nan
        self.taken_s = np.zeros(len(card))
        self._submit, self._abort = Bound(_submit), Bound(_abort)
        self._advance, self._look = Bound(_advance), Bound(_look)
        _reset(self._cluster, 0)

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
        self._order[0] = self.now_s, priority, server, prompt_tokens, output_tokens
        request = int(self._submit(self._cluster, self._loop, self._order, call))
        self.tokens[request] = 0
        return request

    def abort(self, request: int) -> None:
        """Abort a request that has not ended; a running one leaves at the end of the step."""
        self._abort(self._cluster, self.now_s, request)

    def advance(self, until_s: float) -> NDArray[Any]:
        """Let time run until requests end or fail, or until `until_s`.

        Returns:
            ENDED records of those that ended at `now_s`, to be read before the next call. None at
            `until_s`, when all are idle, or when a server is back before a finite `until_s`.
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
        """Update `tokens` of all running requests.

        Returns:
            Times of the next event (a server ends a stretch of steps, or the first of them, which
            may emit first tokens) and of the next token of any request; infinity if all are idle.
        """
        event_s = self._look(self._cluster, self._loop, self.tokens)
        return float(event_s), float(self._loop[0]["next_token_s"])

    def evictions(self, requests: list[int]) -> int:
        """Return how often the `requests`, which have not ended, were evicted in total."""
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
        """Serve a request and abort one, so that every entry point is compiled."""
        for _ in range(2):
            request = self.submit(0, 0.0, 1, 2)
        self.look()
        self.abort(request)
        self.load(0)
        self.advance(1e9)


SERVED: Final = np.dtype(
    [("admitted_s", "f8"), ("first_token_s", "f8"), ("finish_s", "f8"), ("evictions", "i8")]
)


def replay_requests(
    card: NDArray[Any],
    server: ArrayLike,
    submit_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    priority: ArrayLike | None = None,
    timeout_s: float = NEVER_S,
    faults: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Serve requests that arrive at given times, and return the result of each.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.state.cards(pool)`).
        server: (n,) index of the server that each request is sent to.
        submit_s: (n,) times of submission, s, ascending.
        prompt_tokens: (n,) tokens to prefill, at least 1.
        output_tokens: (n,) tokens to emit, at least 1.
        priority: (n,) lower first; without it, first come first served.
        timeout_s: seconds after which a client aborts its request.
        faults: as of `OpenLoop`; requests at a server that is down are lost.

    Returns:
        (n,) SERVED records: start of the step of first admission, end of the step that emitted the
        first token, end of the last step, s; and how often it was evicted. NaN and 0 for requests
        that were aborted or lost.

    Raises:
        InfraMindError: a request can never fit the KV cache of its server.
    """
    times = np.asarray(submit_s, np.float64)
    if not len(times):
        return np.zeros(0, SERVED)
    planned = np.zeros(len(times), PLANNED)
    planned["submit_s"], planned["priority"] = times, 0.0 if priority is None else priority
    planned["server"], planned["prompt_tokens"] = server, prompt_tokens
    planned["output_tokens"] = output_tokens
    cards = card[planned["server"]]
    needed = -(-(planned["prompt_tokens"] + planned["output_tokens"]) // cards["block_size"])
    if (too_long := needed > cards["usable_blocks"]).any():
        i = int(np.argmax(too_long))
        raise InfraMindError(
            f"request {i} needs {needed[i]} KV blocks and its server has "
            f"{cards['usable_blocks'][i]}; raise num_kv_blocks or drop the request"
        )
    ended = OpenLoop(card, len(times), timeout_s=timeout_s, faults=faults).serve(planned)
    out = np.empty(len(times), SERVED)
    for field in ("admitted_s", "first_token_s", "finish_s", "evictions"):
        out[field] = ended[field]
    out[ended["failed"] == 1] = (np.nan, np.nan, np.nan, 0)
    return out


# Compiled, for environment 0 of `cluster`; `loop` is (1,) _LOOP, `time` its record.

_reset: Final = jit(reset_cluster)


@inner
def _enter(cluster: Cluster, time: Any, order: Any, call: int) -> int:
    """Submit a request, a PLANNED record, now."""
    prompt, output, m = order.prompt_tokens, order.output_tokens, int(order.server)
    identity = submit(cluster, 0, m, time.now_s, order.priority, prompt, output)
    cluster.request[0, identity].query = call
    if time.timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        watch(cluster, 0, identity, 1)
    if is_down(cluster, 0, m):
        time.refused = 1
    return np.int64(identity)  # type: ignore[return-value]  # what compiled code returns


@jit
def _submit(cluster: Cluster, loop: NDArray[Any], order: NDArray[Any], call: int) -> int:
    return _enter(cluster, loop[0], order[0], call)


@jit
def _abort(cluster: Cluster, now_s: float, identity: int) -> None:
    unwatch(cluster, 0, identity)
    abort(cluster, 0, identity, now_s)


@inner
def _note_end(
    cluster: Cluster, time: Any, identity: int, failed: int, ended: NDArray[Any], count: int
) -> None:
    """Write the result of a request behind `count` others, and stop waiting for it."""
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
    """Fail the requests at servers that are down; return the new `count` of results."""
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
        submit_s = NEVER_S
        if time.planned < planned.shape[0]:
            submit_s = planned[time.planned].submit_s
        outside_s = min(until_s, submit_s)
        poll_s = time.poll_s * (time.polls + 1)
        kind, next_s, which = next_event(cluster, 0, time.now_s, outside_s, poll_s, limit_s)
        if outside_s == NEVER_S and (next_s == NEVER_S or kind in (CHANGES, POLL)):
            idle = next_end(cluster, 0)[0] == NEVER_S and not cluster.counts[0, DIRTY]
            if idle and (limit_s == NEVER_S or cluster.counts[0, OLDEST] == NO_REQUEST):
                return count
        time.now_s = next_s
        if kind == STRETCH_ENDS:
            for i in range(finish_stretch(cluster, 0, which, next_s)):
                identity = int(cluster.done[i])
                if cluster.request[0, identity].query != ABORTED:
                    _note_end(cluster, time, identity, 0, ended, count)
                    count += 1
                release_request(cluster, 0, identity)
        elif kind == OUTSIDE:
            if until_s == next_s:
                return count
            _enter(cluster, time, planned[time.planned], time.planned)
            time.planned += 1
        elif kind == CHANGES:
            m = change_condition(cluster, 0, next_s, time.polls)
            if m >= models:
                _show(cluster, m - models, time.polls, metrics, taken_s)
                if until_s < NEVER_S:
                    return count
            elif is_down(cluster, 0, m):
                count = _lose_requests(cluster, time, ended, count)
        elif kind == TIMES_OUT:
            _note_end(cluster, time, which, 1, ended, count)
            abort(cluster, 0, which, next_s)
            count += 1
        else:
            time.polls += 1
            read_metrics(cluster, 0, next_s, time.polls, True)
            for m in range(models):
                _show(cluster, m, time.polls, metrics, taken_s)


@jit
def _look(cluster: Cluster, loop: NDArray[Any], tokens: NDArray[np.int64]) -> float:
    """Carry out `OpenLoop.look`; return the time of the next event."""
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
