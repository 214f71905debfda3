"""Choices of a measured method, drawn again: a plan and a route for every call of an episode.

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

Choices are drawn by quota: their counts follow the shares as closely as they can, and only their
order is random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.workflow.roles import roles_of
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    STRATEGIES,
    TOPOLOGIES,
    Graph,
    custom_graph,
)
from inframind_gym.simulator.workload import AgentProfile, TaskProfile

# Logits that the aggregating call of `moa` and `gptswarm` has beyond the deciding call of a
# workflow, by dataset: fitted with the other gains (`benchmarks/fit/measured.py`) to their
# accuracies at 50 queries a minute.
AGGREGATION_GAINS: Final[Mapping[str, float]] = {
    "math": -1.14,
    "mbpp": -0.14,
    "gsm_hard": -0.73,
    "humaneval": -0.42,
    "mmlu_pro": -0.75,
}

# Share of an adaptive router's calls that take their query's own route instead of one of their own:
# it decides by the query and the budget that is left, so the calls of a query resemble each other.
# The share is not published: 0.4, 0.5, 0.6 and 0.7 miss the measured mean latencies by 9, 10, 14
# and 16 % (medians), so it is a constant fitted to them by hand.
ROUTE_AFFINITY: Final = 0.5

CALL_TIMEOUT_S: Final = 600.0
PROPOSAL_TOKENS: Final = 1000  # that an aggregator reads of an answer at most: 4,000 characters
BARE_PROMPT_TOKENS: Final = 30  # chat template, and at most a line of instructions
USUAL_EDGES: Final = 5  # where a cell has none: the middle of the measured 4 to 7
_DEBATE: Final = TOPOLOGIES.index("Debate")
_PLAIN: Final = 1  # index into STRATEGIES of the one that stands for plain prompts


@dataclass(frozen=True)
class Harness:
    """Settings under which a method was measured."""

    execution: Literal["parallel", "sequential", "serial"]
    scheduler: Literal["edf", "fcfs"]
    has_roles: bool  # agents with roles, whose rules are the workload's `agents`
    has_strategies: bool  # prompt strategies; otherwise prompts are plain
    adaptive: bool  # its choices depend on the load that they were measured under
    streams: bool  # CALL_TIMEOUT_S is for the first token, not for the whole answer

    @property
    def call_attempts(self) -> int:
        """Number of times that a call is sent until it counts as failed."""
        return 9 if self.streams else 3


_ROUTER: Final = {"has_roles": True, "streams": True}
_BASELINE: Final = dict.fromkeys(("has_roles", "has_strategies", "adaptive", "streams"), False)
HARNESSES: Final[Mapping[str, Harness]] = {
    "mas": Harness("sequential", "fcfs", has_strategies=False, adaptive=False, **_ROUTER),
    "moa": Harness("parallel", "fcfs", **_BASELINE),
    "gptswarm": Harness("serial", "fcfs", **_BASELINE),
    "inframind": Harness("sequential", "edf", has_strategies=True, adaptive=True, **_ROUTER),
}


class Choices(NamedTuple):
    """The decisions of an episode of N queries."""

    topology: NDArray[np.int64]  # (N,) index into TOPOLOGIES, or beyond: into `graphs_of` the cell
    num_agents: NDArray[np.int64]  # (N,)
    role: NDArray[np.int64]  # (N, MAX_AGENTS) counted within the domain
    route: NDArray[np.int64]  # (N, MAX_NODES) model x strategies + strategy


def harness_of(method: str) -> Harness:
    """Return the settings of a method.

    Raises:
        ConfigError: The method is unknown; names the known ones.
    """
    if method not in HARNESSES:
        raise ConfigError(f"cannot replay: {unknown('method', method, HARNESSES)}")
    return HARNESSES[method]


def profile_for(
    method: str, profile: TaskProfile, length_factor: float = 1.0, aggregation_gain: float = 0.0
) -> TaskProfile:
    """Return the profile of a dataset, changed for a method's prompts and agents.

    Args:
        method: one of HARNESSES.
        profile: of the dataset.
        length_factor: of the agents' answers, where the method has no prompt strategies. An
            aggregating call is as long as a plain answer of its model.
        aggregation_gain: logits of the call that decides, where the method has no roles.
    """
    harness = harness_of(method)
    if not harness.has_roles:
        bare = profile.prompt.model_copy(
            update={
                "overhead_tokens": BARE_PROMPT_TOKENS,
                "final_message_tokens": PROPOSAL_TOKENS,
            }
        )
        profile = profile.model_copy(update={"agents": AgentProfile(), "prompt": bare})
    if harness.has_strategies:
        return profile
    gain = dict.fromkeys(STRATEGIES, 0.0)
    output: dict[str, Any] = {
        "strategy_factor": {
            **dict.fromkeys(STRATEGIES, 1.0),
            STRATEGIES[_PLAIN]: length_factor,
        }
    }
    if not harness.has_roles:
        gain[STRATEGIES[0]] = aggregation_gain  # the strategy of the deciding call
        output["final_factor"] = 1.0
    return profile.model_copy(
        update={
            "output": profile.output.model_copy(update=output),
            "quality": profile.quality.model_copy(update={"strategy_gain": gain}),
        }
    )


def graphs_of(cell: MeasuredCell, pool: PoolConfig) -> tuple[Graph, ...]:
    """Return the graphs of a cell beyond the six topologies: of `gptswarm` the one it has.

    Only the number of its edges was measured: which they are is drawn, the same for all datasets.

    Raises:
        ConfigError: The pool has too many models for one graph, or the cell more edges than it.
    """
    if cell.method != "gptswarm":
        return ()
    models = len(pool.models)
    pairs = list(combinations(range(models), 2))
    edges = USUAL_EDGES if cell.edges is None else round(cell.edges)
    if not 2 <= models <= MAX_AGENTS:
        raise ConfigError(f"{cell.source}: {models} models; a graph has 2 to {MAX_AGENTS} nodes.")
    if edges > len(pairs):
        raise ConfigError(
            f"{cell.source}: {edges} edges; {models} nodes have at most {len(pairs)}."
        )
    drawn = np.random.default_rng(0).permutation(len(pairs))[:edges]
    return (custom_graph(models, [pairs[i] for i in drawn]),)


def quota(shares: Sequence[float], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` times from `shares`; the counts follow them as closely as they can."""
    cumulative = np.cumsum(shares) / np.sum(shares)
    places = (np.arange(count) + rng.random()) / count
    drawn: NDArray[np.int64] = rng.permutation(
        np.searchsorted(cumulative[:-1], places, side="right")
    )
    return drawn


