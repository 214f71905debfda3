"""Simulate measured cells, many at once, and compare.

Every cell is simulated as several episodes (seeds) of the closed loop, on the built-in tasks of its
dataset's domain. The random numbers of an episode depend on its dataset and seed alone: two cells
that differ in the arrival rate only have the same questions, choices and latent outcomes, at other
times.

The methods, as the InfraMind paper (arXiv 2606.11440) ran them:

- `mas`: MasRouter (ACL 2025). Topology, agents and one model an agent, which in Debate speaks in
  both rounds; plain prompts; first come, first served.
- `moa`: every model proposes, all at once; the pool's first model aggregates, and that call counts.
- `gptswarm` (GPTSwarm, ICML 2024): one node a model, in the pool's order and one after the other,
  whatever the edges; then the pool's first model aggregates, and that call counts. A fixed graph
  for each dataset says what is read. Neither it nor `moa` has roles.
- `inframind`: an adaptive router, replayed by its measured joint shares of models and strategies,
  which result from its load and do not react to the simulated one; earliest deadline first.

Every client aborted a call after CALL_TIMEOUT_S and sent it again. Those of `mas` and `inframind`
streamed: they waited so long for the first token alone, three times in a call, of which a node made
up to three.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit.measured_runs import QUANTILES, SLO_S, MeasuredCell, Prediction
from inframind_gym.envs.routing_kernel import drive
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.jit import ThreadPool
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import allocate, cards
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, PLAN_ACTIONS, STEP
from inframind_gym.simulator.workflow.roles import roles_of
from inframind_gym.simulator.workflow.state import (
    CONTEXT,
    EXECUTIONS,
    LEVELS,
    ROUTERS,
    SCHEDULERS,
    START,
    EnvParams,
    allocate_state,
    build_params,
)
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    STRATEGIES,
    TOPOLOGIES,
    Graph,
    custom_graph,
    graph_tables,
)
from inframind_gym.simulator.workload import AgentProfile, TaskProfile, load_workload
from inframind_gym.tasks import DOMAINS, TaskSet, load_tasks

Ints = NDArray[np.int64]
DEFAULT_SEEDS: Final = 8
CALL_TIMEOUT_S: Final = 600.0
PROPOSAL_TOKENS: Final = 1000  # that an aggregator reads of an answer at most: 4,000 characters
BARE_PROMPT_TOKENS: Final = 30  # chat template, and at most a line of instructions
# Share of an adaptive router's calls that take their query's own route instead of one of their own:
# it decides by the query and the budget that is left, so the calls of a query resemble each other.
# The share is not published: 0.4, 0.5, 0.6 and 0.7 miss the measured mean latencies by 9, 10, 14
# and 16 % (medians), so it is a constant fitted to them by hand.
ROUTE_AFFINITY: Final = 0.5
# Logits that the aggregating call of `moa` and `gptswarm` has beyond the deciding call of a
# workflow, by dataset: fitted with the other gains to their accuracies at 50 queries a minute.
AGGREGATION_GAINS: Final[Mapping[str, float]] = {
    "math": -1.14,
    "mbpp": -0.14,
    "gsm_hard": -0.73,
    "humaneval": -0.42,
    "mmlu_pro": -0.75,
}
# Factors on the agents' answers, by method and dataset: those that meet mean and p95 of the
# published latencies at 50 queries a minute best; 1 where none brings the mean within a quarter.
LENGTH_FACTORS: Final[Mapping[tuple[str, str], float]] = {
    ("moa", "math"): 2.12,
    ("moa", "mbpp"): 1.45,
    ("moa", "gsm_hard"): 1.05,
    ("moa", "humaneval"): 1.00,
    ("moa", "mmlu_pro"): 2.72,
    ("gptswarm", "math"): 1.29,
    ("gptswarm", "mbpp"): 1.42,
    ("gptswarm", "gsm_hard"): 1.26,
    ("gptswarm", "humaneval"): 0.91,
    ("gptswarm", "mmlu_pro"): 0.72,
}
_BATCH: Final = 160  # episodes that are advanced together
_DEBATE: Final = TOPOLOGIES.index("Debate")
_PLAIN: Final = 1  # index into STRATEGIES of the one that stands for plain prompts


# Choices of a method: a plan and a route for every call of an episode, drawn again


class Harness(NamedTuple):
    """Settings under which a method was measured."""

    execution: Literal["parallel", "sequential", "serial"]
    scheduler: Literal["edf", "fcfs"]
    # Agents with roles, whose rules are the workload's `agents`; CALL_TIMEOUT_S is for the first
    # token, not for the whole answer.
    has_roles: bool = False
    adaptive: bool = False  # prompt strategies, and choices by the load; else prompts are plain


HARNESSES: Final[Mapping[str, Harness]] = {
    "mas": Harness("sequential", "fcfs", has_roles=True),
    "moa": Harness("parallel", "fcfs"),
    "gptswarm": Harness("serial", "fcfs"),
    "inframind": Harness("sequential", "edf", has_roles=True, adaptive=True),
}


def profile_for(method: str, dataset: str, profile: TaskProfile) -> TaskProfile:
    """Return the profile of a dataset, changed for a method's prompts and agents.

    An aggregating call is as long as a plain answer of its model.
    """
    if HARNESSES[method].adaptive:
        return profile
    gain = dict.fromkeys(STRATEGIES, 0.0)
    factors = dict.fromkeys(STRATEGIES, 1.0)
    factors[STRATEGIES[_PLAIN]] = LENGTH_FACTORS.get((method, dataset), 1.0)
    output: dict[str, Any] = {"strategy_factor": factors}
    update: dict[str, Any] = {}
    if not HARNESSES[method].has_roles:
        lengths = {"overhead_tokens": BARE_PROMPT_TOKENS, "final_message_tokens": PROPOSAL_TOKENS}
        update = {"agents": AgentProfile(), "prompt": profile.prompt.model_copy(update=lengths)}
        gain[STRATEGIES[0]] = AGGREGATION_GAINS[dataset]  # the strategy of the deciding call
        output["final_factor"] = 1.0
    update["output"] = profile.output.model_copy(update=output)
    update["quality"] = profile.quality.model_copy(update={"strategy_gain": gain})
    return profile.model_copy(update=update)


def graphs_of(cell: MeasuredCell, pool: PoolConfig) -> tuple[Graph, ...]:
    """Return the graphs of a cell beyond the six topologies: of `gptswarm` the one it has.

    Only the number of its edges was measured: which they are is drawn, the same for all datasets.

    Raises:
        ConfigError: The cell has more edges than its graph.
    """
    if cell.method != "gptswarm":
        return ()
    models = len(pool.models)
    pairs = list(combinations(range(models), 2))
    edges = round(cell.edges)
    if edges > len(pairs):
        raise ConfigError(f"{cell.source}: {edges} edges; {models} nodes have at most {len(pairs)}")
    drawn = np.random.default_rng(0).permutation(len(pairs))[:edges]
    return (custom_graph(models, [pairs[i] for i in drawn]),)


def quota(shares: Sequence[float], count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` times from `shares`; the counts follow them as closely as they can."""
    cumulative = np.cumsum(shares) / np.sum(shares)
    places = (np.arange(count) + rng.random()) / count
    drawn: Ints = rng.permutation(np.searchsorted(cumulative[:-1], places, side="right"))
    return drawn


