"""The surrogate as a `Backend`: the compiled kernel, one call at a time.

The environments don't use it: their loop is compiled as a whole (`workflow/event_loop.py`). It
shows that the loop of live servers does exactly the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.native import Bound
from inframind_gym.simulator.quality import (
    ResponseTables,
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    query_length_z,
    was_cut,
)
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    flush,
    next_end,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.faults import (
    NO_NEWS,
    change_condition,
    empty_servers_down,
    forget_future,
    is_down,
    news_of,
    next_fault_s,
    read_metrics,
    reset_conditions,
)
from inframind_gym.simulator.server.state import (
    DIRTY,
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
    recent_e2e_s,
)
from inframind_gym.simulator.server.timeouts import ABORTED, abort, next_timeout, unwatch, watch
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.topology import FINAL

_CLOCK: Final = np.dtype(
    [
        ("now_s", "f8"),
        ("poll_s", "f8"),
        ("call_timeout_s", "f8"),  # infinity: none
        ("polls", "i8"),
        ("refused", "i8"),  # 1: a call was sent to a server that is down
    ]
)
_ENDED: Final = np.dtype(
    [
        ("submit_s", "f8"),
        ("admitted_s", "f8"),
        ("first_token_s", "f8"),
        ("call", "i8"),
        ("evictions", "i8"),
        ("failed", "i8"),  # 1: it timed out, or its server went down
    ]
)


# Tokens of a call's prompt and of its answer.
Lengths = Callable[[Call], tuple[int, int]]


class SurrogateBackend:
    """Simulated servers in virtual time, which passes only in `wait`.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.cards(pool)`).
        tables: the response model.
        role_fit: (T, R) how well a role suits a task.
        key: of the stream's random numbers, 0..2**64 - 1.
        max_calls: most calls in flight.
        poll_s: interval at which the metrics are polled.
        call_timeout_s: after which a call has failed; None: never.
        faults: (F,) FAULT, changes of the servers' conditions; empty: none.
        late_polls: polls by which their readings are late at most.
        lengths: of prompts and answers, where they are known; None: as planned and drawn.
    """

    def __init__(
        self,
        card: NDArray[Any],
        tables: ResponseTables,
        role_fit: NDArray[np.float32],
        key: int,
        *,
        max_calls: int,
        poll_s: float = 5.0,
        call_timeout_s: float | None = None,
        faults: NDArray[Any] | None = None,
        late_polls: int = 0,
        lengths: Lengths | None = None,
    ) -> None:
        self._lengths = lengths
        # What was aborted while it ran keeps its place until the step ends.
        slots, changes = card["max_num_seqs"], 0 if faults is None else len(faults)
        self._cluster = allocate(card, 1, max_calls + int(slots.sum()), changes, late_polls)
        if faults is not None:
            self._cluster.fault[0] = faults
        self._tables = tables
        self._role_fit = role_fit
        self._key: Any = np.uint64(key)
        self._clock = np.zeros(1, _CLOCK)
        self._clock["poll_s"] = poll_s
        self._clock["call_timeout_s"] = NEVER_S if call_timeout_s is None else call_timeout_s
        self._metrics = np.zeros((3, len(card)))
        self._metrics[E2E] = np.nan
        self._taken_s = np.zeros(len(card))
        self._ended = np.zeros(max_calls if changes else int(slots.max()), _ENDED)
        self._outcome: dict[int, tuple[Call, int, bool, bool]] = {}
        self._right: dict[int, int] = {}  # per query in flight, mask of the nodes that are right
        self._answer = np.zeros(3, np.int64)  # tokens, whether it will be cut, whether right
        self._send, self._run = Bound(_send), Bound(_run)
        _reset(self._cluster)

    def now_s(self) -> float:
        """Virtual time, s."""
        return float(self._clock[0]["now_s"])

    def submit(self, call: Call) -> None:
        """Put the call into its server's queue; what it will answer is drawn at once."""
        known = self._right.get(call.query, 0)
        prompt, answer = (call.prompt_tokens, 0) if self._lengths is None else self._lengths(call)
        sources = zip(call.reads, call.sources, strict=True)
        self._send(
            self._cluster,
            self._tables,
            self._role_fit,
            self._key,
            self._clock,
            call.id,
            call.query,
            call.task,
            call.node,
            call.phase,
            call.model,
            call.strategy,
            call.role,
            call.structure,
            call.priority,
            prompt,
            answer,
            sum(1 << node for node in call.reads),
            sum((known >> source & 1) << node for node, source in sources),
            self._answer,
        )
        tokens, truncated, right = self._answer.tolist()
        self._outcome[call.id] = call, tokens, bool(truncated), bool(right)

    def wait(self, until_s: float | None) -> list[Completion]:
        """Advance to the next completion, or to `until_s` or a server's return before it."""
        if until_s is None and not self._outcome:
            return []
        limit_s = np.inf if until_s is None else max(until_s, self.now_s())
        count = self._run(
            self._cluster, self._clock, self._metrics, self._taken_s, limit_s, self._ended
        )
        return [self._completion(self._ended[i]) for i in range(count)]

    def _completion(self, ended: np.void) -> Completion:
        call, tokens, truncated, right = self._outcome.pop(int(ended["call"]))
        failed = bool(ended["failed"])
        if failed:
            tokens, truncated, right = 0, False, False
        if call.phase == FINAL and not failed:
            self._right.pop(call.query, None)
        elif call.phase != FINAL:
            bit = 1 << call.node
            others = self._right.get(call.query, 0) & ~bit
            self._right[call.query] = others | bit if right else others
        return Completion(
            call=call.id,
            submit_s=float(ended["submit_s"]),
            first_token_s=float(ended["first_token_s"]),
            finish_s=self.now_s(),
            output_tokens=tokens,
            truncated=truncated,
            failed=failed,
            right=right,
            admitted_s=float(ended["admitted_s"]),
            evictions=int(ended["evictions"]),
        )

    def telemetry(self) -> Telemetry:
        """The metrics of the last poll."""
        clock = self._clock[0]
        return Telemetry(
            polls=int(clock["polls"]),
            taken_s=self._taken_s.tolist(),
            depth_req=self._metrics[QUEUE].tolist(),
            e2e_s=self._metrics[E2E].tolist(),
            kv_frac=self._metrics[KV].tolist(),
        )

    def models_up(self) -> int:
        """All of them, but for those that a fault has taken down."""
        down = self._cluster.condition["down"].ravel()  # empty without faults
        every = (1 << self._metrics.shape[1]) - 1
        return every & ~sum(1 << m for m in np.flatnonzero(down).tolist())

    def close(self) -> None:
        """Nothing to let go of."""


@jit
def _reset(cluster: Cluster) -> None:
    reset_cluster(cluster, 0)
    reset_conditions(cluster, 0)


@jit
def _send(
    cluster: Cluster,
    tables: ResponseTables,
    role_fit: NDArray[np.float32],
    key: int,
    clock: NDArray[Any],
    call: int,
    ordinal: int,
    task: int,
    node: int,
    phase: int,
    model: int,
    strategy: int,
    role: int,
    structure: int,
    priority: float,
    prompt_tokens: int,
    known_tokens: int,
    reads: int,
    right: int,
    answer: NDArray[np.int64],
) -> None:
    """Submit a call; write its length in tokens, whether it will be cut and whether right.

    The length is `known_tokens`, or drawn where that is 0.
    """
    place = call_id(node, phase, model, strategy)
    z = query_length_z(key, ordinal)
    tokens, _ = answer_tokens(tables, key, ordinal, task, z, place, phase, model, strategy)
    if known_tokens > 0:
        tokens = known_tokens
    truncated = was_cut(tables, tokens)
    sources, good = np.uint32(reads), np.uint32(right)
    bonus = answer_bonus(
        tables, role_fit, task, role, node, phase, strategy, structure, sources, good
    )
    is_right = answer_right(tables, key, ordinal, task, place, model, bonus, truncated)
    identity = submit(cluster, 0, model, clock[0].now_s, priority, prompt_tokens, tokens)
    cluster.request[0, identity].query = call
    watch(cluster, 0, identity, 1)
    if is_down(cluster, 0, model):
        clock[0].refused = 1
    answer[0], answer[1], answer[2] = tokens, truncated, is_right


@inner
def _note_end(request: Any, ended: Any, failed: int) -> None:
    """Write what a request's completion tells into `ended`, an _ENDED record."""
    ended.submit_s = request.submit_s
    ended.admitted_s = request.admitted_s
    ended.first_token_s = request.first_token_s
    ended.call = request.query
    ended.evictions = request.evictions
    ended.failed = failed


@inner
def _lose_calls(cluster: Cluster, now_s: float, ended: NDArray[Any]) -> int:
    """Write the calls at servers that are down into `ended`, in the order of their submission."""
    count = 0
    identity = int(cluster.counts[0, OLDEST])
    while identity != NO_REQUEST:
        following = int(cluster.timer[0, identity].newer)
        if is_down(cluster, 0, cluster.request[0, identity].server):
            forget_future(cluster, 0, identity, now_s)
            _note_end(cluster.request[0, identity], ended[count], 1)
            unwatch(cluster, 0, identity)
            release_request(cluster, 0, identity)
            count += 1
        identity = following
    empty_servers_down(cluster, 0)
    return count


@inner
def _show(
    cluster: Cluster,
    m: int,
    polls: int,
    metrics: NDArray[np.float64],
    taken_s: NDArray[np.float64],
) -> None:
    """Write a server's reading into `metrics`, if one has arrived."""
    slot = news_of(cluster, 0, m, polls)
    if slot != NO_NEWS:
        taken_s[m] = cluster.condition[0, m].taken_s
        for value in range(metrics.shape[0]):
            metrics[value, m] = cluster.reading[0, slot, value, m]


@jit
def _run(
    cluster: Cluster,
    clock: NDArray[Any],
    metrics: NDArray[np.float64],
    taken_s: NDArray[np.float64],
    until_s: float,
    ended: NDArray[Any],
) -> int:
    """Let time run until calls end, and write them into `ended`.

    Returns:
        How many; 0 when `until_s` is reached, or a server is back before it.
    """
    time = clock[0]
    models = metrics.shape[1]
    if time.refused:
        time.refused = 0
        return _lose_calls(cluster, time.now_s, ended)
    while True:
        end_s, m = next_end(cluster, 0)
        poll_s = time.poll_s * (time.polls + 1)
        timeout_s, late = next_timeout(cluster, 0, time.call_timeout_s)
        fault_s = next_fault_s(cluster, 0)
        next_s = min(min(end_s, fault_s), min(until_s, poll_s))
        if cluster.counts[0, DIRTY] and next_s > time.now_s:
            flush(cluster, 0, time.now_s)
            continue
        next_s = min(next_s, timeout_s)
        time.now_s = next_s
        if end_s == next_s:
            count = 0
            for i in range(finish_stretch(cluster, 0, m, next_s)):
                identity = int(cluster.done[i])
                request = cluster.request[0, identity]
                if request.query != ABORTED:
                    _note_end(request, ended[count], 0)
                    unwatch(cluster, 0, identity)
                    count += 1
                release_request(cluster, 0, identity)
            if count > 0:
                return count
        elif until_s == next_s:
            return 0
        elif fault_s == next_s:
            m = change_condition(cluster, 0, next_s, time.polls)
            if m >= models:
                _show(cluster, m - models, time.polls, metrics, taken_s)
                if until_s < NEVER_S:
                    return 0
            elif is_down(cluster, 0, m):
                count = _lose_calls(cluster, next_s, ended)
                if count > 0:
                    return count
        elif timeout_s == next_s:
            _note_end(cluster.request[0, late], ended[0], 1)
            unwatch(cluster, 0, late)
            abort(cluster, 0, late, next_s)
            return 1
        elif cluster.fault.shape[1] > 0:
            time.polls += 1
            read_metrics(cluster, 0, next_s, time.polls, True)
            for server in range(models):
                _show(cluster, server, time.polls, metrics, taken_s)
        else:
            for server in range(models):
                taken_s[server] = next_s
                metrics[QUEUE, server] = depth_req(cluster, 0, server)
                e2e_s = recent_e2e_s(cluster, 0, server)
                if e2e_s == e2e_s:
                    metrics[E2E, server] = e2e_s
                metrics[KV, server] = kv_frac(cluster, 0, server, next_s)
            time.polls += 1
