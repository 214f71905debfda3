"""Reward and cost of the routing environments.

Reward: the number of the agent's queries that were solved in the step. Cost: the latency that the
step added to them, as a share of their budgets (InfraMind, arXiv 2606.11440). In an episode of one
tagged query every step pays for the latency since the step before, so that the costs of an episode
sum to latency / budget; where every query is the agent's, a query pays when it ends.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.workflow.params import World
from inframind_gym.simulator.workflow.state import Workflows
from inframind_gym.simulator.workflow.workflow import PUBLISHED


@inner
def step_reward(world: World, flows: Workflows, e: int) -> tuple[float, float]:
    """Reward and cost of the agent's queries that ended in the step of environment `e`."""
    sweep = flows.sweep[e]
    reward = 0.0
    cost = 0.0
    for i in range(sweep.reported, sweep.finished):
        record = flows.completed[e, i]
        if record.agents:
            reward += record.solved
            if world.settings[0].one_query:
                charged_s = flows.query[e, sweep.slot].charged_s
                cost += (record.latency_s - charged_s) / record.budget_s
            else:
                cost += record.cost
    return reward, cost


@inner
def running_cost(world: World, flows: Workflows, e: int) -> float:
    """Cost of the latency that the tagged query, which still runs, gained since the last step."""
    sweep = flows.sweep[e]
    query = flows.query[e, sweep.slot]
    latency_s = query.latency_s
    if world.settings[0].protocol != PUBLISHED:
        latency_s = sweep.now_s - query.arrival_s
    added_s = latency_s - query.charged_s
    query.charged_s = latency_s
    return float(added_s / query.budget_s)
