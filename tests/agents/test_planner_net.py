"""The planner's network: shapes, distributions, gradients, and its twin in NumPy."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from agents.planner_network import EMBEDDINGS_FILE, TEXTS, Plan, PlannerNet, count_logits
from agents.runs import weights_of
from inframind_gym.policies.planner_network import PLAN_DRAWS, NumpyPlanner
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


def test_plans_are_in_range(net, queries):
    query, domain = tensors(queries)
    u = torch.rand(len(query), PLAN_DRAWS, generator=torch.Generator().manual_seed(0))
    output = net(query, domain)
    plan = net.choose(output, u)
    assert plan.topology.unique().tolist() == list(range(6))
    assert ((plan.num_agents >= 1) & (plan.num_agents <= MAX_AGENTS)).all()
    assert (plan.roles < torch.tensor(ROLE_COUNT)[domain][:, None]).all()
    assert (plan.roles >= 0).all()
    beyond = torch.arange(MAX_AGENTS) >= plan.num_agents[:, None]
    assert (plan.roles[beyond] == 0).all()
    assert (net.log_prob(output, plan) < 0).all()


def test_probabilities_of_all_plans_of_one_and_two_agents_sum_to_those_of_the_counts(net, queries):
    query = torch.tensor(queries[0][:1])
    code = DOMAINS.index("Code")
    output = net(query, torch.tensor([code]))
    of_counts = torch.softmax(output.count_logits, dim=-1)[0]
    n = ROLE_COUNT[code]
    for agents in (1, 2):
        grid = torch.cartesian_prod(*[torch.arange(6), *[torch.arange(n)] * agents])
        roles = torch.zeros(len(grid), MAX_AGENTS, dtype=torch.int64)
        roles[:, :agents] = grid[:, 1:]
        of_grid = net(query.expand(len(grid), -1), torch.full((len(grid),), code))
        plans = Plan(grid[:, 0], torch.full((len(grid),), agents), roles)
        log_prob = net.log_prob(of_grid, plans)
        torch.testing.assert_close(log_prob.exp().sum(), of_counts[agents - 1])


def test_frequencies_of_samples_are_their_probabilities(net, queries):
    n = 20_000
    query, domain = torch.tensor(queries[0][:1]).expand(n, -1), torch.full((n,), 2)
    u = torch.rand(n, PLAN_DRAWS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = net(query, domain)
        plan = net.choose(output, u)
        log_prob = net.log_prob(output, plan)
    # The most frequent plans of two agents are as frequent as they say.
    two = plan.num_agents == 2
    keys = torch.cat([plan.topology[:, None], plan.roles[:, :2]], dim=1)[two]
    unique, inverse, times = keys.unique(dim=0, return_inverse=True, return_counts=True)
    for index in times.argsort(descending=True)[:20]:
        p = log_prob[two][inverse == index][0].exp()
        frequency = times[index] / n
        assert (frequency - p).abs() < 4.5 * (p * (1 - p) / n).sqrt(), unique[index]


def test_the_likeliest_count_is_masrouters():
    mean = torch.linspace(0.01, 5.99, 600)
    mean = mean[(mean % 1 - 0.5).abs() > 1e-3]
    expected = torch.clamp(torch.round(mean), 1, MAX_AGENTS).long()
    assert torch.equal(count_logits(mean).argmax(dim=-1) + 1, expected)


def test_numpy_agrees_with_torch(net, queries):
    query, domain = tensors(queries)
    planner = NumpyPlanner(weights_of(net))
    with torch.no_grad():
        output = net(query, domain)
    latent = planner.encode(queries[0])
    for found, expected in (
        (latent, output.query),
        (planner.mode_logits(latent), output.mode_logits),
        (planner.count_logits(latent), output.count_logits),
    ):
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)
    u = np.random.default_rng(0).random((len(query), PLAN_DRAWS))
    for uniforms in (None, u):
        plan = net.choose(output, None if uniforms is None else torch.tensor(uniforms))
        found = planner.plan(latent, queries[1], uniforms)
        for mine, theirs in zip(found, plan, strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy())


def test_shipped_embeddings_are_those_of_the_texts():
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("the encoder is not installed")
    from inframind_gym.tasks import embed_texts

    fresh = embed_texts(list(TEXTS.values()))
    shipped = np.load(EMBEDDINGS_FILE, allow_pickle=False).astype(np.float32)
    assert (fresh * shipped).sum(axis=1).min() > 0.999
