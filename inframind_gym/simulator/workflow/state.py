"""State of the workflows: what is known of every query, decision and call.

The first axis of every array is the environment of a batch (E). Queries in flight live in a pool of
slots (Q); what is over is appended to `completed`, in order of completion. The records are the
package's common language: policies read CONTEXT, learners and the benchmark read COMPLETED and
CALL, whichever backend served the calls.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from inframind_gym.simulator.jit import Floats, Int32s, Records, record, zeros
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.topology import FINAL as FINAL  # phases of a call
from inframind_gym.simulator.workflow.topology import FIRST as FIRST
from inframind_gym.simulator.workflow.topology import MAX_NODES
from inframind_gym.simulator.workflow.topology import SECOND as SECOND

NO_SLOT: Final = -1
PLAN_NODE: Final = 255  # in the ready ring: this query waits for a plan, not for a route

# Answers of `end_call`, above the phases: otherwise it names the call that follows.
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
QUERY: Final = record(
    "f8: arrival_s budget_s",
    "f8: latency_s",  # as the protocol counts it, so far
    "f8: charged_s",  # the part of it that earlier steps have paid for
    "i4: ordinal",  # position in the stream
    "i4: task",
    "f4: length_z",  # the query's own share of the answers' lengths, standard normal
    "i1: topology num_agents num_nodes domain profile",
    "i1: is_controlled",  # 1: decided by the agent, 0: by the background router
    "i1: final_model solved",
    "u2: pushed",  # bit masks over nodes
    "u2: done right",
    "u2: lost",  # whose last call failed: nobody reads them
    "u2: proven",  # whose answer is code that the tests in the prompt prove right
    "i4: prompt_tokens output_tokens",
    "i2: calls truncated_calls failed_calls",
)

# One execution of a query in flight.
NODE: Final = record(
    "f8: start_s",  # when its first call was sent
    "f8: path_s",  # latency of the node and its slowest line of ancestors
    "f4: latency_s",
    "i4: tokens",  # length of its answer
    "i1: source",  # the node that wrote it: another where it was handed on
    "i1: role model strategy",
)

# The decision that is due, for policies, beside the observation.
CONTEXT: Final = record(
    "f8: time_s arrival_s budget_s telemetry_age_s",
    "i4: poll",  # polls of the metrics so far
    "i4: query",  # ordinal in the stream
    "i4: task",
    "i2: node",  # ordinal of the execution in the workflow
    "i2: num_nodes wave num_waves",
    "i2: role",  # index into ROLES
    "i1: kind",  # ROUTE or PLAN
    "i1: topology num_agents domain",
    "u4: models_up",  # bit mask
)

# One query that is over.
COMPLETED: Final = record(
    "f8: arrival_s finish_s latency_s budget_s",
    "f8: cost",  # latency / budget
    "i4: query task prompt_tokens output_tokens",
    "u4: right",  # bit mask: which nodes were right
    "i2: calls truncated_calls failed_calls",
    "i1: domain topology num_agents num_nodes solved final_model is_controlled",
    f"({MAX_NODES},)i1: model",  # decisions, by node; -1 (latency 0) beyond num_nodes
    f"({MAX_NODES},)i1: strategy role",
    f"({MAX_NODES},)f4: node_latency_s",
)

# One call that is over.
CALL: Final = record(
    "f8: submit_s admitted_s first_token_s finish_s priority",
    "i4: query prompt_tokens output_tokens evictions",
    "i2: node",
    "i1: phase model strategy truncated",
    "i1: failed",  # no answer came: a live server's error, or the client's time-out
    "i1: right",
)

# One stream: the run of an environment from empty servers to the last query.
STREAM: Final = record(
    "u8: key",  # of all random numbers of the stream
    "f8: now_s next_poll_s last_poll_s",
    "f8: budget_s",  # NaN: drawn from the tiers
    "i4: num_queries arrived finished",
    "i4: reported",  # of the finished, those that ended before the last step
    "i4: free_slots used_slots ready_head ready_tail polls recorded_calls",
    "i4: routed",  # decisions of the background router
    "i4: controlled_routed",  # those of the agent's own built-in router, where it is another one
    "i4: slot",  # the agent's present or last decision
    "i4: node",
    "i4: tagged_slot",  # tagged-query mode: the agent's query in flight, or NO_SLOT
    "i4: tagged_from",  # tagged-query mode: the agent's query is none before this ordinal
    "u4: models_up",
    "i1: expecting",  # tagged-query mode: the next arrival is the agent's
    "i1: live",  # whether that decision IS_DUE or IS_TAKEN
)


# What a stream starts with.
START: Final = record(
    "u8: key",
    "f8: budget_s",
    "i4: num_queries tagged_from",
    "u4: models_up",
)


class EnvState(NamedTuple):
    """The workflows of E environments, and the constants of their run."""

    params: EnvParams
    stream: Annotated[Records, "E", STREAM]
    in_flight: Annotated[Int32s, "E 2 M"]  # calls sent to each model, not done: ALL, CONTROLLED
    query: Annotated[Records, "E Q", QUERY]  # a pool
    node: Annotated[Records, "E Q MAX_NODES", NODE]
    free: Annotated[Int32s, "E Q"]  # stack of returned slots
    ready: Annotated[Int32s, "E W"]  # ring of decisions that can be made now: slot << 8 | node
    arrival_s: Annotated[Floats, "E N"]  # of the stream's queries
    task: Annotated[Int32s, "E N"]  # their tasks
    completed: Annotated[Records, "E N", COMPLETED]
    call: Annotated[Records, "E C", CALL]  # C = 0: calls are not recorded


def allocate_state(
    params: EnvParams, num_envs: int, num_queries: int, ready_size: int, record_calls: bool
) -> EnvState:
    """Arrays for streams of at most `num_queries` queries.

    Args:
        params: constants of the run, of M models.
        num_envs: E.
        num_queries: N, and Q: all may be in flight at once.
        ready_size: W, the most decisions that can become possible at one instant; a power of two.
        record_calls: keep a record of every call.
    """
    calls = num_queries * (2 * MAX_NODES + 1) if record_calls else 0
    models = len(params.max_prompt_tokens)
    sizes = {"E": num_envs, "M": models, "Q": num_queries, "N": num_queries, "W": ready_size}
    return zeros(EnvState, sizes | {"MAX_NODES": MAX_NODES, "C": calls}, params=params)
