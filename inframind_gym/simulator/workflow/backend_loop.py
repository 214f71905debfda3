"""The event loop on any `Backend`, in the backend's own time.

`dispatch.advance` is the compiled loop on simulated servers. The rules here are the same compiled
ones, at the end of this file; only the bookkeeping of calls in flight is Python.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.jit import Bound, inner, jit, record
from inframind_gym.simulator.server.state import E2E, KV, QUEUE
from inframind_gym.simulator.server.telemetry import note
from inframind_gym.simulator.workflow.backend import Backend, Call, Completion
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    RESUME,
    SEND,
    SEND_FINAL,
    STEP,
    WAIT,
    act,
    begin_step,
    next_decision,
    start_stream,
)
from inframind_gym.simulator.workflow.lifecycle import (
    end_call,
    is_judged,
    nodes_read,
    prepare_call,
    start_query,
)
from inframind_gym.simulator.workflow.state import CALL, EnvState
from inframind_gym.simulator.workflow.topology import FINAL, FIRST

HOLD_S = 1.0  # seconds between two looks for a model that is back, while all are down


# A call to be sent: what the rules decide; the rest follows from the query in its slot.
ORDER: Final = record(
    "f8: priority",
    "i4: slot prompt_tokens",
    "u4: reads",  # bit mask of nodes
    "i2: node phase model strategy",
)
# Fields that a `Call` takes from an ORDER, and a CALL from a `Completion`.
_ORDER_FIELDS: Final = ("priority", "prompt_tokens", "node", "phase", "model", "strategy")
_TIMES: Final = ("submit_s", "admitted_s", "first_token_s", "finish_s")
_COMPLETION_FIELDS: Final = (*_TIMES, "output_tokens", "evictions", "truncated", "failed")


class _InFlight(NamedTuple):
    """A call in flight."""

    call: Call
    slot: int  # of its query
    attempt: int  # 0 for the first


class BackendLoop:
    """One stream over a backend.

    On a wall clock everything is noticed late: queries arrive at their planned times and calls end
    at their `finish_s`, but decisions are made at the present time. So latency counts all waiting,
    the agent's own slowness included.

    While every model is down, decisions wait: there is nothing to choose from.

    Args:
        state: of a batch of one; the stream's arrivals and tasks have been written.
        start: (1,) START record.
        backend: M servers, just opened.
        retries: how often a call that failed is sent again, to the same model or, where that is
            down, to the next one that is up; not if the completion is not `retryable`. A call
            whose last attempt fails counts as a wrong answer.
        patience_s: how long to wait for a model while all are down.

    Attributes:
        backend: the backend.
        seen: (1, 3, M) the metrics as they were read last, normalised (`server.telemetry`).
    """

    def __init__(
        self,
        state: EnvState,
        start: NDArray[Any],
        backend: Backend,
        *,
        retries: int = 0,
        patience_s: float = 600.0,
    ) -> None:
        models = len(state.params.max_prompt_tokens)
        self.backend = backend
        self._state = state
        self._start = start
        self._retries = retries
        self._patience_s = patience_s
        self._usable = int(start[0]["models_up"])  # bit mask; the backend may have more models
        self._max_tokens = int(state.params.settings[0]["max_output_tokens"])
        self.seen = np.zeros((1, 3, models), np.float32)
        self._metrics = np.zeros((3, models))
        self._order = np.zeros(1, ORDER)
        self._answer = np.zeros(1, CALL)
        self._in_flight: dict[int, _InFlight] = {}  # by id
        self._calls = 0  # sent so far
        self._held_since_s = math.inf
        self._enter, self._next_event = Bound(enter), Bound(next_event)
        self._call_ends, self._query_arrives = Bound(call_ends), Bound(query_arrives)
        self._note_metrics = Bound(note_metrics)

    def enter(self, mode: int, action: NDArray[np.int64]) -> int:
        """Begin the stream (BEGIN), carry out `action` (a,) (STEP) or go on (RESUME).

        Returns:
            DECISION: the agent's next one is due; STREAM_OVER; or TAGGED_QUERY_OVER.

        Raises:
            InfraMindError: no model was up for `patience_s`, or the backend broke its contract.
        """
        self._enter(self._state, mode, self._start, action)
        return self.go_on()

    def go_on(self) -> int:
        """Run to the next decision, or go on after an exception in `wait`; as `enter` does."""
        while True:
            self._update_present()
            held = self._is_held()
            if not held:
                event: int = self._next_event(self._state, self._order)
                if event == SEND:
                    self._send(attempt=0)
                    continue
                if event != WAIT:
                    return event
            self._let_time_run(held)

    def read_metrics(self) -> NDArray[np.float32]:
        """Note the backend's metrics as they were polled last.

        Returns:
            (1, 3, M) `seen`.
        """
        telemetry = self.backend.telemetry()
        stream = self._state.stream[0]
        if not telemetry.polls:
            return self.seen
        self._metrics[QUEUE] = telemetry.depth_req
        self._metrics[E2E] = telemetry.e2e_s
        self._metrics[KV] = telemetry.kv_frac
        self._note_metrics(self._state, self.seen, self._metrics)
        up = int(stream["models_up"])
        oldest_s = min(
            (taken_s for m, taken_s in enumerate(telemetry.taken_s) if up >> m & 1),
            default=min(telemetry.taken_s),
        )
        stream["polls"] = telemetry.polls
        stream["last_poll_s"] = min(oldest_s, stream["now_s"])  # a poll can have just been made
        return self.seen

    def _update_present(self) -> None:
        """Note the present time and the models that are up."""
        stream = self._state.stream[0]
        stream["now_s"] = self.backend.now_s()
        stream["models_up"] = self._usable & self.backend.models_up()

    def _is_held(self) -> bool:
        """Return whether decisions wait because no model is up; raise after `patience_s`."""
        stream = self._state.stream[0]
        if stream["models_up"] or stream["ready_head"] == stream["ready_tail"]:
            self._held_since_s = math.inf
            return False
        now_s = float(stream["now_s"])
        self._held_since_s = min(self._held_since_s, now_s)
        if now_s - self._held_since_s >= self._patience_s:
            raise InfraMindError(
                f"no model of the pool has been up for {self._patience_s:g} s; "
                "look at its servers' logs"
            )
        return True

    def _let_time_run(self, held: bool) -> None:
        """Wait for the next completion or arrival; `held`: for a model as well."""
        stream = self._state.stream[0]
        arrival_s = math.inf
        if stream["arrived"] < stream["num_queries"]:
            arrival_s = float(self._state.arrival_s[0, stream["arrived"]])
        until_s = min(arrival_s, float(stream["now_s"]) + HOLD_S) if held else arrival_s
        completions = self.backend.wait(None if until_s == math.inf else until_s)
        if not completions and until_s == math.inf:
            raise InfraMindError(
                "the backend waited for the end of a call and returned none; "
                f"{len(self._in_flight)} are in flight"
            )
        for completion in completions:
            self._end(completion)
        if not completions and self.backend.now_s() >= arrival_s:
            self._update_present()
            self._query_arrives(self._state)

    def _send(self, attempt: int) -> None:
        """Submit the call that `self._order` describes."""
        order, state = self._order[0], self._state
        slot, mask = int(order["slot"]), int(order["reads"])
        query, nodes = state.query[0, slot], state.node[0, slot]
        reads = tuple(node for node in range(mask.bit_length()) if mask >> node & 1)
        graph = query["topology"], query["num_agents"] - 1
        call = Call(
            id=self._calls,
            query=int(query["ordinal"]),
            task=int(query["task"]),
            topology=int(query["topology"]),
            role=-1 if order["phase"] == FINAL else int(nodes["role"][order["node"]]),
            deadline_s=float(query["arrival_s"] + query["budget_s"]),
            max_tokens=self._max_tokens,
            reads=reads,
            sources=tuple(nodes["source"][list(reads)].tolist()),
            structure=int(state.params.graphs.structure[graph]),
            **{field: order[field].item() for field in _ORDER_FIELDS},
        )
        self._calls += 1
        self._in_flight[call.id] = _InFlight(call, slot, attempt)
        self.backend.submit(call)

    def _end(self, completion: Completion) -> None:
        """End a call at its `finish_s`, and send the call that follows from it, if one does."""
        if completion.call not in self._in_flight:
            raise InfraMindError(
                f"the backend completed call {completion.call}: it isn't in flight"
            )
        call, slot, attempt = self._in_flight.pop(completion.call)
        retry = completion.failed and completion.retryable and attempt < self._retries
        prompt_tokens = completion.prompt_tokens
        answer = self._answer[0]
        for field in ("priority", "node", "phase"):
            answer[field] = getattr(call, field)
        for field in _COMPLETION_FIELDS:
            answer[field] = getattr(completion, field)
        answer["query"] = slot
        answer["prompt_tokens"] = call.prompt_tokens if prompt_tokens is None else prompt_tokens
        answer["right"] = bool(completion.right)
        self._update_present()
        self._state.stream[0]["now_s"] = completion.finish_s
        more_tokens = int(answer["prompt_tokens"]) - call.prompt_tokens
        if self._call_ends(self._state, self._answer, more_tokens, retry, self._order):
            self._send(attempt=attempt + 1 if retry else 0)


# The compiled rules, one at a time, for environment 0 of the state.


@jit
def enter(state: EnvState, mode: int, starts: NDArray[Any], action: NDArray[np.int64]) -> None:
    """Begin a step: BEGIN a stream as `starts` (1,) says, RESUME it, or carry out `action` (a,)."""
    if mode == BEGIN:
        start_stream(state, 0, starts[0])
    begin_step(state, 0)
    if mode == RESUME:
        state.stream[0].expecting = 1
    elif mode == STEP:
        act(state, 0, action)


@jit
def next_event(state: EnvState, order: NDArray[Any]) -> int:
    """Return the next event at this instant (`dispatch.next_decision`); SEND writes `order`."""
    event, slot, node = next_decision(state, 0)
    if event in (SEND, SEND_FINAL):
        write_order(state, slot, node, FIRST if event == SEND else FINAL, order[0])
        return int(SEND)
    return event


@jit
def query_arrives(state: EnvState) -> None:
    """Let the stream's next query arrive."""
    start_query(state, 0)


