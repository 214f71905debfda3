"""State of the workflows: constants of a run, and records of queries, decisions and calls.

The first axis of every array is the environment of a batch (E). Queries in flight are in a pool of
slots (Q); those that are over are appended to `completed`, in order of completion. The records are
the same for every backend: policies read CONTEXT, learners and the benchmark read COMPLETED and
CALL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import Floats, Int32s, Records, filled, record, zeros
from inframind_gym.simulator.quality import ResponseTables, response_tables
from inframind_gym.simulator.rng import cumulative
from inframind_gym.simulator.server.pool import MOST_MODELS, PoolConfig, Scheduler
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import FINAL as FINAL  # phases of a call
from inframind_gym.simulator.workflow.topology import FIRST as FIRST
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    STRATEGIES,
    TOPOLOGIES,
    Graph,
    GraphTables,
    graph_tables,
)
from inframind_gym.simulator.workflow.topology import SECOND as SECOND
from inframind_gym.simulator.workload import TaskProfile
from inframind_gym.tasks import DOMAINS, TaskSet, load_role_embeddings

# Constants

EXECUTIONS: Final = ("parallel", "sequential", "serial")
SCHEDULERS: Final[tuple[str, ...]] = get_args(Scheduler)
ROUTERS: Final = ("static_mix", "round_robin", "least_loaded", "none")
LEVELS: Final = ("executor", "planner", "joint")
NO_LIMIT: Final = 1 << 30  # tokens of an answer, more than any has

SETTINGS: Final = record(
    "f8: poll_s queue_norm queue_high",
    "f8: call_timeout_s",  # after which a client aborts a call; infinity: never
    "i4: call_attempts",  # how often a call is sent until it has failed
    "i4: call_streams",  # 1: `call_timeout_s` is for the first token, 0: for the whole answer
    "i4: max_output_tokens",
    "i4: execution",  # index into EXECUTIONS
    "i4: scheduler",  # index into SCHEDULERS
    "i4: router",  # index into ROUTERS: routes the queries that are not the agent's
    "i4: controlled_router",  # the same for the agent's queries, at level "planner"
    "i4: level",  # index into LEVELS
    "i4: in_time",  # 1: a solved query is rewarded only within its budget
    "i4: one_query",  # 1: the agent has one query at a time, the rest is background
    "i4: fixed_topology",  # -1: drawn from the workload's mix
    "i4: fixed_agents",  # -1: drawn
    "i4: embeddings",  # 1: observations hold embeddings, 0: their indices
    f"({MOST_MODELS},)i4: slots",  # calls that each server runs at once
)


class EnvParams(NamedTuple):
    """Constants of a run. P profiles (datasets), T tasks, R roles, M models, S strategies."""

    settings: NDArray[Any]  # (1,) SETTINGS
    features: NDArray[np.int64]  # (F,) observed telemetry, indices into SYSTEM_FEATURES
    response: ResponseTables
    overhead_tokens: NDArray[np.int64]  # (P,) instructions and role, per prompt
    message_frac: NDArray[np.float64]  # (P,) share of an answer that enters the next prompt
    final_message_tokens: NDArray[np.int64]  # (P,) what the deciding call reads of an answer
    max_prompt_tokens: NDArray[np.int64]  # (M,) what the model's context leaves for the prompt
    model_cdf: NDArray[np.float64]  # (P, M) cumulative shares of the oblivious mix
    strategy_cdf: NDArray[np.float64]  # (P, S)
    topology_cdf: NDArray[np.float64]  # (P, 6)
    agents_cdf: NDArray[np.float64]  # (P, MAX_AGENTS)
    budget_tiers_s: NDArray[np.float64]  # (B,)
    task_domain: NDArray[np.int8]  # (T,)
    task_tokens: NDArray[np.int32]  # (T,) length of the prompt's own text
    task_embedding: NDArray[np.float32]  # (T, 384)
    role_fit: NDArray[np.float32]  # (T, R) how well a role suits a task, standardised
    role_embedding: NDArray[np.float32]  # (R, 384)
    role_start: NDArray[np.int32]  # (3,) first role of each domain
    role_count: NDArray[np.int32]  # (3,)
    role_calls: NDArray[np.int32]  # (P, R) calls that a node of the role makes
    role_codes: NDArray[np.int32]  # (R,) 1: its answers are code
    visible_tests: NDArray[np.float64]  # (P,) share of the tasks whose tests the agents see
    single_call: NDArray[np.int8]  # (P,) 1: the answer of an agent alone is the query's
    graphs: GraphTables


def build_params(
    pool: PoolConfig,
    profiles: Sequence[TaskProfile],
    tasks: TaskSet,
    task_profile: NDArray[np.int32],
    budget_tiers_s: Sequence[float],
    features: Sequence[int],
    settings: Mapping[str, float],
    graphs: Sequence[Graph] = (),
) -> EnvParams:
    """Assemble the constants of a run.

    Args:
        pool: the servers.
        profiles: (P) profile of each dataset.
        tasks: the T tasks.
        task_profile: (T,) index into `profiles`.
        budget_tiers_s: budgets that queries draw from when none is fixed.
        features: observed telemetry, indices into SYSTEM_FEATURES.
        settings: values of the SETTINGS fields.
        graphs: graphs beyond the six topologies, with the indices that follow theirs.

    Raises:
        ConfigError: a profile lacks one of the pool's models.
    """
    aliases = pool.aliases
    for profile in profiles:
        profile.require_models(aliases)
    values = filled(SETTINGS, **{"call_timeout_s": np.inf, "call_attempts": 1, **settings})
    values["slots"][0, : len(aliases)] = [model.server.slots for model in pool.models]
    max_output = pool.max_output_tokens
    embedding = load_role_embeddings()
    return EnvParams(
        settings=values,
        features=np.asarray(features, np.int64),
        response=response_tables(profiles, aliases, tasks, task_profile, max_output),
        overhead_tokens=np.array([p.prompt.overhead_tokens for p in profiles], np.int64),
        message_frac=np.array([p.prompt.message_frac for p in profiles], np.float64),
        final_message_tokens=np.array(
            [p.prompt.final_message_tokens or NO_LIMIT for p in profiles], np.int64
        ),
        max_prompt_tokens=np.array(
            [max(m.server.max_model_len - max_output, 1) for m in pool.models], np.int64
        ),
        model_cdf=cumulative([[p.models[a].share for a in aliases] for p in profiles]),
        strategy_cdf=cumulative([[p.strategy_mix[s] for s in STRATEGIES] for p in profiles]),
        topology_cdf=cumulative(
            [[p.planner.topologies.get(t, 0.0) for t in TOPOLOGIES] for p in profiles]
        ),
        agents_cdf=cumulative(
            [
                [p.planner.num_agents.get(count, 0.0) for count in range(1, MAX_AGENTS + 1)]
                for p in profiles
            ]
        ),
        budget_tiers_s=np.asarray(budget_tiers_s, np.float64),
        task_domain=np.ascontiguousarray(tasks.domain, np.int8),
        task_tokens=np.ascontiguousarray(tasks.prompt_tokens, np.int32),
        task_embedding=np.ascontiguousarray(tasks.embeddings, np.float32),
        role_fit=role_fit(tasks, embedding),
        role_embedding=embedding,
        role_start=np.array([roles_of(domain)[0] for domain in DOMAINS], np.int32),
        role_count=np.array([len(roles_of(domain)) for domain in DOMAINS], np.int32),
        role_calls=np.array(
            [[role.calls if p.agents.role_calls else 1 for role in ROLES] for p in profiles],
            np.int32,
        ).reshape(-1, len(ROLES)),
        role_codes=np.array([role.writes_code for role in ROLES], np.int32),
        visible_tests=np.array([p.agents.visible_tests for p in profiles], np.float64),
        single_call=np.array([p.agents.single_call for p in profiles], np.int8),
        graphs=graph_tables(graphs),
    )


def role_fit(tasks: TaskSet, embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the fit of each role to each task: the cosine of their embeddings.

    It is standardised over the roles of the task's domain.

    Returns:
        (T, R); 0 for roles of other domains.
    """
    cosine = tasks.embeddings @ embedding.T
    fit = np.zeros_like(cosine)
    for d, domain in enumerate(DOMAINS):
        columns = np.asarray(roles_of(domain))
        rows = np.flatnonzero(tasks.domain == d)
        block = np.ix_(rows, columns)
        spread = cosine[block].std(axis=1, keepdims=True)
        centred = cosine[block] - cosine[block].mean(axis=1, keepdims=True)
        fit[block] = centred / np.where(spread > 0, spread, 1.0)
    return np.ascontiguousarray(fit, np.float32)