def choose(
    cell: MeasuredCell,
    pool: PoolConfig,
    profile: TaskProfile,
    count: int,
    rng: np.random.Generator,
) -> Choices:
    """Draw the decisions of a cell's method in an episode of `count` queries.

    Shares that a cell lacks are taken from the workload's profile of the oblivious router.

    Raises:
        ConfigError: The cell names a model, strategy or topology that is unknown.
    """
    role = rng.integers(len(roles_of(profile.domain)), size=(count, MAX_AGENTS))
    models = len(pool.models)
    if cell.method in ("moa", "gptswarm"):
        topology = np.full(count, TOPOLOGIES.index("IO"))
        if cell.method == "gptswarm":
            topology = np.full(count, len(TOPOLOGIES))
        node = np.minimum(np.arange(MAX_NODES), models - 1)
        route = np.tile(node * len(STRATEGIES) + _PLAIN, (count, 1))
        return Choices(topology, np.full(count, models), role, route)
    topology = quota(_topology_shares(cell, profile), count, rng)
    num_agents = _agents(cell, profile, count, rng)
    if harness_of(cell.method).has_strategies:
        shares = _route_shares(cell, pool, profile)
        each = quota(shares, count * MAX_NODES, rng).reshape(count, MAX_NODES)
        of_query = quota(shares, count, rng)[:, None]
        route = np.where(rng.random(each.shape) < ROUTE_AFFINITY, of_query, each)
        return Choices(topology, num_agents, role, route)
    share = _model_shares(cell, pool, profile)
    model = quota(share, count * MAX_AGENTS, rng).reshape(count, MAX_AGENTS)
    agent = np.tile(np.arange(MAX_NODES), (count, 1))
    debates = topology == _DEBATE
    agent[debates] %= num_agents[debates, None]
    model = np.take_along_axis(model, np.minimum(agent, MAX_AGENTS - 1), axis=1)
    return Choices(topology, num_agents, role, model * len(STRATEGIES) + _PLAIN)


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


def _agents(
    cell: MeasuredCell, profile: TaskProfile, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return (N,) numbers of agents: the whole numbers next to the mean."""
    mean = mean_agents(cell, profile)
    low = int(mean + 1e-9)
    return low + quota([1.0 - (mean - low), max(mean - low, 0.0)], count, rng)


def _topology_shares(cell: MeasuredCell, profile: TaskProfile) -> list[float]:
    shares = cell.topology_share or profile.planner.topologies
    for name in shares:
        if name not in TOPOLOGIES:
            raise ConfigError(f"{cell.source}: {unknown('topology', name, TOPOLOGIES)}")
    return [shares.get(name, 0.0) for name in TOPOLOGIES]


def _model_shares(cell: MeasuredCell, pool: PoolConfig, profile: TaskProfile) -> list[float]:
    if cell.model_share is None:
        return [profile.models[alias].share for alias in pool.aliases]
    shares = [0.0] * len(pool.models)
    for name, share in cell.model_share.items():
        shares[_model_index(cell, pool, name)] += share
    return shares


def _route_shares(cell: MeasuredCell, pool: PoolConfig, profile: TaskProfile) -> list[float]:
    """Return (M x S) shares; models and strategies are independent where no route was measured."""
    if cell.route_share is None:
        strategies = cell.strategy_share or profile.strategy_mix
        return [
            share * strategies.get(strategy, 0.0)
            for share in _model_shares(cell, pool, profile)
            for strategy in STRATEGIES
        ]
    shares = [0.0] * (len(pool.models) * len(STRATEGIES))
    for name, share in cell.route_share.items():
        model, _, strategy = name.rpartition("|")
        if strategy not in STRATEGIES:
            raise ConfigError(f"{cell.source}: {unknown('strategy', strategy, STRATEGIES)}")
        index = _model_index(cell, pool, model) * len(STRATEGIES) + STRATEGIES.index(strategy)
        shares[index] += share
    return shares


def _model_index(cell: MeasuredCell, pool: PoolConfig, name: str) -> int:
    for index, model in enumerate(pool.models):
        if name in (model.name, model.alias):
            return index
    known = [model.name for model in pool.models]
    raise ConfigError(f"{cell.source}: pool {pool.name!r}: {unknown('model', name, known)}")