def choose(
    cell: MeasuredCell, pool: PoolConfig, profile: TaskProfile, count: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw the decisions of a cell's method in an episode of N = `count` queries, by quota.

    Shares that a cell lacks are taken from the workload's profile of the oblivious router.

    Returns:
        Plans (N, PLAN_ACTIONS): index into TOPOLOGIES, or beyond: into `graphs_of` the cell; number
        of agents less one; roles, counted within the domain. Routes (N, MAX_NODES) of the calls.

    Raises:
        ConfigError: The cell names a model, strategy or topology that is unknown.
    """
    role = rng.integers(len(roles_of(profile.domain)), size=(count, MAX_AGENTS))
    models = len(pool.models)
    if not HARNESSES[cell.method].has_roles:
        name = len(TOPOLOGIES) if cell.method == "gptswarm" else TOPOLOGIES.index("IO")
        node = np.minimum(np.arange(MAX_NODES), models - 1)
        route = np.tile(node * len(STRATEGIES) + _PLAIN, (count, 1))
        return np.column_stack([np.tile([name, models - 1], (count, 1)), role]), route
    topology = quota(_topology_shares(cell, profile), count, rng)
    mean = mean_agents(cell, profile)
    low = int(mean + 1e-9)  # the whole numbers next to the mean
    num_agents = low + quota([1.0 - (mean - low), max(mean - low, 0.0)], count, rng)
    plan = np.column_stack([topology, num_agents - 1, role])
    if HARNESSES[cell.method].adaptive:
        shares = [0.0] * (models * len(STRATEGIES))
        for route_name, share in (cell.route_share or {}).items():
            model_name, _, strategy = route_name.rpartition("|")
            if strategy not in STRATEGIES:
                raise ConfigError(f"{cell.source}: {unknown('strategy', strategy, STRATEGIES)}")
            of = _model_index(cell, pool, model_name) * len(STRATEGIES)
            shares[of + STRATEGIES.index(strategy)] += share
        each = quota(shares, count * MAX_NODES, rng).reshape(count, MAX_NODES)
        of_query = quota(shares, count, rng)[:, None]
        return plan, np.where(rng.random(each.shape) < ROUTE_AFFINITY, of_query, each)
    of_models = [profile.models[alias].share for alias in pool.aliases]
    if cell.model_share is not None:
        of_models = [0.0] * models
        for name_of, share in cell.model_share.items():
            of_models[_model_index(cell, pool, name_of)] += share
    model = quota(of_models, count * MAX_AGENTS, rng).reshape(count, MAX_AGENTS)
    agent = np.tile(np.arange(MAX_NODES), (count, 1))
    debates = topology == _DEBATE
    agent[debates] %= num_agents[debates, None]
    model = np.take_along_axis(model, np.minimum(agent, MAX_AGENTS - 1), axis=1)
    return plan, model * len(STRATEGIES) + _PLAIN


def mean_agents(cell: MeasuredCell, profile: TaskProfile) -> float:
    """Return the mean number of agents of a cell's queries.

    Where it was not measured it follows from the steps: an agent takes one, in Debate two. Steps
    that no number of agents explains (the published ones of `mas` on MMLU-Pro are 31 times too
    many) are ignored.
    """
    if cell.num_agents is not None:
        return min(cell.num_agents, float(MAX_AGENTS))
    if cell.steps is not None:
        agents = cell.steps / (1.0 + _topology_shares(cell, profile)[_DEBATE])
        if 1.0 <= agents <= MAX_AGENTS:
            return float(agents)
    return sum(number * share for number, share in profile.planner.num_agents.items())


def _topology_shares(cell: MeasuredCell, profile: TaskProfile) -> list[float]:
    shares = cell.topology_share or profile.planner.topologies
    for name in shares:
        if name not in TOPOLOGIES:
            raise ConfigError(f"{cell.source}: {unknown('topology', name, TOPOLOGIES)}")
    return [shares.get(name, 0.0) for name in TOPOLOGIES]


def _model_index(cell: MeasuredCell, pool: PoolConfig, name: str) -> int:
    for index, model in enumerate(pool.models):
        if name in (model.name, model.alias):
            return index
    known = [model.name for model in pool.models]
    raise ConfigError(f"{cell.source}: pool {pool.name!r}: {unknown('model', name, known)}")


# Simulation


class Constants(NamedTuple):
    """The calibrated quantities: the servers, and the profile of each dataset."""

    pool: PoolConfig
    profiles: Mapping[str, TaskProfile]  # by dataset


def load_constants(pool: str | Path, datasets: Sequence[str]) -> Constants:
    """Read a pool, and the shipped workloads of datasets.

    Raises:
        ConfigError: There is no such file, or it is not valid.
    """
    loaded, profiles = load_pool(pool), {}
    for dataset in dict.fromkeys(datasets):
        profiles[dataset] = load_workload(dataset).profile
        profiles[dataset].require_models(loaded.aliases)
    return Constants(loaded, profiles)


def predict(
    cells: Sequence[MeasuredCell], constants: Constants, seeds: int = DEFAULT_SEEDS
) -> list[Prediction]:
    """Simulate cells of any methods, each as `seeds` episodes.

    Returns:
        Predictions in the order of the cells.

    Raises:
        ConfigError: A cell cannot be replayed; names it and the reason.
    """
    together: dict[tuple[str, float | None, int], list[int]] = {}  # what can be simulated at once
    for index, cell in enumerate(cells):
        edges = cell.edges if cell.method == "gptswarm" else None
        length = cell.num_queries.bit_length()  # arrays have one length
        together.setdefault((cell.method, edges, length), []).append(index)
    out: dict[int, Prediction] = {}
    for same in together.values():
        for own in np.array_split(same, min(-(-len(same) * seeds // _BATCH), len(same))):
            said = _simulate([cells[index] for index in own], constants, seeds)
            out.update(zip(own.tolist(), said, strict=True))
    return [out[index] for index in range(len(cells))]


def _simulate(cells: Sequence[MeasuredCell], constants: Constants, seeds: int) -> list[Prediction]:
    """Simulate cells of one method, whose graphs have the same number of edges."""
    pool, harness = constants.pool, HARNESSES[cells[0].method]
    datasets = tuple(dict.fromkeys(cell.dataset for cell in cells))
    tasks = load_tasks("builtin", split="all")  # of each dataset's domain, one after the other
    domains = [DOMAINS.index(constants.profiles[name].domain) for name in datasets]
    groups = [np.flatnonzero(tasks.domain == domain) for domain in domains]
    of = np.repeat(np.arange(len(groups), dtype=np.int32), [len(group) for group in groups])
    places = {name: np.flatnonzero(of == i) for i, name in enumerate(datasets)}
    params = _params(cells[0], constants, datasets, tasks.select(np.concatenate(groups)), of)
    counts = np.repeat([cell.num_queries for cell in cells], seeds)
    shape, card = (len(counts), int(counts.max())), cards(pool)
    slots = int(card["max_num_seqs"].sum())
    ring = 1 << (MAX_NODES * (slots + 1) - 1).bit_length()
    state = allocate_state(params, *shape, ring, False)
    calls = MAX_AGENTS if harness.execution == "parallel" else 1
    # What is aborted while it runs keeps its place until the step ends.
    cluster = allocate(card, len(counts), calls * shape[1] + 1 + slots)

    starts = np.zeros(len(counts), START)
    starts["models_up"] = (1 << len(pool.models)) - 1
    plan = np.zeros((*shape, PLAN_ACTIONS), np.int64)
    route = np.zeros((*shape, MAX_NODES), np.int64)
    for row, count in enumerate(counts.tolist()):
        cell = cells[row // seeds]
        rng = np.random.default_rng([row % seeds, zlib.crc32(cell.dataset.encode())])
        starts[row]["key"] = rng.integers(2**64, dtype=np.uint64)
        starts[row]["num_queries"], starts[row]["budget_s"] = count, cell.budget_s or SLO_S
        # Poisson arrivals: the quantiles of the gaps, shuffled, so that all seeds are as long.
        gaps = -np.log1p(-(np.arange(count) + rng.random()) / count)
        arrival_s = np.cumsum(rng.permutation(gaps)) * (60.0 / cell.arrival_rate_per_min)
        state.arrival_s[row, :count] = arrival_s
        own = places[cell.dataset]
        order = [rng.permutation(len(own)) for _ in range(-(-count // len(own)))]
        state.task[row, :count] = own[np.concatenate(order)[:count]]
        choices = choose(cell, pool, constants.profiles[cell.dataset], count, rng)
        plan[row, :count], route[row, :count] = choices

    rows = np.arange(len(counts))
    observations = np.zeros((len(rows), 4), np.float32)  # query, role, budget, kind: not read
    contexts = np.zeros(len(rows), CONTEXT)
    actions = np.zeros((len(rows), PLAN_ACTIONS + 1), np.int64)
    status = np.zeros(len(rows), np.int64)
    unread = np.zeros(len(rows))
    threads, mode = ThreadPool(drive, [cluster], place=1), BEGIN
    while len(rows):
        buffers = (mode, rows, starts, actions, observations, contexts, unread, unread)
        threads.run(len(rows), state, cluster, *buffers, status)
        mode = STEP
        rows = np.flatnonzero(status == DECISION)
        query = contexts["query"][rows]
        actions[rows, :PLAN_ACTIONS] = plan[rows, query]
        actions[rows, PLAN_ACTIONS] = route[rows, query, contexts["node"][rows]]

    firsts = range(0, len(counts), seeds)
    return [_prediction(state.completed[i : i + seeds, : counts[i]]) for i in firsts]


def _prediction(done: NDArray[np.void]) -> Prediction:
    """Return the figures of a cell, of the queries (S, N) of its seeds."""
    latency_s = done["latency_s"]
    means = latency_s.mean(axis=1)
    quantiles = np.quantile(latency_s, list(QUANTILES.values()), axis=1).mean(axis=1)
    mean = float(means.mean())
    return Prediction(
        accuracy=float(done["solved"].mean(axis=1).mean()),
        latency_s={"mean": mean, **dict(zip(QUANTILES, quantiles.tolist(), strict=True))},
        calls=float(done["calls"].mean()),
        completion_tokens=float(done["output_tokens"].mean()),
        latency_mean_sd=float(means.std(ddof=1)) / mean if len(done) > 1 else 0.0,
    )


def _params(
    cell: MeasuredCell,
    constants: Constants,
    datasets: Sequence[str],
    tasks: TaskSet,
    task_profile: NDArray[np.int32],
) -> EnvParams:
    """Return the parameters of episodes of a cell's method."""
    harness, method, pool = HARNESSES[cell.method], cell.method, constants.pool
    profiles = [profile_for(method, name, constants.profiles[name]) for name in datasets]
    arguments = {
        "poll_s": pool.metrics_poll_s,
        "queue_norm": pool.queue_norm,
        "queue_high": 1e9,
        "max_output_tokens": pool.max_output_tokens,
        "execution": EXECUTIONS.index(harness.execution),
        "scheduler": SCHEDULERS.index(harness.scheduler),
        "router": ROUTERS.index("none"),
        "level": LEVELS.index("joint"),
        "one_query": 0,
        "fixed_topology": -1,
        "fixed_agents": -1,
        "embeddings": 0,
        "call_timeout_s": CALL_TIMEOUT_S,
        "call_attempts": 9 if harness.has_roles else 3,
        "call_streams": harness.has_roles,
    }
    params = build_params(pool, profiles, tasks, task_profile, (SLO_S,), (), arguments)
    return params._replace(graphs=graph_tables(graphs_of(cell, pool)))
