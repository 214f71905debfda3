"""One query alone on an idle cluster, carried out by the environment and by the plain reference.

The environment's call latencies are read from its CALL records and given to the reference, which
knows nothing of servers: what is compared is the orchestration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import FINAL
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.simulator.reference.workflow import FINAL_NODE, Node, QueryResult, run_query

NUM_STRATEGIES = 3


@dataclass
class Episode:
    """What the environment did with one query."""

    contexts: NDArray[Any]  # (k,) of the routing decisions
    observations: NDArray[np.float32]  # (k, d)
    actions: list[int]  # (k,)
    costs: list[float]  # (k,) of the same steps
    rewards: list[float]
    info: dict[str, Any]  # the last
    query: np.void  # COMPLETED
    calls: NDArray[Any]  # CALL, in the order in which they were sent


def make_lone(name: str = "InfraMind-Executor-v0", **arguments: Any) -> gym.Env[Any, Any]:
    """An environment in which one query is alone, and the agent chooses its plan as well.

    Nothing is handed on without a call, and nodes make the calls of their topology alone.
    """
    defaults: dict[str, Any] = {"level": "joint", "observation": "index", "record_calls": True}
    defaults |= {"num_queries": 1, "agents": {}}
    return gym.make(name, **{**defaults, "background": "none", **arguments})


def play(
    env: gym.Env[Any, Any],
    topology: str,
    num_agents: int,
    seed: int,
    budget_s: float,
    actions: NDArray[np.int64],
) -> Episode:
    """Carry one query out.

    Args:
        env: of `make_lone`.
        topology, num_agents: the plan.
        seed: of the episode.
        budget_s: the query's.
        actions: routes in the order of the nodes.
    """
    plan = [TOPOLOGIES.index(topology), num_agents - 1, *range(6)]
    _, info = env.reset(seed=seed, options={"budget_s": budget_s})
    unwrapped: Any = env.unwrapped
    observation, reward, over, _, info = env.step(np.array([*plan, 0]))
    assert info["cost"] == 0.0
    assert reward == 0.0
    contexts, observations, taken, costs, rewards = [], [], [], [], []
    while not over:
        context = unwrapped.context()
        contexts.append(context)
        observations.append(observation)
        taken.append(int(actions[context["node"]]))
        observation, reward, over, _, info = env.step(np.array([*plan, taken[-1]]))
        costs.append(info["cost"])
        rewards.append(reward)
    calls = unwrapped.calls()
    completed = unwrapped.completed()
    assert len(completed) == 1
    return Episode(
        contexts=np.array(contexts),
        observations=np.array(observations),
        actions=taken,
        costs=costs,
        rewards=rewards,
        info=info,
        query=completed[0],
        calls=calls[np.lexsort((calls["phase"], calls["node"], calls["submit_s"]))],
    )


def refer(
    episode: Episode,
    topology: Any,
    num_agents: int,
    budget_s: float,
    actions: NDArray[np.int64],
    execution: Any,
    *,
    role_calls: bool = False,
) -> QueryResult:
    """The same query by the reference, with the latencies that the environment's calls had."""
    latency_s = {}
    for call in episode.calls:
        final = call["phase"] == FINAL
        place = (FINAL_NODE, 0) if final else (int(call["node"]), int(call["phase"]))
        assert place not in latency_s
        latency_s[place] = float(call["finish_s"] - call["submit_s"])

    def decide(node: Node, _: float) -> tuple[int, int]:
        model, strategy = divmod(int(actions[node.index]), NUM_STRATEGIES)
        return model, strategy

    def call_latency(node: int, repeat: int, model: int, strategy: int) -> float:
        return latency_s.pop((node, repeat))

    roles = episode.query["role"][:num_agents]
    twice = [agent for agent, role in enumerate(roles) if role_calls and ROLES[role].calls == 2]
    result = run_query(topology, num_agents, budget_s, decide, call_latency, execution, twice)
    assert not latency_s, "the environment made calls that the reference does not know"
    return result
