"""State of the workflows: what is known of every query, decision and call.

The first axis of every array is the environment of a batch (E). Queries in flight live in a pool of
slots (Q); what is over is appended to `completed`, in order of completion. The records are the
package's common language: policies read CONTEXT, learners and the benchmark read COMPLETED and
CALL, whichever backend served the calls.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import aligned
from inframind_gym.simulator.workflow.topology import FINAL as FINAL  # phases of a call
from inframind_gym.simulator.workflow.topology import FIRST as FIRST
from inframind_gym.simulator.workflow.topology import MAX_NODES
from inframind_gym.simulator.workflow.topology import SECOND as SECOND

NO_SLOT: Final = -1
PLAN_NODE: Final = 255  # in the ready ring: this query waits for a plan, not for a route

# Answers of `complete_call`, above the phases: otherwise it names the call that follows.
NOTHING: Final = 3  # no further call follows from this one
OVER: Final = 4  # the query is done

# What has become of the agent's decision.
IS_OVER: Final = 0
IS_DUE: Final = 1
IS_TAKEN: Final = 2  # a route whose first call has not been sent yet

# Rows of `in_flight`.
ALL: Final = 0
CONTROLLED: Final = 1  # the agent's

# Kinds of decision.
ROUTE: Final = 0
PLAN: Final = 1

# One query in flight; its nodes lie beside it, each in one line of the processor's cache.
QUERY: Final = np.dtype(
    [
        ("arrival_s", "f8"),
        ("budget_s", "f8"),
        ("latency_s", "f8"),  # as the protocol counts it, so far
        ("charged_s", "f8"),  # the part of it that earlier steps have paid for
        ("ordinal", "i4"),  # position in the stream
        ("task", "i4"),
        ("length_z", "f4"),  # the query's own share of the answers' lengths, standard normal
        ("topology", "i1"),
        ("num_agents", "i1"),
        ("num_nodes", "i1"),
        ("domain", "i1"),
        ("profile", "i1"),
        ("is_controlled", "i1"),  # 1: decided by the agent, 0: by the background router
        ("final_model", "i1"),
        ("solved", "i1"),
        ("pushed", "u2"),  # bit masks over nodes
        ("done", "u2"),
        ("right", "u2"),
        ("lost", "u2"),  # whose last call failed: nobody reads them
        ("proven", "u2"),  # whose answer is code that the tests in the prompt prove right
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("calls", "i2"),
        ("truncated_calls", "i2"),
        ("failed_calls", "i2"),
    ],
    align=True,
)

# One execution of a query in flight.
NODE: Final = np.dtype(
    [
        ("start_s", "f8"),  # when its first call was sent
        ("path_s", "f8"),  # latency of the node and its slowest line of ancestors
        ("latency_s", "f4"),
        ("tokens", "i4"),  # length of its answer
        ("source", "i1"),  # the node that wrote it: another where it was handed on
        ("role", "i1"),
        ("model", "i1"),
        ("strategy", "i1"),
    ],
    align=True,
)

# The decision that is due, for policies, beside the observation.
CONTEXT: Final = np.dtype(
    [
        ("time_s", "f8"),
        ("arrival_s", "f8"),
        ("budget_s", "f8"),
        ("telemetry_age_s", "f8"),
        ("poll", "i4"),  # polls of the metrics so far
        ("query", "i4"),  # ordinal in the stream
        ("task", "i4"),
        ("node", "i2"),  # ordinal of the execution in the workflow
        ("num_nodes", "i2"),
        ("wave", "i2"),
        ("num_waves", "i2"),
        ("role", "i2"),  # index into ROLES
        ("kind", "i1"),  # ROUTE or PLAN
        ("topology", "i1"),
        ("num_agents", "i1"),
        ("domain", "i1"),
        ("models_up", "u4"),  # bit mask
    ],
    align=True,
)

# One query that is over.
COMPLETED: Final = np.dtype(
    [
        ("arrival_s", "f8"),
        ("finish_s", "f8"),
        ("latency_s", "f8"),
        ("budget_s", "f8"),
        ("cost", "f8"),  # latency / budget
        ("query", "i4"),
        ("task", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("right", "u4"),  # bit mask: which nodes were right
        ("calls", "i2"),
        ("truncated_calls", "i2"),
        ("failed_calls", "i2"),
        ("domain", "i1"),
        ("topology", "i1"),
        ("num_agents", "i1"),
        ("num_nodes", "i1"),
        ("solved", "i1"),
        ("final_model", "i1"),
        ("is_controlled", "i1"),
        ("model", "i1", (MAX_NODES,)),  # decisions, by node; -1 (latency 0) beyond num_nodes
        ("strategy", "i1", (MAX_NODES,)),
        ("role", "i1", (MAX_NODES,)),
        ("node_latency_s", "f4", (MAX_NODES,)),
    ],
    align=True,
)

# One call that is over.
CALL: Final = np.dtype(
    [
        ("submit_s", "f8"),
        ("admitted_s", "f8"),
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("priority", "f8"),
        ("query", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("evictions", "i4"),
        ("node", "i2"),
        ("phase", "i1"),
        ("model", "i1"),
        ("strategy", "i1"),
        ("truncated", "i1"),
        ("failed", "i1"),  # no answer came: a live server's error, or the client's time-out
        ("right", "i1"),
    ],
    align=True,
)

# One stream: the run of an environment from empty servers to the last query.
STREAM: Final = np.dtype(
    [
        ("key", "u8"),  # of all random numbers of the stream
        ("now_s", "f8"),
        ("next_poll_s", "f8"),
        ("last_poll_s", "f8"),
        ("budget_s", "f8"),  # NaN: drawn from the tiers
        ("num_queries", "i4"),
        ("arrived", "i4"),
        ("finished", "i4"),
        ("reported", "i4"),  # of the finished, those that ended before the last step
        ("free_slots", "i4"),
        ("used_slots", "i4"),
        ("ready_head", "i4"),
        ("ready_tail", "i4"),
        ("polls", "i4"),
        ("recorded_calls", "i4"),
        ("routed", "i4"),  # decisions of the background router
        (
            "controlled_routed",
            "i4",
        ),  # those of the agent's own built-in router, where it is another one
        ("slot", "i4"),  # the agent's present or last decision
        ("node", "i4"),
        ("tagged_slot", "i4"),  # tagged-query mode: the agent's query in flight, or NO_SLOT
        ("tagged_from", "i4"),  # tagged-query mode: the agent's query is none before this ordinal
        ("models_up", "u4"),
        ("expecting", "i1"),  # tagged-query mode: the next arrival is the agent's
        ("live", "i1"),  # whether that decision IS_DUE or IS_TAKEN
    ],
    align=True,
)


# What a stream starts with.
START: Final = np.dtype(
    [
        ("key", "u8"),
        ("budget_s", "f8"),
        ("num_queries", "i4"),
        ("tagged_from", "i4"),
        ("models_up", "u4"),
    ],
    align=True,
)


class EnvState(NamedTuple):
    """The workflows of E environments."""

    stream: NDArray[Any]  # (E,) STREAM
    in_flight: NDArray[np.int32]  # (E, 2, M) calls sent to each model, not done: ALL, CONTROLLED
    query: NDArray[Any]  # (E, Q) QUERY, a pool
    node: NDArray[Any]  # (E, Q, MAX_NODES) NODE
    free: NDArray[np.int32]  # (E, Q) stack of returned slots
    ready: NDArray[np.int32]  # (E, W) ring of decisions that can be made now: slot << 8 | node
    arrival_s: NDArray[np.float64]  # (E, N) of the stream's queries
    task: NDArray[np.int32]  # (E, N) their tasks
    completed: NDArray[Any]  # (E, N) COMPLETED
    call: NDArray[Any]  # (E, C) CALL; C = 0: calls are not recorded


def allocate_state(
    num_envs: int, num_models: int, num_queries: int, ready_size: int, record_calls: bool
) -> EnvState:
    """Arrays for streams of at most `num_queries` queries.

    Args:
        num_envs: E.
        num_models: M.
        num_queries: N, and Q: all may be in flight at once.
        ready_size: W, the most decisions that can become possible at one instant; a power of two.
        record_calls: keep a record of every call.
    """
    calls = num_queries * (2 * MAX_NODES + 1) if record_calls else 0
    return EnvState(
        stream=np.zeros(num_envs, STREAM),
        in_flight=np.zeros((num_envs, 2, num_models), np.int32),
        query=aligned((num_envs, num_queries), QUERY),
        node=aligned((num_envs, num_queries, MAX_NODES), NODE),
        free=np.zeros((num_envs, num_queries), np.int32),
        ready=np.zeros((num_envs, ready_size), np.int32),
        arrival_s=np.zeros((num_envs, num_queries)),
        task=np.zeros((num_envs, num_queries), np.int32),
        completed=np.zeros((num_envs, num_queries), COMPLETED),
        call=np.zeros((num_envs, calls), CALL),
    )
