"""The planner's network: shapes, distributions, gradients, and its twin in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.planner_network import Plan, PlannerNet, count_logits
from agents.runs import weights_of
from inframind_gym.policies.networks import PLAN_DRAWS, NumpyPlanner
from inframind_gym.simulator.workflow.roles import roles_of
from inframind_gym.simulator.workflow.topology import MAX_AGENTS
from inframind_gym.tasks import DOMAINS, load_tasks

ROLE_COUNT = [len(roles_of(domain)) for domain in DOMAINS]


@pytest.fixture(scope="module")
def net() -> PlannerNet:
    """A planner whose distributions are far from uniform."""
    torch.manual_seed(3)
    planner = PlannerNet()
    with torch.no_grad():
        for parameter in planner.parameters():
            parameter.mul_(2.0)
    return planner


@pytest.fixture(scope="module")
def queries():
    """Embeddings (300, 384) and domains (300,) of built-in tasks of all domains."""
    tasks = load_tasks("builtin", split="train")
    rows = np.random.default_rng(0).choice(len(tasks), 300, replace=False)
    return tasks.embeddings[rows], tasks.domain[rows].astype(np.int64)


def tensors(queries):
    return torch.tensor(queries[0]), torch.tensor(queries[1])


def drawn(net, queries, uniforms):
    """Plans of the player, as tensors."""
    player = NumpyPlanner(weights_of(net))
    return Plan(*map(torch.tensor, player.plan(player.encode(queries[0]), queries[1], uniforms)))


def test_probabilities_of_all_plans_of_one_and_two_agents_sum_to_those_of_the_counts(net, queries):
    query = torch.tensor(queries[0][:1])
    code, noise = DOMAINS.index("Code"), torch.Generator()
    of_counts = torch.softmax(net(query, torch.tensor([code]), noise).count_logits, dim=-1)[0]
    n = ROLE_COUNT[code]
    for agents in (1, 2):
        grid = torch.cartesian_prod(*[torch.arange(6), *[torch.arange(n)] * agents])
        roles = torch.zeros(len(grid), MAX_AGENTS, dtype=torch.int64)
        roles[:, :agents] = grid[:, 1:]
        of_grid = net(query.expand(len(grid), -1), torch.full((len(grid),), code), noise)
        plans = Plan(grid[:, 0], torch.full((len(grid),), agents), roles)
        log_prob = net.log_prob(of_grid, plans)
        torch.testing.assert_close(log_prob.exp().sum(), of_counts[agents - 1])


def test_frequencies_of_the_players_plans_are_the_probabilities_of_the_network(net, queries):
    n = 20_000
    same = np.repeat(queries[0][:1], n, axis=0), np.full(n, 2)
    plan = drawn(net, same, np.random.default_rng(1).random((n, PLAN_DRAWS)))
    with torch.no_grad():
        log_prob = net.log_prob(net(*tensors(same), torch.Generator()), plan)
    # The most frequent plans of two agents are as frequent as they say.
    two = plan.num_agents == 2
    keys = torch.cat([plan.topology[:, None], plan.roles[:, :2]], dim=1)[two]
    unique, inverse, times = keys.unique(dim=0, return_inverse=True, return_counts=True)
    for index in times.argsort(descending=True)[:20]:
        p = log_prob[two][inverse == index][0].exp()
        frequency = times[index] / n
        assert (frequency - p).abs() < 4.5 * (p * (1 - p) / n).sqrt(), unique[index]


def test_the_likeliest_plan_is_the_likeliest_part_by_part(net, queries):
    plan, out = drawn(net, queries, None), net(*tensors(queries), torch.Generator())
    assert torch.equal(plan.topology, out.mode_logits.argmax(dim=-1))
    assert torch.equal(plan.num_agents, out.count_logits.argmax(dim=-1) + 1)
    best = net.log_prob(out, plan)
    for other in range(min(ROLE_COUNT)):
        roles = plan.roles.clone()
        last = plan.num_agents - 1
        roles[torch.arange(len(last)), last] = other
        assert (net.log_prob(out, plan._replace(roles=roles)) <= best + 1e-5).all()


def test_the_likeliest_count_is_masrouters():
    mean = torch.linspace(0.01, 5.99, 600)
    mean = mean[(mean % 1 - 0.5).abs() > 1e-3]
    expected = torch.clamp(torch.round(mean), 1, MAX_AGENTS).long()
    assert torch.equal(count_logits(mean).argmax(dim=-1) + 1, expected)
