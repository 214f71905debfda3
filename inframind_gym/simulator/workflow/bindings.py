"""The compiled rules, to be called from Python one at a time.

`backend_loop` runs a single stream (environment 0 of the state) through them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.server.telemetry import E2E, KV, QUEUE, note
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    RESUME,
    SEND,
    SEND_FINAL,
    STEP,
    act,
    begin_step,
    start_stream,
)
from inframind_gym.simulator.workflow.dispatch import next_event as event_now
from inframind_gym.simulator.workflow.lifecycle import (
    end_call,
    is_judged,
    nodes_read,
    prepare_call,
    start_query,
)
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import EnvState
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES

# A call to be sent.
ORDER: Final = np.dtype(
    [
        ("priority", "f8"),
        ("deadline_s", "f8"),
        ("slot", "i4"),  # of the query
        ("query", "i4"),  # its ordinal
        ("task", "i4"),
        ("prompt_tokens", "i4"),
        ("reads", "u4"),  # bit mask of nodes
        ("sources", "i1", (MAX_NODES,)),  # by node: who wrote its answer
        ("node", "i2"),
        ("phase", "i1"),
        ("topology", "i1"),
        ("structure", "i1"),  # index into STRUCTURES
        ("model", "i1"),
        ("strategy", "i1"),
        ("role", "i1"),
    ],
    align=True,
)
# Fields that a `Call` has from its order as they are.
AS_ORDERED: Final = (
    *("priority", "deadline_s", "query", "task", "prompt_tokens", "node", "phase", "topology"),
    *("structure", "model", "strategy", "role"),
)

# A call that is done, as a server's REQUEST would tell it.
ANSWER: Final = np.dtype(
    [
        ("priority", "f8"),
        ("submit_s", "f8"),
        ("admitted_s", "f8"),
        ("first_token_s", "f8"),
        ("query", "i4"),  # slot of the query
        ("planned_tokens", "i4"),  # of the prompt
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("evictions", "i4"),
        ("node", "i2"),
        ("phase", "i1"),
        ("truncated", "i1"),
        ("failed", "i1"),
        ("right", "i1"),
        ("again", "i1"),  # a failed call is to be sent again
    ],
    align=True,
)
# Fields that an answer has from its `Completion` as they are.
AS_COMPLETED: Final = (
    *("submit_s", "admitted_s", "first_token_s", "output_tokens", "evictions"),
    *("truncated", "failed"),
)


@jit
def enter(
    params: EnvParams, state: EnvState, mode: int, starts: NDArray[Any], action: NDArray[np.int64]
) -> None:
    """Begin a step: BEGIN a stream as `starts` (1,) says, RESUME it, or carry out `action` (a,)."""
    if mode == BEGIN:
        start_stream(params, state, 0, starts[0])
    begin_step(state, 0)
    if mode == RESUME:
        state.stream[0].expecting = 1
    elif mode == STEP:
        act(params, state, 0, action)


@jit
def next_event(params: EnvParams, state: EnvState, order: NDArray[Any]) -> int:
    """The next event at this instant (`dispatch.next_event`); SEND writes `order` (1,)."""
    event, slot, node = event_now(params, state, 0)
    if event in (SEND, SEND_FINAL):
        write_order(params, state, slot, node, FIRST if event == SEND else FINAL, order[0])
        return int(SEND)
    return event


@jit
def query_arrives(params: EnvParams, state: EnvState) -> None:
    """The stream's next query has arrived."""
    start_query(params, state, 0)


@jit
def call_ends(
    params: EnvParams, state: EnvState, answer: NDArray[Any], order: NDArray[Any]
) -> bool:
    """A call is done, now, as `answer` (1,) says.

    Returns:
        Whether another one follows: it stands in `order` (1,).
    """
    response = answer[0]
    query = state.query[0, response.query]
    query.prompt_tokens += response.prompt_tokens - response.planned_tokens
    right = response.right == 1 and response.failed == 0 and is_judged(params, query)
    follows = end_call(
        params,
        state,
        0,
        response,
        response.truncated == 1,
        response.failed == 1,
        right,
        response.again == 1,
    )
    if follows > FINAL:
        return False
    write_order(
        params,
        state,
        int(response.query),
        0 if follows == FINAL else int(response.node),
        follows,
        order[0],
    )
    return True


@inner
def write_order(
    params: EnvParams, state: EnvState, slot: int, node: int, phase: int, order: Any
) -> None:
    """Prepare a call of the query and write it into `order`, an ORDER record."""
    model, strategy, prompt, priority = prepare_call(params, state, 0, slot, node, phase)
    query = state.query[0, slot]
    order.priority = priority
    order.deadline_s = query.arrival_s + query.budget_s
    order.slot = slot
    order.query = query.ordinal
    order.task = query.task
    order.prompt_tokens = prompt
    order.reads = nodes_read(params, query, node, phase)
    for other in range(MAX_NODES):
        order.sources[other] = state.node[0, slot, other].source
    order.node = node
    order.phase = phase
    order.topology = query.topology
    order.structure = params.graphs.structure[query.topology, query.num_agents - 1]
    order.model = model
    order.strategy = strategy
    order.role = -1 if phase == FINAL else state.node[0, slot, node].role


@jit
def note_metrics(
    params: EnvParams, seen: NDArray[np.float32], metrics: NDArray[np.float64]
) -> None:
    """Normalise the servers' metrics (3, M) into `seen` (1, 3, M)."""
    settings = params.settings[0]
    for m in range(metrics.shape[1]):
        note(
            seen,
            0,
            m,
            metrics[QUEUE, m],
            metrics[E2E, m],
            metrics[KV, m],
            settings.queue_norm,
            settings.queue_high,
        )