@jit
def call_ends(
    state: EnvState, answer: NDArray[Any], more_tokens: int, again: bool, order: NDArray[Any]
) -> bool:
    """Record that a call has ended, now, and go on with its workflow.

    Args:
        answer: (1,) CALL with the server's results; its `query` is the query's slot.
        more_tokens: tokens by which its prompt was longer than planned.
        again: a failed call is to be sent again.
        order: (1,) ORDER, written if another call follows.

    Returns:
        True if another call follows.
    """
    response = answer[0]
    query = state.query[0, response.query]
    query.prompt_tokens += more_tokens
    right = response.right == 1 and response.failed == 0 and is_judged(state, query)
    follows = end_call(
        state, 0, response, response.truncated == 1, response.failed == 1, right, again
    )
    if follows > FINAL:
        return False
    write_order(
        state, int(response.query), 0 if follows == FINAL else int(response.node), follows, order[0]
    )
    return True


@inner
def write_order(state: EnvState, slot: int, node: int, phase: int, order: Any) -> None:
    """Prepare a call of the query and write it into `order`, an ORDER record."""
    model, strategy, prompt, priority = prepare_call(state, 0, slot, node, phase)
    order.priority = priority
    order.slot = slot
    order.prompt_tokens = prompt
    order.reads = nodes_read(state, state.query[0, slot], node, phase)
    order.node = node
    order.phase = phase
    order.model = model
    order.strategy = strategy


@jit
def note_metrics(state: EnvState, seen: NDArray[np.float32], metrics: NDArray[np.float64]) -> None:
    """Normalise the servers' metrics (3, M) into `seen` (1, 3, M)."""
    for m in range(metrics.shape[1]):
        note(seen, 0, m, metrics, state.params.settings[0])
