"""Reward and cost of the routing environments.

Reward: the number of the agent's queries that were solved in the step. Cost: the latency that the
step added to them, as a share of their budgets (InfraMind, arXiv 2606.11440). In an episode of one
tagged query every step pays for the latency since the step before, so that the costs of an episode
sum to latency / budget; where every query is the agent's, a query pays when it ends.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import EnvState
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL


@inner
def step_reward(params: EnvParams, state: EnvState, e: int) -> tuple[float, float]:
    """Reward and cost of the agent's queries that ended in the step of environment `e`."""
    stream = state.stream[e]
    reward = 0.0
    cost = 0.0
    for i in range(stream.reported, stream.finished):
        record = state.completed[e, i]
        if record.is_controlled:
            reward += record.solved
            if params.settings[0].one_query:
                charged_s = state.query[e, stream.slot].charged_s
                cost += (record.latency_s - charged_s) / record.budget_s
            else:
                cost += record.cost
    return reward, cost


@inner
def running_cost(params: EnvParams, state: EnvState, e: int) -> float:
    """Cost of the latency that the tagged query, which still runs, gained since the last step."""
    stream = state.stream[e]
    query = state.query[e, stream.slot]
    latency_s = query.latency_s
    if params.settings[0].execution != SEQUENTIAL:
        latency_s = stream.now_s - query.arrival_s
    added_s = latency_s - query.charged_s
    query.charged_s = latency_s
    return float(added_s / query.budget_s)