# State

NO_SLOT: Final = -1
PLAN_NODE: Final = 255  # in the ready ring: this query waits for a plan, not for a route

# What `end_call` returns instead of the phase of a call that follows; larger than any phase.
NOTHING: Final = 3  # no further call follows from this one
OVER: Final = 4  # the query is done

# State of the agent's decision, `live` of a STREAM.
IS_OVER: Final = 0
IS_DUE: Final = 1
IS_TAKEN: Final = 2  # a route whose first call has not been sent yet

# Rows of `in_flight`.
ALL: Final = 0
CONTROLLED: Final = 1  # the agent's

# Kinds of decision.
ROUTE: Final = 0
PLAN: Final = 1

# One query in flight. Its nodes are in another array, each in one cache line.
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
    "u2: lost",  # whose last call failed: no prompt holds their answers
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
    "i1: source",  # the node that wrote it: another one if it was handed on
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
    "i4: controlled_routed",  # those of `controlled_router`, if it is another one
    "i4: slot",  # the agent's present or last decision
    "i4: node",
    "i4: tagged_slot",  # tagged-query mode: the agent's query in flight, or NO_SLOT
    "i4: tagged_from",  # tagged-query mode: lowest ordinal of a query of the agent
    "u4: models_up",
    "i1: expecting",  # tagged-query mode: the next arrival is the agent's
    "i1: live",  # IS_OVER, IS_DUE or IS_TAKEN: the decision of `slot` and `node`
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
    """Allocate the state of streams of at most `num_queries` queries.

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
