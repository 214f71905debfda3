"""Constants of a run as arrays: tasks, graphs, profiles, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import filled, record
from inframind_gym.simulator.quality import ResponseTables, response_tables
from inframind_gym.simulator.rng import cumulative
from inframind_gym.simulator.server.pool import MOST_MODELS, PoolConfig, Scheduler
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    STRATEGIES,
    TOPOLOGIES,
    Graph,
    GraphTables,
    graph_tables,
)
from inframind_gym.simulator.workload import TaskProfile
from inframind_gym.tasks import DOMAINS, TaskSet, load_role_embeddings

EXECUTIONS: Final = ("parallel", "sequential", "serial")
SCHEDULERS: Final[tuple[str, ...]] = get_args(Scheduler)
ROUTERS: Final = ("static_mix", "round_robin", "least_loaded", "none")
LEVELS: Final = ("executor", "planner", "joint")
EMBED_DIM: Final = 384  # numbers of the embedding of a query or a role
NO_LIMIT: Final = 1 << 30  # tokens of an answer, more than any has

SETTINGS: Final = record(
    "f8: poll_s queue_norm queue_high",
    "f8: call_timeout_s",  # after which a client aborts a call; infinity: never
    "i4: call_attempts",  # how often a call is sent until it has failed
    "i4: call_streams",  # 1: the client waits so long for the first token, 0: for all
    "i4: max_output_tokens",
    "i4: execution",  # index into EXECUTIONS
    "i4: scheduler",  # index into SCHEDULERS
    "i4: router",  # index into ROUTERS: routes the queries that are not the agent's
    "i4: controlled_router",  # the same for the agent's queries, at level "planner"
    "i4: level",  # index into LEVELS
    "i4: in_time",  # 1: a solved query is rewarded within its budget alone
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
        profiles: (P) what is known of each dataset.
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
    record = filled(SETTINGS, **{"call_timeout_s": np.inf, "call_attempts": 1, **settings})
    record["slots"][0, : len(aliases)] = [model.server.slots for model in pool.models]
    max_output = pool.max_output_tokens
    embedding = load_role_embeddings()
    return EnvParams(
        settings=record,
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
    """Fit of each role to each task: the cosine of their embeddings.

    It is standardised over the roles of the task's domain.

    Returns:
        (T, R); 0 for roles of other domains.
    """
    cosine = tasks.embeddings @ embedding.T
    fit = np.zeros_like(cosine)
    for d, domain in enumerate(DOMAINS):
        columns = np.asarray(roles_of(domain))
        rows = np.flatnonzero(tasks.domain == d)
        own = cosine[np.ix_(rows, columns)]
        spread = own.std(axis=1, keepdims=True)
        fit[np.ix_(rows, columns)] = (own - own.mean(axis=1, keepdims=True)) / np.where(
            spread > 0, spread, 1.0
        )
    return np.ascontiguousarray(fit, np.float32)
